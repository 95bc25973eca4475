package mcp_test

import (
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func TestMistypedMethodsAreNearOne(t *testing.T) {
	for typed, want := range map[string]string{
		"tool/call": "tools/call", "tools/calls": "tools/call", "tolos/call": "tools/call", "Tools/call": "tools/call",
		"tools/call": "", "acme/search": "", "": "", "tools/*": "", "tools/callback": "",
	} {
		if got := mcp.NearestMethod(typed); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}
