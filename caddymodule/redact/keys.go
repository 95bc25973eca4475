package redact

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// defaultKeys are the key patterns without any edit. Words are separated by
// underscores. Plurals are listed where they name secrets; "tokens" is not,
// because it nearly always counts them (max_tokens, completion_tokens).
var defaultKeys = []string{
	"password", "token", "secret", "api_key", "apikey", "passwd", "bearer", "authorization", "cookie",
	"private_key", "client_secret",
	"passwords", "secrets", "api_keys", "cookies", "private_keys",
}

// exemptKeys are protocol members that look like secrets and are none.
var exemptKeys = []string{"progressToken", "cursor", "nextCursor"}

// schemaKeys hold JSON Schemas, whose property names say nothing of values.
var schemaKeys = []string{"inputSchema", "outputSchema", "requestedSchema"}

type keyVerdict uint8

const (
	keyPasses keyVerdict = iota
	keyMatches
	keyExempt // the value is not even searched
)

// keyPatterns decides about member names. A pattern matches whole words of a
// name (dbPassword, db_password, X-Api-Key) and, since names are also written
// glued, the end of one (dbpassword, accesstoken), but not its beginning
// (secretary, tokenizer).
type keyPatterns struct {
	words     []string // "_api_key_"
	glued     []string // "apikey"
	fragments []string
	seed      maphash.Seed
	cache     [cacheSlots]atomic.Pointer[cachedKey]
}

// cacheSlots and cachedName bound the memory of remembered verdicts to about
// 100 KiB: names repeat, and deciding about one takes longer than finding it.
const (
	cacheSlots = 1024
	cachedName = 48
)

type cachedKey struct {
	name    string
	verdict keyVerdict
}

func newKeyPatterns(edits []string) (*keyPatterns, error) {
	names := slices.Clone(defaultKeys)
	k := &keyPatterns{seed: maphash.MakeSeed()}
	for _, e := range edits {
		fragment, isFragment := strings.CutPrefix(e, "fragment:")
		name := strings.Trim(normalise([]byte(strings.TrimPrefix(strings.TrimPrefix(e, "+"), "-"))), "_")
		switch {
		case isFragment && fragment != "":
			k.fragments = append(k.fragments, strings.ToLower(fragment))
		case name == "" || isFragment:
			return nil, fmt.Errorf("key pattern %q has no name; write +name, -name or fragment:name", e)
		case strings.HasPrefix(e, "-"):
			at := slices.Index(names, name)
			if at < 0 {
				return nil, fmt.Errorf("key pattern %q removes a name that is not in the list; the list is %s", e, strings.Join(names, " "))
			}
			names = slices.Delete(names, at, at+1)
		default:
			names = append(names, name)
		}
	}
	for _, n := range names {
		k.words = append(k.words, "_"+n+"_")
		k.glued = append(k.glued, strings.ReplaceAll(n, "_", ""))
	}
	return k, nil
}

func (k *keyPatterns) match(name []byte) bool { return k.verdict(name) == keyMatches }

func (k *keyPatterns) verdict(name []byte) keyVerdict {
	if len(name) > cachedName {
		return k.decide(name)
	}
	slot := &k.cache[maphash.Bytes(k.seed, name)%cacheSlots]
	if c := slot.Load(); c != nil && c.name == string(name) {
		return c.verdict
	}
	v := k.decide(name)
	slot.Store(&cachedKey{string(name), v})
	return v
}

func (k *keyPatterns) decide(name []byte) keyVerdict {
	switch {
	case slices.Contains(exemptKeys, string(name)):
		return keyPasses
	case slices.Contains(schemaKeys, string(name)):
		return keyExempt
	}
	lower := strings.ToLower(string(name))
	for _, f := range k.fragments {
		if strings.Contains(lower, f) {
			return keyMatches
		}
	}
	text := normalise(name)
	for i, w := range k.words {
		if strings.Contains(text, w) || strings.Contains(text, k.glued[i]+"_") {
			return keyMatches
		}
	}
	return keyPasses
}

// normalise splits a name into lower-case words, each between underscores:
// at separators, between lower and upper case, and around digits. Letters that
// fold to ASCII (U+017F, U+212A) count as what they fold to.
func normalise(name []byte) string {
	if bytes.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
		name = bytes.Map(func(r rune) rune {
			switch r {
			case '\u017f':
				return 's'
			case '\u212a':
				return 'k'
			}
			return r
		}, name)
	}
	out := make([]byte, 0, len(name)+8)
	out = append(out, '_')
	var last byte
	for i, c := range name {
		kind := class(c)
		switch {
		case kind == 0:
			last = 0
			if out[len(out)-1] != '_' {
				out = append(out, '_')
			}
			continue
		case last != 0 && kind != last && !(last == 'A' && kind == 'a'),
			// The last capital of a run begins the next word: APIKey.
			last == 'A' && kind == 'A' && i+1 < len(name) && class(name[i+1]) == 'a':
			out = append(out, '_')
		}
		last = kind
		if kind == 'A' {
			c += 'a' - 'A'
		}
		out = append(out, c)
	}
	if out[len(out)-1] != '_' {
		out = append(out, '_')
	}
	return string(out)
}

// class tells the kinds of characters apart between which a word may end.
func class(c byte) byte {
	switch {
	case c >= 'a' && c <= 'z', c >= utf8.RuneSelf:
		return 'a'
	case c >= 'A' && c <= 'Z':
		return 'A'
	case c >= '0' && c <= '9':
		return '0'
	}
	return 0
}
