// Package auditlog writes and verifies the evidence: a signed, hash-chained
// log of records in format v3.
//
// It knows nothing of HTTP, Caddy or MCP transports and can be imported by
// anyone. A writer opens a log with [Open], records an operation with
// [Log.Begin] and [Operation.End], and single facts with [Log.Event]. A
// verifier reads files with [Verify]. The format is described in
// docs/log-format.md; both sides share the byte layout in seal.go, the key
// derivations in keys.go and the Merkle tree in tree.go.
package auditlog
