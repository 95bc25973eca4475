//go:build !mcpaudit_small

package main

import "github.com/caddy-mcp-audit/mcp-audit/shim/embedded"

// openEmbedded audits by a Caddy in this process.
var openEmbedded = embedded.Audit
