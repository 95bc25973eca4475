package token

import (
	"net/http"
	"strings"
)

// FromHeader takes the bearer token out of a request's header: from one
// Authorization header and from nowhere else (RFC 6750, section 2.1). A token in
// the address or the body is none.
func FromHeader(h http.Header) (string, Reason) {
	values := h.Values("Authorization")
	switch len(values) {
	case 0:
		return "", Missing
	case 1:
	default:
		return "", Repeated
	}
	scheme, raw, _ := strings.Cut(values[0], " ")
	switch {
	case strings.EqualFold(scheme, "DPoP"):
		return "", Bound // RFC 9449
	case !strings.EqualFold(scheme, "Bearer"):
		return "", Missing
	}
	raw = strings.Trim(raw, " ")
	if len(raw) > MaxLength {
		return "", TooLarge
	}
	if !isToken68(raw) {
		return "", Malformed
	}
	return raw, notRefused
}

// isToken68 reports whether a text has the form of a bearer token.
func isToken68(text string) bool {
	body := strings.TrimRight(text, "=")
	if body == "" {
		return false
	}
	for _, c := range []byte(body) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~+/", c) >= 0:
		default:
			return false
		}
	}
	return true
}
