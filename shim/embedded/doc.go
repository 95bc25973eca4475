// Package embedded runs a Caddy in the shim's own process, without a network:
// the zero-configuration set-up. The route is the same
// handler chain as in any other Caddy, mcp_audit before reverse_proxy; only its
// two ends, the client's requests and the server behind it, are this process.
package embedded
