package caddymodule

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

// metadataMatcher lets requests for the metadata of a guard's resource into the
// route of the server that has the guard, whatever else that route matches.
type metadataMatcher struct{ g *authGuard }

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m metadataMatcher) MatchWithError(r *http.Request) (bool, error) {
	_, found := m.g.resourceFor(r)
	return found, nil
}

// metadataHandler serves the metadata of a guard's resource.
type metadataHandler struct {
	g    *authGuard
	name string
}

// CaddyModule names the handler that stands behind this one: Caddy's metrics
// know a route by its first handler.
func (h metadataHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: caddy.ModuleID("http.handlers." + h.name)}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h metadataHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	resource, found := h.g.resourceFor(r)
	if !found {
		return next.ServeHTTP(w, r)
	}
	// Public, so that pages may read it, too.
	w.Header().Set("Access-Control-Allow-Origin", "*")
	if r.Method == http.MethodOptions {
		w.Header().Set("Access-Control-Allow-Methods", "GET, HEAD")
		w.Header().Set("Access-Control-Allow-Headers", "*")
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	m := token.Metadata{Resource: resource.Address()}
	for _, p := range h.g.providers {
		m.AuthorizationServers = union(m.AuthorizationServers, p.options.AuthorizationServers)
		m.ScopesSupported = union(m.ScopesSupported, p.options.RequireScopes, p.options.ScopesSupported)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache")
	if r.Method == http.MethodHead {
		return nil
	}
	_, err := w.Write(m.JSON())
	return err
}

func union(list []string, more ...[]string) []string {
	for _, values := range more {
		for _, v := range values {
			if !slices.Contains(list, v) {
				list = append(list, v)
			}
		}
	}
	return list
}

// resourceFor is the resource whose metadata a request asks for, if the guard
// protects it.
func (g *authGuard) resourceFor(r *http.Request) (token.Resource, bool) {
	rest, found := strings.CutPrefix(r.URL.Path, token.WellKnown)
	if !found || rest != "" && rest[0] != '/' {
		return token.Resource{}, false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		return token.Resource{}, false
	}
	escaped := strings.TrimPrefix(r.URL.EscapedPath(), token.WellKnown)
	for _, p := range g.providers {
		if p.resource != nil && p.resource.MetadataPath() == token.WellKnown+escaped {
			return *p.resource, true
		}
	}
	if !g.leadsTo(r, http.MethodPost, escaped) && !g.leadsTo(r, http.MethodGet, escaped) {
		return token.Resource{}, false
	}
	return g.resourceAt(r, escaped), true
}

// resourceAt is the resource of a path: as configured, or with the origin by
// which the client knows this server.
func (g *authGuard) resourceAt(r *http.Request, path string) token.Resource {
	for _, p := range g.providers {
		if p.resource != nil {
			return *p.resource
		}
	}
	return token.Resource{Origin: publicOrigin(r), Path: path}
}

// leadsTo reports whether a request to a path would come to the guard: by the
// matchers on the way, and the rewrites before them.
func (g *authGuard) leadsTo(r *http.Request, method, escaped string) bool {
	if escaped == "" {
		escaped = "/"
	}
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return false
	}
	there := r.Clone(r.Context())
	there.Method, there.Body, there.ContentLength = method, http.NoBody, 0
	there.URL.Path, there.URL.RawPath = path, escaped
	there.RequestURI = there.URL.RequestURI()
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	repl := caddy.NewReplacer()
	there = caddyhttp.PrepareRequest(there, repl, nil, server)
	for _, step := range g.way {
		for _, route := range step.before {
			rewriteBy(route, there, repl)
		}
		if matches, err := step.match.AnyMatchWithError(there); err != nil || !matches {
			return false
		}
	}
	return true
}

// rewriteBy does to a request what the rewrites of a route do.
func rewriteBy(route caddyhttp.Route, r *http.Request, repl *caddy.Replacer) {
	for _, h := range route.Handlers {
		re, ok := h.(*rewrite.Rewrite)
		if !ok {
			continue
		}
		if matches, err := route.MatcherSets.AnyMatchWithError(r); err == nil && matches {
			re.Rewrite(r, repl)
		}
	}
}

// publicOrigin is the scheme and host by which the client knows this server.
// Only a trusted proxy may say that it is another than those of the request. If
// there is no host that could stand in an address, it is empty.
func publicOrigin(r *http.Request) string {
	scheme, host := "http", r.Host
	if r.TLS != nil {
		scheme = "https"
	}
	if trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool); trusted {
		if proto := lastOf(r.Header, "X-Forwarded-Proto"); proto == "http" || proto == "https" {
			scheme = proto
		}
		if forwarded := lastOf(r.Header, "X-Forwarded-Host"); forwarded != "" {
			host = forwarded
			host = withPort(host, lastOf(r.Header, "X-Forwarded-Port"), scheme)
		}
	}
	for _, c := range []byte(host) {
		if !strings.ContainsRune("-._:[]", rune(c)) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	if host == "" {
		return ""
	}
	return scheme + "://" + host
}

// withPort adds a port to a host that has none, unless it is that of the scheme.
func withPort(host, port, scheme string) string {
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return host
	}
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return host
	}
	return host + ":" + port
}

// lastOf is what the nearest proxy says of a header that each may add to.
func lastOf(h http.Header, name string) string {
	values := h.Values(name)
	if len(values) == 0 {
		return ""
	}
	value := values[len(values)-1]
	return strings.TrimSpace(value[strings.LastIndexByte(value, ',')+1:])
}

// originalPath is the path that the client asked for, before rewrites.
func originalPath(r *http.Request) string {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		r = &original
	}
	if path := r.URL.EscapedPath(); path != "/" {
		return path
	}
	return ""
}
