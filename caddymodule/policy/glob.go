package policy

import (
	"fmt"
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
	text   string // literal
	negate bool
	ranges []runeRange
}

type pieceKind uint8

const (
	pieceText  pieceKind = iota
	pieceOne             // ?
	pieceClass           // [...]
	pieceRun             // * up to a slash
	pieceAll             // * or ** over slashes
)

type runeRange struct{ from, to rune }

// maxPattern bounds the length of a pattern in bytes.
const maxPattern = 4096

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
	if pieces[0].kind == pieceText {
		p.text, pieces = pieces[0].text, pieces[1:]
	}
	switch {
	case len(pieces) == 0:
		p.kind = patternExact
	case pieces[0].kind == pieceAll && len(pieces) == 1:
		p.kind = patternAffix
	case pieces[0].kind == pieceAll && len(pieces) == 2 && pieces[1].kind == pieceText:
		p.kind, p.tail = patternAffix, pieces[1].text
	default:
		p.parts = pieces
	}
	return p
}

func parsePieces(text string, path bool) (pieces []piece, err error) {
	literal := func(s string) {
		if n := len(pieces); n > 0 && pieces[n-1].kind == pieceText {
			pieces[n-1].text += s
			return
		}
		pieces = append(pieces, piece{kind: pieceText, text: s})
	}
	for i := 0; i < len(text); {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch text[i] {
		case '\\':
			if i+1 == len(text) {
				return nil, fmt.Errorf(`it ends with a backslash; write \\ for one`)
			}
			_, size = utf8.DecodeRuneInString(text[i+1:])
			literal(text[i+1 : i+1+size])
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
			literal(text[i : i+size])
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

// matchPieces matches by going back to the last run that may take one more
// character. A run that stops at slashes may not be extended past one, but an
// earlier one that passes them may, so both are remembered: the cost is at most
// pieces times the square of the length.
func matchPieces(pieces []piece, s string) bool {
	i, at := 0, 0
	run, runAt := -1, 0 // last * of one segment
	all, allAt := -1, 0 // last one over slashes
	for {
		if i < len(pieces) {
			switch p := &pieces[i]; p.kind {
			case pieceAll:
				all, allAt, run = i, at, -1
				i++
				continue
			case pieceRun:
				run, runAt = i, at
				i++
				continue
			default:
				if n := p.one(s[at:]); n >= 0 {
					i++
					at += n
					continue
				}
			}
		} else if at == len(s) {
			return true
		}
		switch {
		case run >= 0 && runAt < len(s) && s[runAt] != '/':
			runAt += runeLen(s[runAt:])
			i, at = run+1, runAt
		case all >= 0 && allAt < len(s):
			allAt += runeLen(s[allAt:])
			i, at, run = all+1, allAt, -1
		default:
			return false
		}
	}
}

// one matches a piece that is no run at the start of s and returns the length
// that it takes, -1 if it does not match.
func (p *piece) one(s string) int {
	if p.kind == pieceText {
		if strings.HasPrefix(s, p.text) {
			return len(p.text)
		}
		return -1
	}
	if s == "" {
		return -1
	}
	r, size := utf8.DecodeRuneInString(s)
	if p.kind == pieceOne {
		return size
	}
	in := false
	for _, rr := range p.ranges {
		in = in || r >= rr.from && r <= rr.to
	}
	if in == p.negate {
		return -1
	}
	return size
}

func runeLen(s string) int {
	_, size := utf8.DecodeRuneInString(s)
	return size
}
