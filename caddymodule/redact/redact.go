// Package redact replaces the values of members that look like secrets by
// [REDACTED]. It is pure: no I/O, no Caddy, no logging.
//
// It splices: the bytes of each matched value are replaced in the original
// text, and every other byte stays as it came, so that numbers, the order of
// members, white space and escapes survive. Nothing is decoded and encoded
// again. The same holds for JSON text inside strings, whose matched values are
// replaced in their escaped spelling.
//
// What matches is said in keys.go and match.go, what is exempt in marks.go.
package redact

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// Placeholder is the text that stands for a removed value. The value becomes
// this JSON string whatever its type was.
const Placeholder = "[REDACTED]"

// Config selects what is redacted. The zero Config redacts the members that
// DefaultKeys names.
type Config struct {
	// Keys edits the list of DefaultKeys, in order:
	//
	//   - "+name" or "name" adds a pattern. One of five letters or more is also
	//     found inside words that are glued together.
	//   - "-name" takes a pattern off the list. A name that is not on the list
	//     becomes an exception: a key of exactly this name, in any spelling
	//     (max_tokens, maxTokens, MAX-TOKENS), passes whatever else matches.
	//   - "fragment:name" adds a text that matches anywhere in a key, without
	//     regard to words.
	Keys []string
	// Detect names what is found by how it looks, see DetectWords: groups, single
	// kinds, and either with a minus to take it out again. nil: DefaultDetect.
	Detect []string
	// Patterns are kinds of the operator's own.
	Patterns []Pattern
	// Paths are JSON paths in a message, such as $.params.arguments.pin, of values
	// that go whatever they are.
	Paths []string
	// Tag, if not nil, is a key with which a placeholder gets a tag that is equal
	// for equal values, [REDACTED:card#6c1d9f2e0b4a], and tells nothing else of
	// them to whoever does not have the key.
	Tag []byte
	// Off makes a profile that changes nothing. It excludes all others.
	Off bool
}

// Profile is a compiled Config. It is immutable and safe for concurrent use.
type Profile struct {
	off        bool
	patterns   []pattern
	exceptions map[string]bool // by folded text
	filter     automaton
	detects    kind
	custom     []customPattern
	paths      paths
	tag        []byte
	scanners   sync.Pool // of *scanner
}

// New compiles a Config. An edit that names nothing is an error that quotes it,
// and so are edits of a profile that is off.
func New(cfg Config) (*Profile, error) {
	if cfg.Off && (len(cfg.Keys) > 0 || len(cfg.Detect) > 0 || len(cfg.Patterns) > 0 || len(cfg.Paths) > 0) {
		return nil, errors.New("redaction is off, so its other options have no effect; remove one of the two")
	}
	list, err := editKeys(cfg.Keys)
	if err != nil {
		return nil, err
	}
	p := &Profile{off: cfg.Off, patterns: list.patterns, exceptions: list.exceptions}
	p.filter = newAutomaton(p.patterns)
	if p.off {
		return p, nil
	}
	if p.detects, err = parseDetect(cfg.Detect); err != nil {
		return nil, err
	}
	if p.custom, err = compilePatterns(cfg.Patterns); err != nil {
		return nil, err
	}
	for _, text := range cfg.Paths {
		if err := p.paths.parse(text); err != nil {
			return nil, err
		}
	}
	p.tag = cfg.Tag
	return p, nil
}

// looks reports whether anything is found by how it looks.
func (p *Profile) looks() bool { return p.detects != 0 || len(p.custom) > 0 }

// On reports whether the profile redacts.
func (p *Profile) On() bool { return !p.off }

// ErrNotJSON is what every error of Redact wraps: the text is not JSON that
// could be read to its end, so that nothing of it is known to be harmless and
// the caller must withhold all of it.
var ErrNotJSON = errors.New("the payload is not valid JSON and must be withheld")

// Redact returns src with the value of each matching member replaced. If
// nothing matches, out is nil and changed false, and nothing is allocated. A
// value that already is the placeholder counts as unchanged, so that redacting
// twice changes nothing more.
//
// src is one JSON value, best the whole params, result or error of a message:
// the exemptions of protocol members depend on where they stand. Neither depth
// nor the number of members is limited, because such payloads are recorded as
// they came and need redaction all the same; duplicate names are redacted each.
// The cost is linear in len(src) but for JSON in strings, which is read once
// for each level of nesting; as a level doubles the escapes of those inside,
// n bytes hold fewer than log2 n levels.
//
// An error (see ErrNotJSON) names the place and never quotes the text. out may
// be longer than src.
func (p *Profile) Redact(src []byte) (out []byte, changed bool, err error) {
	return p.Member("", src)
}

// Member is Redact for the value of a message's member, params, result or error,
// to which JSON paths refer.
func (p *Profile) Member(member string, src []byte) (out []byte, changed bool, err error) {
	out, _, err = p.find(member, src, false)
	return out, out != nil, err
}

// Found is a value that is replaced, and by what. Of one inside a string, the
// range is in the text of src all the same.
type Found struct {
	Start, End int
	With       string
}

// Find is Member that tells what is replaced.
func (p *Profile) Find(member string, src []byte) (out []byte, found []Found, err error) {
	return p.find(member, src, true)
}

func (p *Profile) find(member string, src []byte, tell bool) (out []byte, found []Found, err error) {
	if p.off {
		return nil, nil, nil
	}
	if !utf8.Valid(src) {
		return nil, nil, fmt.Errorf("redact: invalid UTF-8: %w", ErrNotJSON)
	}
	s, _ := p.scanners.Get().(*scanner)
	if s == nil {
		s = &scanner{p: p}
	}
	defer p.release(s)
	t := pass{s: s, level: s.level(0), text: src, cover: none}
	t.space()
	if len(p.paths.roots) > 0 {
		var all bool
		if t.states, all = p.paths.enter(p.paths.begin(), []byte(member), 0); all {
			t.cover, t.coverDepth = t.i, 0
		}
	}
	ok := t.value(0)
	t.space()
	if !ok || t.i < len(src) {
		return nil, nil, fmt.Errorf("redact: byte %d breaks the JSON grammar: %w", t.i, ErrNotJSON)
	}
	if len(t.level.edits) == 0 {
		return nil, nil, nil
	}
	t.level.arrangeEdits()
	if tell {
		for _, e := range t.level.edits {
			found = append(found, Found{e.start, e.end, e.with})
		}
	}
	return splice(src, t.level.edits), found, nil
}

// MatchKey reports whether the value of a member with this decoded name is
// replaced, wherever it stands and whatever its type: the exemptions that
// depend on the place or the value are not applied.
func (p *Profile) MatchKey(decoded string) bool {
	return !p.off && p.judge([]byte(decoded)) != passes
}

// Text is Redact for a plain text, such as a name or a reason.
func (p *Profile) Text(text string) string {
	if p.off || !p.looks() || len(text) < shortestFound {
		return text
	}
	spans := p.detect(nil, []byte(text))
	if len(spans) == 0 {
		return text
	}
	var out strings.Builder
	done := 0
	for _, s := range spans {
		out.WriteString(text[done:s.start])
		out.WriteString(p.placeholder(s.kind, []byte(text[s.start:s.end])))
		done = s.end
	}
	out.WriteString(text[done:])
	return out.String()
}

// placeholder is the text that stands for a value of a kind; a match by name or
// path has none.
func (p *Profile) placeholder(kind string, value []byte) string {
	if kind == "" && p.tag == nil {
		return Placeholder
	}
	text := strings.TrimSuffix(Placeholder, "]")
	if kind != "" {
		text += ":" + kind
	}
	if p.tag != nil {
		h := hmac.New(sha256.New, p.tag)
		h.Write(value)
		text += "#" + hex.EncodeToString(h.Sum(nil)[:6])
	}
	return text + "]"
}

var redactedText = regexp.MustCompile(`^\[REDACTED(:[a-z][a-z0-9_]*)?(#[0-9a-f]{12})?\]$`)

// isRedacted reports whether a text is a placeholder.
func isRedacted(text []byte) bool {
	return len(text) >= len(Placeholder) && len(text) < 96 && text[0] == '[' && redactedText.Match(text)
}
