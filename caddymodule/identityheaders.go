package caddymodule

import (
	"net/http"
	"strings"
)

// identityHeaders are the headers in which proxies tell a server who the user
// is, in lower case. A client that sends one would be believed.
var identityHeaders = map[string]bool{
	"client-cert": true, "client-cert-chain": true, // RFC 9440
	"x-anonymous-consumer": true,
	"x-email":              true,
	"x-groups":             true,
	"x-id-token":           true,
	"x-jwt-payload":        true,
	"x-original-user":      true,
	"x-principal":          true,
	"x-proxy-user":         true,
	"x-real-user":          true,
	"x-roles":              true,
	"x-ssl-cert":           true,
	"x-user":               true,
	"x-user-email":         true,
	"x-user-groups":        true,
	"x-user-id":            true,
	"x-user-name":          true,
	"x-user-roles":         true,
	"x-userid":             true,
	"x-userinfo":           true,
	"x-username":           true,
}

// identityPrefixes are the beginnings of more of them: of Authelia, oauth2-proxy,
// Traefik, Envoy, Kubernetes, Kong, the access proxies of clouds, and others.
var identityPrefixes = []string{
	"cf-access-",
	"impersonate-",
	"remote-",
	"ssl-client-",
	"tailscale-user-",
	"x-amzn-mtls-clientcert",
	"x-amzn-oidc-",
	"x-apigateway-api-userinfo",
	"x-auth-",
	"x-authenticated-",
	"x-authentik-",
	"x-client-cert",
	"x-client-dn",
	"x-consumer-",
	"x-credential-",
	"x-endpoint-api-userinfo",
	"x-forwarded-access-token",
	"x-forwarded-client-cert",
	"x-forwarded-email",
	"x-forwarded-groups",
	"x-forwarded-id-token",
	"x-forwarded-preferred-username",
	"x-forwarded-tls-client-cert",
	"x-forwarded-user",
	"x-goog-authenticated-user-",
	"x-goog-iap-",
	"x-ms-client-principal",
	"x-ms-token-",
	"x-pomerium-",
	"x-remote-",
	"x-ssl-client-",
	"x-token-subject",
	"x-token-user-",
	"x-vouch-",
	"x-webauth-",
}

// longestIdentityHeader is longer than every name and prefix of the lists.
const longestIdentityHeader = 48

// isIdentityHeader reports whether servers may take a header for who the user
// is. Many of them take `_` for `-`.
func isIdentityHeader(name string) bool {
	var folded [longestIdentityHeader]byte
	n := min(len(name), len(folded))
	for i := range n {
		c := name[i]
		switch {
		case c == '_':
			c = '-'
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		}
		folded[i] = c
	}
	if n == len(name) && identityHeaders[string(folded[:n])] {
		return true
	}
	for _, prefix := range identityPrefixes {
		if n >= len(prefix) && string(folded[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// stripIdentity takes off the headers by which a client could claim to be
// somebody, but for those that the configuration names.
func (h *Handler) stripIdentity(header http.Header) {
	for name := range header {
		if isIdentityHeader(name) && !h.keptHeaders[name] {
			delete(header, name)
		}
	}
	if !h.keptHeaders["Authorization"] {
		header.Del("Authorization")
	}
}

// canForward reports whether a header may be named in forward_headers.
func canForward(name string) bool {
	return name == "Authorization" || isIdentityHeader(name) && !strings.Contains(name, "_")
}
