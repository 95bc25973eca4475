// Package clients knows where MCP clients keep the servers that they start, and
// edits such a file so that a server is audited, or is not any more. Comments
// and the layout of what is not edited stay.
package clients
