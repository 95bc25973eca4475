package embedded

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// transport is the module by which reverse_proxy reaches the bridge. It exists
// only in the shim's process: a server that anyone could configure with it
// would have nothing behind it.
type transport struct{ next http.RoundTripper }

// newTransport returns the module of one bridge, to be registered.
func newTransport(handler http.Handler) transport {
	return transport{next: bridge.Transport{Handler: handler}}
}

// CaddyModule returns the Caddy module information.
func (t transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.mcp_shim",
		New: func() caddy.Module { return &transport{next: t.next} },
	}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) { return t.next.RoundTrip(r) }
