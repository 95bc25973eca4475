//go:build mcpaudit_small

package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
)

// openEmbedded refuses: this build has no Caddy.
func openEmbedded(context.Context, *shim.Options, http.Handler) (shim.Audit, error) {
	return nil, errors.New("this build of mcp-audit-shim has no Caddy of its own: name the route of a running one with --caddy, or install the whole program")
}
