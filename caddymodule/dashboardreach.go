package caddymodule

import (
	"net"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	"go.uber.org/zap"
)

// warnOfReach warns of dashboards that other machines can reach without having
// to say who they are.
func (a *App) warnOfReach(ctx caddy.Context) {
	if len(a.dashboards) == 0 {
		return
	}
	module, err := ctx.AppIfConfigured("http")
	if err != nil {
		return
	}
	app, ok := module.(*caddyhttp.App)
	if !ok {
		return
	}
	for name, server := range app.Servers {
		for _, address := range server.Listen {
			if isLoopbackAddress(address) {
				continue
			}
			for _, d := range unguarded(server.Routes, false) {
				d.logger.Warn("the dashboard can be reached from other machines without authentication; give it a token, put an authentication handler in front of it, or bind its site to a loopback address",
					zap.String("server", name), zap.String("address", address), zap.String("log", d.settings.name))
			}
			break
		}
	}
}

// isLoopbackAddress reports whether only this machine reaches an address.
func isLoopbackAddress(address string) bool {
	parsed, err := caddy.ParseNetworkAddress(address)
	if err != nil {
		return false
	}
	if parsed.IsUnixNetwork() || parsed.IsFdNetwork() {
		return true
	}
	host := strings.ToLower(parsed.Host)
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}

// unguarded finds the dashboards in routes that have no token, and no
// authentication in front of them.
func unguarded(routes caddyhttp.RouteList, guarded bool) (found []*Dashboard) {
	for i := range routes {
		// What a route's matcher lets by may not be what the next one's does.
		within := guarded
		for _, handler := range routes[i].Handlers {
			switch h := handler.(type) {
			case *caddyauth.Authentication:
				within = true
			case caddyauth.Authentication:
				within = true
			case *caddyhttp.Subroute:
				found = append(found, unguarded(h.Routes, within)...)
			case *Dashboard:
				if !within && h.token == "" {
					found = append(found, h)
				}
			}
		}
		if within && len(routes[i].MatcherSets) == 0 {
			guarded = true
		}
	}
	return found
}
