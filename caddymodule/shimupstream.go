package caddymodule

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
)

func init() {
	caddy.RegisterModule(ShimUpstreams{})
}

// ShimUpstreams leads a request of `mcp-audit-shim --caddy` back to the shim
// that sent it, which has the MCP server as its child. `mcp_audit` must stand
// before `reverse_proxy` in the same route: it takes the shim's capability off
// the request.
//
// A request without a capability, or with one whose shim does not listen, has
// no upstream and is answered with 503. Do not configure other upstreams
// beside this: reverse_proxy would fall back to them.
//
//	reverse_proxy {
//		dynamic mcp_shim
//	}
type ShimUpstreams struct {
	// The folder in which shims listen. It must belong to the user that runs
	// Caddy, or Caddy must run as root, and nobody else may enter it. Default:
	// `mcp-audit` in `$XDG_RUNTIME_DIR`, else `mcp-audit-<uid>` in the
	// directory for temporary files.
	RuntimeDir string `json:"runtime_dir,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (ShimUpstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.upstreams.mcp_shim",
		New: func() caddy.Module { return new(ShimUpstreams) },
	}
}

// Provision resolves the folder. It need not exist yet: the first shim makes it.
func (u *ShimUpstreams) Provision(caddy.Context) error {
	dir, err := caddy.NewReplacer().ReplaceOrErr(u.RuntimeDir, true, true)
	if err != nil {
		return fmt.Errorf("mcp_shim: runtime_dir: %w; set it, or remove the option", err)
	}
	if dir == "" {
		dir = capability.DefaultDir()
	}
	if u.RuntimeDir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("mcp_shim: runtime_dir: %w", err)
	}
	return nil
}

// GetUpstreams returns the socket of the shim that the request's capability
// names, and an error if it may not be used.
func (u *ShimUpstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	token, _ := caddyhttp.GetVar(r.Context(), capabilityVar).(string)
	if token == "" {
		return nil, errors.New("mcp_shim: the request carries no shim capability; only mcp-audit-shim --caddy may use this route, and mcp_audit must stand before reverse_proxy in it")
	}
	path, err := capability.SocketPath(u.RuntimeDir, token)
	if err == nil {
		err = capability.CheckSocket(path)
	}
	if err != nil {
		return nil, fmt.Errorf("mcp_shim: %w", err)
	}
	return []*reverseproxy.Upstream{{Dial: "unix/" + path}}, nil
}

// UnmarshalCaddyfile sets up the module from Caddyfile tokens. Syntax:
//
//	dynamic mcp_shim {
//		runtime_dir <folder>
//	}
func (u *ShimUpstreams) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the module's name
	if d.NextArg() {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch d.Val() {
		case "runtime_dir":
			if u.RuntimeDir != "" {
				return d.Err("duplicate subdirective \"runtime_dir\"")
			}
			if !d.AllArgs(&u.RuntimeDir) {
				return d.ArgErr()
			}
			if u.RuntimeDir == "" {
				return d.Err("runtime_dir is empty; give a folder, or remove the option")
			}
		default:
			return d.Errf("unrecognized subdirective %q", d.Val())
		}
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*ShimUpstreams)(nil)
	_ reverseproxy.UpstreamSource = (*ShimUpstreams)(nil)
	_ caddyfile.Unmarshaler       = (*ShimUpstreams)(nil)
)
