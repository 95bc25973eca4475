package redact

import (
	"net/url"
	"strings"
)

// URI returns an address without its secrets: the user information, and the
// value of each parameter, in query, fragment or path, whose name a key pattern
// matches. Whatever
// else it holds stays as it is written. A text without a scheme and authority
// is returned unchanged.
func (p *Profile) URI(address string) string {
	if p.off {
		return address
	}
	var out strings.Builder
	done := 0
	p.secretParts(address, func(start, end int) {
		out.WriteString(address[done:start])
		out.WriteString(p.placeholder("", []byte(address[start:end])))
		done = end
	})
	if done == 0 {
		return p.Text(address)
	}
	out.WriteString(address[done:])
	return p.Text(out.String())
}

// secretParts calls each with the ranges of an address that must go, in order.
func (p *Profile) secretParts(address string, each func(start, end int)) {
	_, rest, found := strings.Cut(address, "://")
	if !found {
		return
	}
	begin := len(address) - len(rest)
	end := len(address)
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		end = begin + i
	}
	if i := strings.LastIndexByte(address[begin:end], '@'); i > 0 && !isRedacted([]byte(address[begin:begin+i])) {
		each(begin, begin+i)
	}
	for at := end; at < len(address); {
		stop := len(address)
		if i := strings.IndexAny(address[at:], "?&;#"); i >= 0 {
			stop = at + i
		}
		name, value, _ := strings.Cut(address[at:stop], "=")
		if decoded, err := url.QueryUnescape(name); err == nil {
			name = decoded
		}
		if value != "" && !isRedacted([]byte(value)) && p.MatchKey(name) {
			each(stop-len(value), stop)
		}
		at = stop + 1
	}
}

// isAddress reports whether the protocol, or common use, has an address in the
// member with this decoded name.
func isAddress(name []byte) bool {
	switch string(name) {
	case "uri", "url", "uriTemplate", "href":
		return true
	}
	return false
}

// address takes the secrets out of the string text[start:end], which is an
// address. One that is written with escapes goes as a whole.
// It reports whether it had any.
func (t *pass) address(start, end int, escaped bool) (found bool) {
	if escaped {
		decoded := string(decode(nil, t.text[start:end]))
		secret := false
		t.s.p.secretParts(decoded, func(int, int) { secret = true })
		if secret {
			t.replace(start-1, end+1)
		}
		return secret
	}
	t.s.p.secretParts(string(t.text[start:end]), func(from, to int) {
		found = true
		t.level.edits = append(t.level.edits, edit{
			start: start + from, end: start + to, level: t.level.n, bare: true, with: t.s.p.placeholder("", t.text[start+from:start+to]),
		})
	})
	if found {
		// Other parts may hold what is found by its looks.
		t.found(start, end, inData)
		t.level.unordered = true
	}
	return found
}
