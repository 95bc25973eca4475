package policy

import (
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// pattern is a compiled pattern of a selector, matched against a decoded value
// byte for byte: nothing is folded, trimmed or normalised, so that names that
// only look alike are different names.
//
//   - alone: any value
//   - any run of characters, also none; in names up to a slash
//     **       in names: any run of characters, slashes included
//     ?        one character; in names none that is a slash
//     [a-z_]   one character of the class; [!a-z] or [^a-z] one that is not in it
//     \c       the character c itself
//
// Anything else stands for itself. A class matches a slash only if it lists it.
type pattern struct {
	source string // as written
	kind   patternKind
	text   string  // exact value, or the part before the first wildcard
	tail   string  // what a prefix pattern must end with
	parts  []piece // of a glob: what follows text
}

type patternKind uint8

const (
	patternAny    patternKind = iota
	patternExact              // text
	patternAffix              // text, anything, tail
	patternPieces             // text, then parts
)

// piece is one element of a glob.
type piece struct {
	kind   pieceKind
	char   rune // of pieceText
	negate bool
	ranges []runeRange
}

type pieceKind uint8

const (
	pieceText  pieceKind = iota // one character
	pieceOne                    // ?
	pieceClass                  // [...]
	pieceRun                    // * up to a slash
	pieceAll                    // * or ** over slashes
)

type runeRange struct{ from, to rune }

// The bounds of patterns and of what is matched with them, in bytes.
const (
	maxPattern = 1024
	maxName    = 16 << 10
)

// parsePattern compiles a pattern. In a path, * and ? stop at a slash.
func parsePattern(text string, path bool) (pattern, error) {
	if text == "" {
		return pattern{}, fmt.Errorf("an empty pattern matches nothing; remove it")
	}
	if len(text) > maxPattern {
		return pattern{}, fmt.Errorf("pattern %.20q… is longer than %d bytes", text, maxPattern)
	}
	if !utf8.ValidString(text) {
		return pattern{}, fmt.Errorf("pattern %q is not valid UTF-8", text)
	}
	for _, prefix := range []string{"{env.", "{file.", "{http.", "{system.", "{vars."} {
		if strings.Contains(text, prefix) {
			return pattern{}, fmt.Errorf("placeholders are not replaced in patterns, and %q looks like one; write {$NAME} for a variable of the environment", text)
		}
	}
	if text == "*" {
		return pattern{source: text, kind: patternAny}, nil
	}
	pieces, err := parsePieces(text, path)
	if err != nil {
		return pattern{}, fmt.Errorf("bad glob %q: %w", text, err)
	}
	p := simplify(pieces)
	p.source = text
	return p, nil
}

// simplify finds the fast form of a pattern.
func simplify(pieces []piece) pattern {
	p := pattern{kind: patternPieces}
	p.text, pieces = leading(pieces)
	if len(pieces) == 0 {
		p.kind = patternExact
		return p
	}
	if pieces[0].kind == pieceAll {
		if tail, rest := leading(pieces[1:]); len(rest) == 0 {
			p.kind, p.tail = patternAffix, tail
			return p
		}
	}
	p.parts = pieces
	return p
}

// leading is the text that a glob begins with, and what follows it.
func leading(pieces []piece) (string, []piece) {
	n := 0
	var text strings.Builder
	for ; n < len(pieces) && pieces[n].kind == pieceText; n++ {
		text.WriteRune(pieces[n].char)
	}
	return text.String(), pieces[n:]
}

func parsePieces(text string, path bool) (pieces []piece, err error) {
	literal := func(r rune) { pieces = append(pieces, piece{kind: pieceText, char: r}) }
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch text[i] {
		case '\\':
			if i+1 == len(text) {
				return nil, fmt.Errorf(`it ends with a backslash; write \\ for one`)
			}
			r, size = utf8.DecodeRuneInString(text[i+1:])
			literal(r)
			size++
		case '*':
			stars := len(text[i:]) - len(strings.TrimLeft(text[i:], "*"))
			switch {
			case stars > 2:
				return nil, fmt.Errorf("%d stars in a row mean nothing; use * or **", stars)
			case stars == 2 && !path:
				return nil, fmt.Errorf("** is for names, where * stops at a slash; here * passes slashes, so use *")
			case stars == 1 && path:
				pieces = append(pieces, piece{kind: pieceRun})
			default:
				pieces = append(pieces, piece{kind: pieceAll})
			}
			size = stars
		case '?':
			one := piece{kind: pieceOne}
			if path {
				one = piece{kind: pieceClass, negate: true, ranges: []runeRange{{'/', '/'}}}
			}
			pieces = append(pieces, one)
		case '[':
			class, n, err := parseClass(text[i:], path)
			if err != nil {
				return nil, err
			}
			pieces = append(pieces, class)
			size = n
		case ']':
			return nil, fmt.Errorf(`it has a ] without a [; write \] for one`)
		default:
			literal(r)
		}
		i += size
	}
	return pieces, nil
}

// parseClass reads a class at the start of text and returns its length.
func parseClass(text string, path bool) (class piece, n int, err error) {
	class.kind = pieceClass
	rest := text[1:]
	if rest != "" && (rest[0] == '!' || rest[0] == '^') {
		class.negate, rest = true, rest[1:]
	}
	next := func() (rune, bool) {
		if rest != "" && rest[0] == '\\' {
			rest = rest[1:]
		}
		if rest == "" {
			return 0, false
		}
		r, size := utf8.DecodeRuneInString(rest)
		rest = rest[size:]
		return r, true
	}
	for rest != "" && rest[0] != ']' {
		from, ok := next()
		to := from
		if ok && len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			rest = rest[1:]
			to, ok = next()
		}
		if !ok {
			break
		}
		if to < from {
			return piece{}, 0, fmt.Errorf("the range %c-%c is empty; swap its ends", from, to)
		}
		class.ranges = append(class.ranges, runeRange{from, to})
	}
	switch {
	case rest == "":
		return piece{}, 0, fmt.Errorf(`the class has no closing ]; write \[ for a bracket itself`)
	case len(class.ranges) == 0:
		return piece{}, 0, fmt.Errorf("the class is empty; list its characters")
	}
	if path && class.negate {
		class.ranges = append(class.ranges, runeRange{'/', '/'})
	}
	return class, len(text) - len(rest) + 1, nil
}

// match reports whether a value matches.
func (p *pattern) match(s string) bool {
	switch p.kind {
	case patternAny:
		return true
	case patternExact:
		return s == p.text
	case patternAffix:
		return len(s) >= len(p.text)+len(p.tail) && strings.HasPrefix(s, p.text) && strings.HasSuffix(s, p.tail)
	default:
		return strings.HasPrefix(s, p.text) && matchPieces(p.parts, s[len(p.text):])
	}
}

// states is a set of places in a glob: bit i is before piece i.
type states [maxPattern/64 + 1]uint64

func (s *states) add(pieces []piece, i int) {
	s[i>>6] |= 1 << (i & 63)
	// A run may also be empty.
	for ; i < len(pieces) && pieces[i].run(); i++ {
		s[(i+1)>>6] |= 1 << ((i + 1) & 63)
	}
}

// matchPieces follows all ways to match at once, so that no value, however
// long, takes more than its length times that of the pattern.
func matchPieces(pieces []piece, value string) bool {
	var now, next states
	words := len(pieces)>>6 + 1
	now.add(pieces, 0)
	for _, r := range value {
		some := uint64(0)
		for w := range words {
			for set := now[w]; set != 0; set &= set - 1 {
				i := w<<6 | bits.TrailingZeros64(set)
				if i == len(pieces) {
					continue
				}
				switch p := &pieces[i]; {
				case !p.takes(r):
				case p.run():
					next.add(pieces, i)
				default:
					next.add(pieces, i+1)
				}
			}
			now[w] = 0
		}
		for w := range words {
			some |= next[w]
		}
		if some == 0 {
			return false
		}
		now, next = next, now
	}
	return now[len(pieces)>>6]>>(len(pieces)&63)&1 == 1
}

// run reports whether a piece takes any number of characters.
func (p *piece) run() bool { return p.kind == pieceRun || p.kind == pieceAll }

// takes reports whether a piece takes a character.
func (p *piece) takes(r rune) bool {
	switch p.kind {
	case pieceText:
		return r == p.char
	case pieceRun:
		return r != '/'
	case pieceClass:
		for _, rr := range p.ranges {
			if r >= rr.from && r <= rr.to {
				return !p.negate
			}
		}
		return p.negate
	default:
		return true
	}
}
