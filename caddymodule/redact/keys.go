package redact

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultKeys returns the patterns of a profile without edits.
func DefaultKeys() []string {
	return []string{
		"password", "token", "secret", "api_key", "apikey", "passwd",
		"bearer", "authorization", "cookie", "private_key", "client_secret",
	}
}

// pattern is one name to look for, in folded form.
type pattern struct {
	folded
	fragment bool
}

// keyList is the list of patterns while it is edited.
type keyList struct {
	patterns   []pattern
	exceptions map[string]bool
}

const fragmentPrefix = "fragment:"

// editKeys applies edits to the default list.
func editKeys(edits []string) (*keyList, error) {
	l := &keyList{exceptions: map[string]bool{}}
	for _, name := range DefaultKeys() {
		l.add(pattern{folded: foldName(name)})
	}
	for _, e := range edits {
		name, remove := strings.CutPrefix(e, "-")
		if !remove {
			name = strings.TrimPrefix(e, "+")
		}
		name, fragment := strings.CutPrefix(name, fragmentPrefix)
		pat := pattern{folded: foldName(name), fragment: fragment}
		switch {
		case len(pat.text) == 0:
			return nil, fmt.Errorf("key pattern %q names nothing; write name, +name, -name or %sname with at least one letter or digit", e, fragmentPrefix)
		case !remove:
			delete(l.exceptions, string(pat.text))
			l.add(pat)
		case l.remove(pat):
		case fragment:
			return nil, fmt.Errorf("key pattern %q removes a fragment that was not added before; leave it out", e)
		default:
			l.exceptions[string(pat.text)] = true
		}
	}
	return l, nil
}

func (l *keyList) find(pat pattern) int {
	return slices.IndexFunc(l.patterns, func(p pattern) bool {
		return p.fragment == pat.fragment && string(p.text) == string(pat.text)
	})
}

// add puts pat on the list. Two spellings of one name are one pattern, which
// may be divided where either is: api_key finds apikey as well.
func (l *keyList) add(pat pattern) {
	i := l.find(pat)
	if i < 0 {
		l.patterns = append(l.patterns, pat)
		return
	}
	for k, begins := range pat.begins {
		l.patterns[i].begins[k] = l.patterns[i].begins[k] || begins
	}
}

func (l *keyList) remove(pat pattern) bool {
	i := l.find(pat)
	if i >= 0 {
		l.patterns = slices.Delete(l.patterns, i, i+1)
	}
	return i >= 0
}
