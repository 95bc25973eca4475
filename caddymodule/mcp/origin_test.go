package mcp_test

import (
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func TestOriginsAreTheSameOrAllowed(t *testing.T) {
	allowed := []string{"https://app.example.com", "http://dev.example.com:80", "https://[2001:db8::1]:8443"}
	for _, c := range []struct {
		title, host string
		tls         bool
		origins     []string
		want        string
	}{
		{"no origin", "mcp.example.com", true, nil, ""},
		{"the same", "mcp.example.com", true, []string{"https://mcp.example.com"}, ""},
		{"the same, other case", "mcp.example.com", true, []string{"HTTPS://MCP.example.COM"}, ""},
		{"the same, default port", "mcp.example.com", true, []string{"https://mcp.example.com:443"}, ""},
		{"the same, default port of the host", "mcp.example.com:80", false, []string{"http://mcp.example.com"}, ""},
		{"the same port", "mcp.example.com:4422", false, []string{"http://mcp.example.com:4422"}, ""},
		{"another port", "mcp.example.com:4422", false, []string{"http://mcp.example.com"}, "origin"},
		{"another scheme", "mcp.example.com", true, []string{"http://mcp.example.com"}, "origin"},
		{"another host", "mcp.example.com", true, []string{"https://evil.example"}, "origin"},
		{"a longer host", "mcp.example.com", true, []string{"https://mcp.example.com.evil.example"}, "origin"},
		{"a subdomain", "mcp.example.com", true, []string{"https://a.mcp.example.com"}, "origin"},
		{"allowed", "mcp.example.com", true, []string{"https://app.example.com"}, ""},
		{"allowed, other port", "mcp.example.com", true, []string{"https://app.example.com:8443"}, "origin"},
		{"allowed, other scheme", "mcp.example.com", true, []string{"http://app.example.com"}, "origin"},
		{"allowed with a default port", "mcp.example.com", true, []string{"http://dev.example.com"}, ""},
		{"allowed IPv6", "mcp.example.com", true, []string{"https://[2001:db8::1]:8443"}, ""},
		{"null", "mcp.example.com", true, []string{"null"}, "origin"},
		{"empty", "mcp.example.com", true, []string{""}, "origin"},
		{"two", "mcp.example.com", true, []string{"https://mcp.example.com", "https://mcp.example.com"}, "origin"},
		{"a list", "mcp.example.com", true, []string{"https://mcp.example.com, https://evil.example"}, "origin"},
		{"user info", "mcp.example.com", true, []string{"https://mcp.example.com@evil.example"}, "origin"},
		{"with a path", "mcp.example.com", true, []string{"https://mcp.example.com/x"}, "origin"},
		{"no scheme", "mcp.example.com", true, []string{"//mcp.example.com"}, "origin"},
		{"an extension", "mcp.example.com", true, []string{"chrome-extension://abc"}, "origin"},
	} {
		if got := mcp.CheckOrigin(c.host, c.tls, c.origins, allowed, false); got != c.want {
			t.Errorf("%s: %q, want %q", c.title, got, c.want)
		}
	}
}

func TestALoopbackListenerServesOnlyItsOwnNames(t *testing.T) {
	allowed := []string{"https://app.example.com"}
	for host, want := range map[string]string{
		"localhost": "", "localhost:4422": "", "LOCALHOST:4422": "", "mcp.localhost:4422": "", "127.0.0.1:4422": "", "127.8.9.1": "",
		"[::1]:4422": "", "[::1]": "", "app.example.com": "", "app.example.com:4422": "",
		"evil.example": "host", "evil.example:4422": "host", "localhost.evil.example": "host", "127.0.0.1.evil.example": "host",
		"0.0.0.0:4422": "host", "10.0.0.1": "host", "": "host", "notlocalhost": "host",
	} {
		if got := mcp.CheckOrigin(host, false, nil, allowed, true); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
		if got := mcp.CheckOrigin(host, false, nil, allowed, false); got != "" {
			t.Errorf("%q on another listener: %q", host, got)
		}
	}
	// A page whose name was rebound to the loopback is of its own origin.
	if got := mcp.CheckOrigin("evil.example", false, []string{"http://evil.example"}, nil, true); got != "host" {
		t.Errorf("rebound name: %q", got)
	}
	if got := mcp.CheckOrigin("localhost:4422", false, []string{"http://evil.example"}, nil, true); got != "origin" {
		t.Errorf("foreign page: %q", got)
	}
}

func TestValidOrigins(t *testing.T) {
	for origin, want := range map[string]bool{
		"https://app.example.com": true, "http://localhost:3000": true, "https://app.example.com/": true,
		"app.example.com": false, "*": false, "https://app.example.com/x": false, "https://": false, "null": false, "": false,
		"https://user@app.example.com": false, "https://app.example.com?x": false,
	} {
		if got := mcp.ValidOrigin(origin); got != want {
			t.Errorf("%q: %v, want %v", origin, got, want)
		}
	}
}
