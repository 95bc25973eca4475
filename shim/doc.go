// Package shim puts a stdio MCP server behind the audit: it takes the place of
// the server's command in a client's configuration, starts the server as its
// child and sends every message between the two through the handler chain of
// mcp_audit, in a Caddy embedded in this process (package embedded) or in one
// that is running already.
//
//	client's stdin ─▶ Front ─POST─▶ chain ─▶ bridge ─▶ child's stdin
//	client's stdout ◀─ Front ◀─JSON, SSE─ chain ◀─ bridge ◀─ child's stdout
//
// Bytes pass unchanged in both directions, and both directions keep their
// order: the child sees the client's lines in the order they were written, and
// the client the child's.
package shim
