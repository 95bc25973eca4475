package mcp

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// CheckOrigin decides whether a browser page may call: the specification
// demands it of every revision, against DNS rebinding. It returns "" or the
// reason of the refusal, one word.
//
// A request without an Origin passes the first check; one Origin must be the
// request's own or be allowed; "null" and a second one are refused. On a
// loopback listener the Host must name the loopback too.
func CheckOrigin(host string, tls bool, origins, allowed []string, loopback bool) string {
	if loopback && !loopbackHost(host) && !allowsHost(allowed, host) {
		return "host"
	}
	switch len(origins) {
	case 0:
		return ""
	case 1:
	default:
		return "origin"
	}
	origin, ok := normalOrigin(origins[0])
	if !ok {
		return "origin"
	}
	scheme := "http"
	if tls {
		scheme = "https"
	}
	if own, ok := normalOrigin(scheme + "://" + host); ok && origin == own {
		return ""
	}
	for _, a := range allowed {
		if a, ok := normalOrigin(a); ok && a == origin {
			return ""
		}
	}
	return "origin"
}

// normalOrigin is scheme and authority in lower case without a default port.
func normalOrigin(origin string) (string, bool) {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	scheme, host, port := strings.ToLower(u.Scheme), strings.ToLower(u.Hostname()), u.Port()
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		port = ""
	}
	if port != "" {
		return scheme + "://" + net.JoinHostPort(host, port), true
	}
	return scheme + "://" + host, true
}

// ValidOrigin reports whether an allowed origin is scheme and authority.
func ValidOrigin(origin string) bool {
	_, ok := normalOrigin(origin)
	return ok
}

func hostOnly(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.Trim(host, "[]")
}

func loopbackHost(host string) bool {
	h := strings.ToLower(hostOnly(host))
	if h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(h)
	return err == nil && addr.IsLoopback()
}

// allowsHost reports whether an allowed origin has this host: who lets a page
// of a name in also serves that name.
func allowsHost(allowed []string, host string) bool {
	for _, a := range allowed {
		if u, err := url.Parse(a); err == nil && strings.EqualFold(u.Hostname(), hostOnly(host)) {
			return true
		}
	}
	return false
}

// SameOrigin reports whether an address has the origin of own, or the same one
// over TLS: in front of own there may be a proxy that ends it.
func SameOrigin(own, address *url.URL) bool {
	a, okA := normalOrigin(own.Scheme + "://" + own.Host)
	b, okB := normalOrigin(address.Scheme + "://" + address.Host)
	if !okA || !okB || address.User != nil {
		return false
	}
	if a == b {
		return true
	}
	secure, ok := normalOrigin("https://" + own.Host)
	return ok && b == secure
}
