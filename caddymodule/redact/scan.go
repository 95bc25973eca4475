package redact

import "unicode/utf8"

// scanner is the working memory of one Redact, reused by the next.
type scanner struct {
	p       *Profile
	levels  []*level
	decoded int // layers of base64 around the text
	names   memo
}

// level is the working memory for the text of one level of JSON in strings:
// level 0 is the payload itself, level n+1 a string of level n.
type level struct {
	n     int
	text  []byte  // decoded text of the string
	name  []byte  // a decoded name
	stack []marks // of the open containers
	edits []edit

	frames    []frame // beside stack
	spans     []span
	unordered bool // edits are not in order, or overlap
}

// edit is a range to be replaced, in the text of one level, and the level at
// which the match was found, which says how the replacement is escaped.
type edit struct {
	start, end, level int
	bare              bool // part of a string: the replacement has no quotes
	with              string
}

// level returns the working memory of a level, cleared.
func (s *scanner) level(n int) *level {
	if n == len(s.levels) {
		s.levels = append(s.levels, &level{n: n})
	}
	l := s.levels[n]
	l.edits, l.frames, l.unordered = l.edits[:0], l.frames[:0], false
	return l
}

// keepMemory is how many bytes a buffer may have to be kept for the next pass.
const keepMemory = 1 << 20

// release gives the memory of a scanner back, but for what one large payload
// made it grow.
func (p *Profile) release(s *scanner) {
	for _, l := range s.levels {
		if cap(l.text)+cap(l.name)+cap(l.stack)+48*cap(l.edits)+48*cap(l.frames)+40*cap(l.spans) > keepMemory {
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
	states            uint64 // the steps of paths that may match what is in the value to come
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
			m &^= inObject | inAddress | inPairName
			if c == '{' {
				m |= inObject
			}
			stack = append(stack, m)
			t.level.frames = append(t.level.frames, frame{states: t.states})
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
			t.level.frames = t.level.frames[:len(stack)]
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
			if f := &t.level.frames[len(stack)-1]; f.valuing {
				f.valuing, f.valueTo = false, t.i
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
			t.level.frames = t.level.frames[:len(stack)]
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
	f := &t.level.frames[len(stack)-1]
	if m&inObject == 0 {
		if f.states != 0 {
			t.element(f, len(stack))
		}
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
	at, end := start, t.i
	if t.s.p.looks() {
		end = start + len(name)
		t.detectIn(at, end, escaped, m)
	}
	if escaped {
		t.level.name = decode(t.level.name[:0], name)
		name = t.level.name
	}
	if f.states != 0 {
		var all bool
		if t.states, all = t.s.p.paths.enter(f.states, name, 0); all {
			t.cover, t.coverDepth = t.i, len(stack)
			return m, true
		}
	} else {
		t.states = 0
	}
	inside, exempt := m.enter(name)
	if exempt {
		return inside, true
	}
	if isPairName(name) {
		inside |= inPairName
	} else if isPairValue(name) {
		if f.named {
			t.cover, t.coverDepth = t.i, len(stack)
			return inside, true
		}
		f.valuing, f.valueFrom = true, t.i
	}
	v := t.s.names.judge(t.s.p, name)
	if m.handle(name) {
		v = secret
	}
	if v == passes || m.schemaKeeps(t.peek()) || v == secretUnlessCount && isNumberStart(t.peek()) {
		return inside, true
	}
	t.cover, t.coverDepth = t.i, len(stack)
	return inside, true
}

// element notes which steps of paths match in the element that follows.
func (t *pass) element(f *frame, depth int) {
	index := f.index
	f.index++
	var all bool
	if t.states, all = t.s.p.paths.enter(f.states, nil, index); all && t.cover == none {
		t.space()
		t.cover, t.coverDepth = t.i, depth
	}
}

func isNumberStart(b byte) bool { return b == '-' || isDigit(b) }

// uncover ends a match. What is already replaced stays, so that a second pass
// changes nothing.
func (t *pass) uncover() {
	t.replace(t.cover, t.i)
	t.cover = none
}

// replace notes that a whole value goes, unless it is a placeholder.
func (t *pass) replace(start, end int) {
	value := t.text[start:end]
	if len(value) > 2 && value[0] == '"' && isRedacted(value[1:len(value)-1]) {
		return
	}
	if len(value) > 1 && value[0] == '"' {
		// The tag is that of the text, as where it is found by its looks.
		value = value[1 : len(value)-1]
	}
	t.level.edits = append(t.level.edits, edit{start: start, end: end, level: t.level.n, with: t.s.p.placeholder("", value)})
}

// scalar reads a string, number or literal that begins with c.
func (t *pass) scalar(c byte, m marks) bool {
	switch c {
	case '"':
		start := t.i + 1
		escaped, ok := t.str()
		if !ok || t.cover != none {
			return ok
		}
		end := t.i - 1
		if m&inPairName != 0 && !m.exempt() {
			t.pairName(start, end, escaped)
		}
		// Without an escape there is no quote inside and thus no name.
		switch {
		case m&inAddress != 0 && !m.exempt() && t.address(start, end, escaped):
		case escaped && !m.exempt():
			t.inside(start, end, m)
		default:
			t.detectIn(start, end, escaped, m)
		}
		return true
	case 't':
		return t.literal("true")
	case 'f':
		return t.literal("false")
	case 'n':
		return t.literal("null")
	default:
		start := t.i
		ok := t.number()
		if n := t.i - start; ok && n >= 13 && n <= 19 && t.cover == none && t.s.p.detects&card != 0 {
			if s, found := atCard(t.text[start:t.i], 0); found && s.end == n {
				t.level.edits = append(t.level.edits, edit{start: start, end: t.i, level: t.level.n, with: t.s.p.placeholder(s.kind, t.text[start:t.i])})
			}
		}
		return ok
	}
}

// inside looks for matches in the string whose raw text is text[start:end]. Its
// decoded text counts as JSON from its beginning up to the first fault, so that
// neither JSON Lines nor a text behind the JSON nor its being cut off lets a
// secret pass; the rest of a matched value that has a fault goes as a whole.
func (t *pass) inside(start, end int, m marks) {
	raw := t.text[start:end]
	if !opensJSON(raw) {
		t.detectIn(start, end, true, m)
		return
	}
	l := t.s.level(t.level.n + 1)
	l.text = decode(l.text[:0], raw)
	in := pass{s: t.s, level: l, text: l.text, cover: none}
	rest := 0
	for {
		in.spaceAndBOM()
		rest = in.i
		c := in.peek()
		if c != '{' && c != '[' && c != '"' {
			break
		}
		known := len(l.edits)
		ok := in.value(m&inSchema | inData)
		if c == '"' {
			// A text that begins with a word in quotes is not for that JSON.
			if in.spaceAndBOM(); !ok || in.i < len(in.text) {
				l.edits = l.edits[:known]
				break
			}
		}
		if rest = in.i; !ok {
			break
		}
	}
	if in.cover != none && in.cover < len(in.text) {
		in.i = len(in.text)
		in.uncover()
		rest = in.i
	}
	in.found(rest, len(in.text), m)
	l.arrangeEdits()
	t.level.edits = lift(t.level.edits, l.edits, raw, start)
}

// detectIn looks for values by how they look in the string whose raw text is
// text[start:end].
func (t *pass) detectIn(start, end int, escaped bool, m marks) {
	if !t.s.p.looks() || end-start < shortestFound {
		return
	}
	if !escaped {
		t.found(start, end, m)
		return
	}
	l := t.s.level(t.level.n + 1)
	l.text = decode(l.text[:0], t.text[start:end])
	in := pass{s: t.s, level: l, text: l.text, cover: none}
	in.found(0, len(in.text), m)
	t.level.edits = lift(t.level.edits, l.edits, t.text[start:end], start)
}

// shortestFound is the length from which a string may hold what is detected.
const shortestFound = 7

// found notes what is detected in the text between start and end, which has no
// escapes.
func (t *pass) found(start, end int, m marks) {
	p := t.s.p
	if !p.looks() || start >= end {
		return
	}
	text := t.text[start:end]
	spans := t.level.spans[:0]
	spans = p.detect(spans, text)
	for _, s := range spans {
		if s.kind == "assignment" && m.exempt() {
			continue
		}
		t.level.edits = append(t.level.edits, edit{
			start: start + s.start, end: start + s.end, level: t.level.n, bare: true, with: p.placeholder(s.kind, text[s.start:s.end]),
		})
	}
	if len(spans) == 0 && t.hides(text) {
		t.level.edits = append(t.level.edits, edit{start: start, end: end, level: t.level.n, bare: true, with: p.placeholder("base64", text)})
	}
	t.level.spans = spans
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
