// Package redact replaces what must not be recorded. It is pure: a payload's
// JSON text in, the same text with some values spliced out of it. Nothing is
// decoded and re-encoded, so numbers, order and escapes elsewhere stay as they
// were.
//
// A value goes if its member's name matches a key pattern; whatever its type,
// it becomes "[REDACTED]". JSON inside a string is searched too. Protocol
// members that only look like secrets (progressToken, cursors) and JSON
// Schemas are left alone.
package redact

import (
	"bytes"
	"errors"
	"sync"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Config says what is redacted.
type Config struct {
	// Keys are edits of the default key patterns: "+name" or "name" adds one,
	// "-name" removes one, "fragment:name" matches anywhere in a key.
	Keys []string
	// Off turns redaction off.
	Off bool
}

// Profile is a compiled Config. It is safe for concurrent use.
type Profile struct {
	keys *keyPatterns // nil: off
}

// New checks and compiles a configuration.
func New(cfg Config) (*Profile, error) {
	if cfg.Off {
		if len(cfg.Keys) > 0 {
			return nil, errors.New("redaction is off, so its keys have no effect; remove one of the two")
		}
		return new(Profile), nil
	}
	keys, err := newKeyPatterns(cfg.Keys)
	if err != nil {
		return nil, err
	}
	return &Profile{keys: keys}, nil
}

// On reports whether anything is redacted.
func (p *Profile) On() bool { return p.keys != nil }

// MatchKey reports whether the value of a member with this decoded name goes.
func (p *Profile) MatchKey(name string) bool { return p.keys != nil && p.keys.match([]byte(name)) }

// replacement stands for a value that a key pattern matched.
const replacement = `"[REDACTED]"`

// ErrNotJSON is returned for a text that is no JSON: it cannot be redacted, so
// the caller must not record it.
var ErrNotJSON = errors.New("the text cannot be redacted, because it is not JSON")

// Redact returns src with the matching values replaced. changed is false, and
// out nil, if there are none. The cost is linear in src, and nothing is
// allocated without a match. src may break the bounds of the strict gate
// (depth, repeated names); it must be JSON otherwise.
func (p *Profile) Redact(src []byte) (out []byte, changed bool, err error) {
	if p.keys == nil || len(src) == 0 {
		return nil, false, nil
	}
	w := walkers.Get().(*walker)
	defer w.recycle()
	w.keys, w.edits = p.keys, w.edits[:0]
	if !w.walk(src, 0) {
		return nil, false, ErrNotJSON
	}
	if len(w.edits) == 0 {
		return nil, false, nil
	}
	out = make([]byte, 0, len(src)+len(w.edits)*len(replacement))
	return applyEdits(out, src, w.edits), true, nil
}

// edit replaces src[start:end].
type edit struct {
	start, end int
	text       string
}

func applyEdits(dst, src []byte, edits []edit) []byte {
	at := 0
	for _, e := range edits {
		dst = append(dst, src[at:e.start]...)
		dst = append(dst, e.text...)
		at = e.end
	}
	return append(dst, src[at:]...)
}

// maxNested bounds JSON in a string in a string.
const maxNested = 4

type walker struct {
	keys  *keyPatterns
	stack []byte // the containers that are open
	edits []edit // in order
	text  []byte // decoded names
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// keepEdits is the largest list that is kept for the next walk.
const keepEdits = 1024

func (w *walker) recycle() {
	if cap(w.edits) <= keepEdits {
		clear(w.edits)
		walkers.Put(w)
	}
}

// walk notes the edits of one JSON text. It keeps its own stack, because an
// answer may be nested deeper than any stack of calls should be. It reports
// false for a text that is no JSON.
func (w *walker) walk(src []byte, nested int) bool {
	base := len(w.stack)
	wantKey := false
	i := 0
	for i < len(src) {
		switch c := src[i]; c {
		case ' ', '\t', '\n', '\r', ':':
			i++
		case '{', '[':
			w.stack = append(w.stack, c)
			wantKey = c == '{'
			i++
		case '}', ']':
			if len(w.stack) == base {
				return false
			}
			w.stack = w.stack[:len(w.stack)-1]
			wantKey = false
			i++
		case ',':
			if len(w.stack) == base {
				return false
			}
			wantKey = w.stack[len(w.stack)-1] == '{'
			i++
		case '"':
			n, escaped, v := canon.ScanString(src[i:])
			if v != canon.None {
				return false
			}
			token := src[i : i+n]
			if !wantKey {
				if nested < maxNested && maybeJSON(token) {
					w.inside(token, i, nested)
				}
				i += n
				continue
			}
			wantKey = false
			i = skipSpace(src, i+n)
			if i >= len(src) || src[i] != ':' {
				return false
			}
			i = skipSpace(src, i+1)
			name := token[1 : n-1]
			if escaped {
				w.text, _ = canon.Unquote(w.text[:0], token)
				name = w.text
			}
			switch verdict := w.keys.verdict(name); verdict {
			case keyExempt, keyMatches:
				end := skipValue(src, i)
				if end < 0 {
					return false
				}
				if verdict == keyMatches {
					w.edits = append(w.edits, edit{i, end, replacement})
				}
				i = end
			}
		default:
			end := skipScalar(src, i)
			if end == i {
				return false
			}
			i = end
		}
	}
	return len(w.stack) == base
}

// inside redacts JSON that stands in a string. The edits are mapped back to
// the token's own spelling, so that its other bytes stay as they are.
func (w *walker) inside(token []byte, at, nested int) {
	decoded, ok := canon.Unquote(nil, token)
	if !ok || canon.Check(decoded) != canon.None {
		return
	}
	first, depth := len(w.edits), len(w.stack)
	if !w.walk(decoded, nested+1) {
		w.edits, w.stack = w.edits[:first], w.stack[:depth]
		return
	}
	raw, text := 1, 0 // matching positions in token and decoded
	advance := func(to int) int {
		for text < to {
			n, m := charLen(token[raw:])
			raw += n
			text += m
		}
		return raw
	}
	for i := range w.edits[first:] {
		e := &w.edits[first+i]
		e.start = at + advance(e.start)
		e.end = at + advance(e.end)
		quoted := canon.AppendString(nil, e.text)
		e.text = string(quoted[1 : len(quoted)-1])
	}
}

// charLen is the length of the next character of a strict string token, as
// spelled and decoded.
func charLen(b []byte) (raw, decoded int) {
	if b[0] != '\\' {
		return 1, 1
	}
	raw = 2
	if b[1] == 'u' {
		raw = 6
		if (b[2] == 'd' || b[2] == 'D') && bytes.IndexByte([]byte("89abAB"), b[3]) >= 0 {
			raw = 12
		}
	}
	var quoted [14]byte
	var buf [8]byte
	token := append(append(append(quoted[:0], '"'), b[:raw]...), '"')
	text, _ := canon.Unquote(buf[:0], token)
	return raw, len(text)
}

// maybeJSON reports whether the text of a string can be a JSON object or array
// with a member.
func maybeJSON(token []byte) bool {
	for i := 1; i < len(token)-1; i++ {
		switch token[i] {
		case ' ', '\t', '\n', '\r':
		case '\\':
			// An escaped white space may stand in front.
			if i+1 < len(token) && bytes.IndexByte([]byte("tnr"), token[i+1]) >= 0 {
				i++
				continue
			}
			return token[i+1] == 'u'
		case '{', '[':
			return true
		default:
			return false
		}
	}
	return false
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

func skipScalar(b []byte, i int) int {
	for i < len(b) && (b[i] >= '0' && b[i] <= '9' || b[i] >= 'a' && b[i] <= 'z' || b[i] == '-' || b[i] == '+' || b[i] == '.' || b[i] == 'E') {
		i++
	}
	return i
}

// skipValue returns the end of the value at i, or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	if b[i] == '"' {
		n, _, v := canon.ScanString(b[i:])
		if v != canon.None {
			return -1
		}
		return i + n
	}
	if b[i] != '{' && b[i] != '[' {
		if end := skipScalar(b, i); end > i {
			return end
		}
		return -1
	}
	for depth := 0; i < len(b); {
		switch b[i] {
		case '"':
			n, _, v := canon.ScanString(b[i:])
			if v != canon.None {
				return -1
			}
			i += n
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}
