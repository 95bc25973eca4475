package caddymodule

import "net/http"

// narrowOrigin replaces the permission for pages of every origin by one for the
// page that asked, whose origin was checked: a server behind a loopback address
// that lets everybody in is what DNS rebinding looks for. Metadata is public.
func (t *tee) narrowOrigin(h http.Header) {
	const allow, credentials = "Access-Control-Allow-Origin", "Access-Control-Allow-Credentials"
	if h.Get(allow) != "*" || t.x.h.observe() || isMetadata(t.x.r) {
		return
	}
	origin := t.x.r.Header.Get("Origin")
	if origin == "" {
		// No page asked. Its preflight would have had an origin.
		return
	}
	h.Set(allow, origin)
	// With * it had no effect.
	h.Del(credentials)
	h.Add("Vary", "Origin")
}
