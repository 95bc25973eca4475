package caddymodule

import (
	"net/http"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// pageOf is the origin of the browser page that sends a request, if the
// mcp_audit of the route lets it call.
func (g *authGuard) pageOf(r *http.Request) string {
	origins := r.Header.Values("Origin")
	if len(origins) != 1 || g.app.resolveGuards() != nil {
		return ""
	}
	if mcp.CheckOrigin(r.Host, r.TLS != nil, origins, g.target.origins, localIsLoopback(r)) != "" {
		return ""
	}
	return origins[0]
}

// answerPreflight answers what a browser asks before it lets a page call. That
// question never has a credential (Fetch, section 3.3.5), so that authentication
// would end every page's calls. Nothing of it goes on.
func (g *authGuard) answerPreflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	page := g.pageOf(r)
	if page == "" {
		return false
	}
	h := w.Header()
	allowPage(h, page)
	h.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	// The names of headers that mirror a tool's arguments are not known
	// beforehand. None of them is a secret of the page's user: a page can set
	// what it likes.
	if asked := r.Header.Get("Access-Control-Request-Headers"); asked != "" {
		h.Set("Access-Control-Allow-Headers", asked)
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// allowPage lets a page read an answer.
func allowPage(h http.Header, page string) {
	h.Set("Access-Control-Allow-Origin", page)
	h.Add("Vary", "Origin")
}
