// Package legacy reads and judges logs of other systems: entries of
// P4ST4S/mcp-audit (Integrity v2 and the older signature, as JSON lines or in
// a SQLite database) and the hash chain of mcp-audit-gateway. It also writes
// the copy in Integrity v2 form that a log's `compat v2` asks for (Copier).
//
// Member names are compared with their exact case, a repeated or differently
// cased member is a finding, and nothing is decoded by encoding/json, whose
// readings are laxer. What a format does not protect, the report says.
package legacy
