package policy

import (
	"errors"
	"net/netip"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// uriParts is a URI taken apart as RFC 3986 section 3 says, leniently: every
// text has a reading. Parts are as they stand in the text.
type uriParts struct {
	scheme    string
	authority string
	hasAuth   bool
	path      string
	query     string // with its ?
	fragment  string // with its #
}

func splitURI(s string) (u uriParts) {
	if i := strings.IndexByte(s, '#'); i >= 0 {
		s, u.fragment = s[:i], s[i:]
	}
	if i := strings.IndexByte(s, '?'); i >= 0 {
		s, u.query = s[:i], s[i:]
	}
	if i := schemeLen(s); i > 0 {
		u.scheme, s = s[:i], s[i+1:]
	}
	if strings.HasPrefix(s, "//") {
		u.hasAuth = true
		s = s[2:]
		end := strings.IndexByte(s, '/')
		if end < 0 {
			end = len(s)
		}
		u.authority, s = s[:end], s[end:]
	}
	u.path = s
	return u
}

// schemeLen is the length of the scheme that a text begins with, 0 if it has
// none.
func schemeLen(s string) int {
	for i := range len(s) {
		c := s[i]
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		case c == ':':
			return i
		default:
			return 0
		}
	}
	return 0
}

func (u uriParts) String() string {
	var b strings.Builder
	if u.scheme != "" {
		b.WriteString(u.scheme + ":")
	}
	if u.hasAuth {
		b.WriteString("//" + u.authority)
	}
	b.WriteString(u.path + u.query + u.fragment)
	return b.String()
}

// maxDecodings bounds how often a URI is percent-decoded. What still changes
// then has no reading.
const maxDecodings = 4

// uriForms appends to dst the other ways in which a server may read a URI: in
// the normal form of RFC 3986 section 6.2.2, and as a path that is decoded to
// the end, in which a backslash is a slash too. It reports false if it finds
// no end. An ordinary URI has no other forms and costs nothing.
func uriForms(dst []string, s string) ([]string, bool) {
	if plainURI(s) {
		return dst, true
	}
	u := splitURI(s)
	normal := u
	normal.scheme = strings.ToLower(u.scheme)
	normal.authority = lowerHost(decodeUnreserved(u.authority))
	normal.path = removeDots(decodeUnreserved(u.path), u.hasAuth)
	normal.query, normal.fragment = decodeUnreserved(u.query), decodeUnreserved(u.fragment)
	dst = appendForm(dst, s, normal.String())

	// The part behind the authority is also read as one path: a server that
	// cuts off a prefix does not know of queries.
	rest := u.path + u.query + u.fragment
	for n := 0; ; n++ {
		next := decodePercent(rest)
		if next == rest {
			break
		}
		if n == maxDecodings {
			return dst, false
		}
		rest = next
	}
	authority := lowerHost(decodePercent(u.authority))
	for _, text := range []string{rest, strings.ReplaceAll(rest, `\`, "/")} {
		loose := uriParts{scheme: normal.scheme, hasAuth: u.hasAuth, authority: authority, path: removeDots(text, u.hasAuth)}
		dst = appendForm(dst, s, loose.String())
	}
	return dst, true
}

func appendForm(dst []string, raw, form string) []string {
	if form == raw {
		return dst
	}
	for _, have := range dst {
		if have == form {
			return dst
		}
	}
	return append(dst, form)
}

// plainURI reports whether a URI is one that everybody reads alike.
func plainURI(s string) bool {
	u := splitURI(s)
	for i := range len(u.scheme) + len(u.authority) {
		c := byte(0)
		if i < len(u.scheme) {
			c = u.scheme[i]
		} else {
			c = u.authority[i-len(u.scheme)]
		}
		if c >= 'A' && c <= 'Z' || c == '%' || c >= utf8.RuneSelf {
			return false
		}
	}
	rest := s[len(s)-len(u.path)-len(u.query)-len(u.fragment):]
	for i := range len(rest) {
		switch rest[i] {
		case '%', '\\':
			return false
		case '.', '/':
			if i == 0 && rest[i] == '.' || i > 0 && rest[i-1] == '/' {
				return false
			}
		}
	}
	return !u.hasAuth || rest == "" || rest[0] == '/'
}

// lowerHost writes the host of an authority in lower case; user names keep
// theirs.
func lowerHost(authority string) string {
	i := strings.LastIndexByte(authority, '@') + 1
	return authority[:i] + strings.ToLower(authority[i:])
}

// removeDots resolves the dot segments of a path and joins repeated slashes.
// It keeps a leading and a trailing slash; a path of an authority cannot climb
// above its root.
func removeDots(p string, rooted bool) string {
	if p == "" {
		return ""
	}
	clean := p
	if rooted && !strings.HasPrefix(clean, "/") {
		clean = "/" + clean
	}
	clean = path.Clean(clean)
	last := p[strings.LastIndexByte(p, '/')+1:]
	if (last == "" || last == "." || last == "..") && !strings.HasSuffix(clean, "/") && clean != "." {
		clean += "/"
	}
	return clean
}

// decodeUnreserved decodes the percent-encodings that RFC 3986 section 2.3
// says mean the same as their character, and writes the others in upper case.
func decodeUnreserved(s string) string {
	return decode(s, func(c byte) bool {
		return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
	})
}

// decodePercent decodes every percent-encoding.
func decodePercent(s string) string { return decode(s, func(byte) bool { return true }) }

func decode(s string, want func(byte) bool) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' || i+2 >= len(s) || hex(s[i+1]) < 0 || hex(s[i+2]) < 0 {
			out = append(out, s[i])
			continue
		}
		if c := byte(hex(s[i+1])<<4 | hex(s[i+2])); want(c) {
			out = append(out, c)
		} else {
			out = append(out, strings.ToUpper(s[i:i+3])...)
		}
		i += 2
	}
	return string(out)
}

func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// Why the helpers of conditions have no answer.
var (
	errPath = errors.New("a path has a backslash or a NUL, which systems read differently")
	errURI  = errors.New("a URI can be read in more than one way")
)

// cleanPath is path.Clean for a path that every system reads alike.
func cleanPath(p string) (string, error) {
	if strings.ContainsAny(p, "\\\x00") {
		return "", errPath
	}
	return path.Clean(p), nil
}

// strictURI takes a URI apart that everybody reads alike: of valid characters,
// without a user name, and with a host that is a plain name or address.
func strictURI(s string) (u uriParts, host, port string, err error) {
	if !utf8.ValidString(s) {
		return u, "", "", errURI
	}
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f || strings.IndexByte("\\\"<>^`{|}", c) >= 0 {
			return u, "", "", errURI
		}
	}
	u = splitURI(s)
	if !u.hasAuth || u.authority == "" {
		return u, "", "", nil
	}
	host, port = u.authority, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host, port = host[:i], host[i+1:]
	}
	for _, c := range []byte(port) {
		if c < '0' || c > '9' {
			return u, "", "", errURI
		}
	}
	if host, err = plainHost(host); err != nil {
		return u, "", "", err
	}
	return u, host, port, nil
}

// plainHost is a host in lower case, without the brackets of an address and
// without the dot at the end of a full name.
func plainHost(host string) (string, error) {
	if strings.HasPrefix(host, "[") {
		address, err := netip.ParseAddr(strings.TrimSuffix(host[1:], "]"))
		if err != nil || !strings.HasSuffix(host, "]") || !address.Is6() || address.Zone() != "" {
			return "", errURI
		}
		return address.String(), nil
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" {
			return "", errURI
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", errURI
			}
		}
	}
	// Browsers read a host whose last label is a number as an IPv4 address in
	// any of its old spellings, as 0x7f.1; only the usual one is plain.
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' {
		if _, err := netip.ParseAddr(host); err != nil {
			return "", errURI
		}
	}
	return host, nil
}

// uriPath is the path of a URI, decoded and cleaned. One that still has an
// encoding after that, or an encoded slash, could be read in another way.
func uriPath(s string) (string, error) {
	u, _, _, err := strictURI(s)
	if err != nil {
		return "", err
	}
	decoded := decodePercent(u.path)
	if strings.Count(decoded, "/") != strings.Count(u.path, "/") || strings.ContainsAny(decoded, "%\\\x00") || !utf8.ValidString(decoded) {
		return "", errURI
	}
	if decoded == "" {
		return "", nil
	}
	return path.Clean(decoded), nil
}

// elicitationHost returns the host that an elicitation sends the user to; present is
// false if it names no URL. An error means that clients may read another one.
func elicitationHost(params []byte) (host string, present bool, err error) {
	var raw []byte
	seen := 0
	mcp.Members(params, func(name, value []byte) {
		switch {
		case string(name) == "url":
			raw = value
			seen++
		case strings.EqualFold(string(name), "url"):
			err = errURI
		}
	})
	if seen == 0 && err == nil {
		return "", false, nil
	}
	if err != nil || seen > 1 || raw[0] != '"' {
		return "", true, errURI
	}
	_, host, _, err = strictURI(mcp.Text(raw))
	return host, true, err
}
