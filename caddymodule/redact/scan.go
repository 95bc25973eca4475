package redact

import "unicode/utf8"

// scanner is the working memory of one Redact, reused by the next.
type scanner struct {
	p      *Profile
	levels []*level
}

// level is the working memory for the text of one level of JSON in strings:
// level 0 is the payload itself, level n+1 a string of level n.
type level struct {
	n     int
	text  []byte  // decoded text of the string
	name  []byte  // a decoded name
	stack []marks // of the open containers
	edits []edit
}

// edit is a range to be replaced, in the text of one level, and the level at
// which the match was found, which says how the replacement is escaped.
type edit struct {
	start, end, level int
	bare              bool // part of a string: the replacement has no quotes
}

// level returns the working memory of a level, cleared.
func (s *scanner) level(n int) *level {
	if n == len(s.levels) {
		s.levels = append(s.levels, &level{n: n})
	}
	l := s.levels[n]
	l.edits = l.edits[:0]
	return l
}

// keepMemory is how many bytes a buffer may have to be kept for the next pass.
const keepMemory = 1 << 20

// release gives the memory of a scanner back, but for what one large payload
// made it grow.
func (p *Profile) release(s *scanner) {
	for _, l := range s.levels {
		if cap(l.text)+cap(l.name)+cap(l.stack)+32*cap(l.edits) > keepMemory {
			*l = level{n: l.n}
		}
	}
	p.scanners.Put(s)
}

// none is the value of pass.cover outside of matches.
const none = -1

// pass reads the text of one level.
type pass struct {
	s     *scanner
	level *level
	text  []byte
	i     int
	// cover is where the matched value that is being read begins, or none;
	// it ends when the stack is back at coverDepth.
	cover, coverDepth int
}

// value reads one value of any depth with the given marks. It reports false,
// with i at the fault, if the text breaks the grammar. It is a loop and not a
// recursion because the depth is the sender's choice.
func (t *pass) value(m marks) bool {
	stack := t.level.stack[:0]
	defer func() { t.level.stack = stack }()
	for {
		t.space()
		c := t.peek()
		if c == '{' || c == '[' {
			t.i++
			m &^= inObject | inAddress
			if c == '{' {
				m |= inObject
			}
			stack = append(stack, m)
			t.space()
			if t.peek() != closing(m) {
				var ok bool
				if m, ok = t.member(stack); !ok {
					return false
				}
				continue
			}
			t.i++
			stack = stack[:len(stack)-1]
		} else if !t.scalar(c, m) {
			return false
		}
		// A value is complete, and with it perhaps those around it.
		for {
			if t.cover != none && t.coverDepth == len(stack) {
				t.uncover()
			}
			if len(stack) == 0 {
				return true
			}
			t.space()
			c := t.peek()
			if c == ',' {
				break
			}
			if c != closing(stack[len(stack)-1]) {
				return false
			}
			t.i++
			stack = stack[:len(stack)-1]
		}
		t.i++
		var ok bool
		if m, ok = t.member(stack); !ok {
			return false
		}
	}
}

func closing(m marks) byte {
	if m&inObject != 0 {
		return '}'
	}
	return ']'
}

// member reads up to the value of the next member of the innermost container:
// nothing in an array, name and colon in an object. It returns the marks of the
// value and begins to cover it if the name matches.
func (t *pass) member(stack []marks) (marks, bool) {
	m := stack[len(stack)-1]
	if m&inObject == 0 {
		return m, true
	}
	t.space()
	if t.peek() != '"' {
		return m, false
	}
	start := t.i + 1
	escaped, ok := t.str()
	if !ok {
		return m, false
	}
	name := t.text[start : t.i-1]
	t.space()
	if t.peek() != ':' {
		return m, false
	}
	t.i++
	if t.cover != none {
		return m, true
	}
	t.space()
	if escaped {
		t.level.name = decode(t.level.name[:0], name)
		name = t.level.name
	}
	inside, exempt := m.enter(name)
	if exempt {
		return inside, true
	}
	v := t.s.p.judge(name)
	if m.handle(name) {
		v = secret
	}
	if v == passes || m.schemaKeeps(t.peek()) || v == secretUnlessCount && isNumberStart(t.peek()) {
		return inside, true
	}
	t.cover, t.coverDepth = t.i, len(stack)
	return inside, true
}

func isNumberStart(b byte) bool { return b == '-' || isDigit(b) }

// uncover ends a match. What is already replaced stays, so that a second pass
// changes nothing.
func (t *pass) uncover() {
	if string(t.text[t.cover:t.i]) != `"`+Placeholder+`"` {
		t.level.edits = append(t.level.edits, edit{start: t.cover, end: t.i, level: t.level.n})
	}
	t.cover = none
}

// scalar reads a string, number or literal that begins with c.
func (t *pass) scalar(c byte, m marks) bool {
	switch c {
	case '"':
		start := t.i + 1
		escaped, ok := t.str()
		// Without an escape there is no quote inside and thus no name.
		switch {
		case !ok || t.cover != none || m.exempt():
		case m&inAddress != 0:
			t.address(start, t.i-1, escaped)
		case escaped:
			t.inside(start, t.i-1, m)
		}
		return ok
	case 't':
		return t.literal("true")
	case 'f':
		return t.literal("false")
	case 'n':
		return t.literal("null")
	default:
		return t.number()
	}
}

// inside looks for matches in the string whose raw text is text[start:end]. Its
// decoded text counts as JSON from its beginning up to the first fault, so that
// neither JSON Lines nor a text behind the JSON nor its being cut off lets a
// secret pass; the rest of a matched value that has a fault goes as a whole.
func (t *pass) inside(start, end int, m marks) {
	raw := t.text[start:end]
	if !opensJSON(raw) {
		return
	}
	l := t.s.level(t.level.n + 1)
	l.text = decode(l.text[:0], raw)
	in := pass{s: t.s, level: l, text: l.text, cover: none}
	for {
		in.spaceAndBOM()
		if c := in.peek(); c != '{' && c != '[' {
			break
		}
		if !in.value(m&inSchema | inData) {
			break
		}
	}
	if in.cover != none && in.cover < len(in.text) {
		in.i = len(in.text)
		in.uncover()
	}
	t.level.edits = lift(t.level.edits, l.edits, raw, start)
}

// peek returns the next byte, 0 at the end. A 0 in the text breaks the grammar
// wherever peek is asked.
func (t *pass) peek() byte {
	if t.i < len(t.text) {
		return t.text[t.i]
	}
	return 0
}

func (t *pass) space() {
	for t.i < len(t.text) && t.text[t.i] <= ' ' && isSpace(t.text[t.i]) {
		t.i++
	}
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

// spaceAndBOM also passes over byte order marks, which many readers drop.
func (t *pass) spaceAndBOM() {
	for t.space(); ; t.space() {
		r, n := utf8.DecodeRune(t.text[t.i:])
		if r != bom {
			return
		}
		t.i += n
	}
}
