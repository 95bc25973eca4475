package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("authentication", parseAuthentication)
	httpcaddyfile.RegisterDirectiveOrder("authentication", httpcaddyfile.Before, "basic_auth")
}

// parseAuthentication parses Caddy's `authentication` handler, for which Caddy
// itself has no directive. Syntax:
//
//	authentication [<matcher>] {
//		<provider> …
//	}
//
// The providers of this module are mcp_oidc and mcp_bearer; others may stand
// here that can be written in a Caddyfile. A request passes that one of them
// accepts.
func parseAuthentication(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	d := h.Dispenser
	d.Next()
	if err := none(d); err != nil {
		return nil, err
	}
	providers := make(caddy.ModuleMap)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		if _, twice := providers[name]; twice {
			return nil, d.Errf("%s is given twice; keep one", name)
		}
		provider, err := caddyfile.UnmarshalModule(d, "http.authentication.providers."+name)
		if err != nil {
			return nil, err
		}
		providers[name] = caddyconfig.JSON(provider, nil)
	}
	if len(providers) == 0 {
		return nil, d.Err("authentication needs a provider, such as mcp_oidc or mcp_bearer")
	}
	return caddyauth.Authentication{ProvidersRaw: providers}, nil
}
