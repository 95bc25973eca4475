package cli

import "github.com/caddy-mcp-audit/mcp-audit/verify/release"

// Version is the product's version.
func Version() string { return release.Version() }
