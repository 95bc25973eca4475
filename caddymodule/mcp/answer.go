package mcp

import "bytes"

// ScanAnswer reads a server's message, or an array of them, leniently: it is
// already executed, so it is described and never refused. It tolerates what
// the strict scan refuses as long as the members of the message itself can be
// told apart: duplicate names and odd numbers inside, any depth, unpaired
// surrogates. A repeated member of the message counts with its last value, as
// most clients read it. An error says what could not be read; messages that
// could be are returned all the same. It does not allocate beyond dst and
// uses constant stack.
func ScanAnswer(body []byte, dst []Message) (msgs []Message, batch bool, err *ScanError) {
	msgs = dst[:0]
	a := answerScanner{b: body}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		a.i = 3
	}
	a.space()
	if a.i >= len(body) {
		return msgs, false, parseError("grammar")
	}
	switch body[a.i] {
	case '{':
		var m Message
		if !a.message(&m) {
			return msgs, false, parseError("grammar")
		}
		msgs = append(msgs, m)
	case '[':
		batch = true
		a.i++
		for {
			a.space()
			var m Message
			if a.i >= len(body) || body[a.i] != '{' || !a.message(&m) {
				return msgs, true, parseError("grammar")
			}
			msgs = append(msgs, m)
			a.space()
			if a.i < len(body) && body[a.i] == ',' {
				a.i++
				continue
			}
			break
		}
		if a.i >= len(body) || body[a.i] != ']' {
			return msgs, true, parseError("grammar")
		}
		a.i++
	default:
		return msgs, false, parseError("no_object")
	}
	a.space()
	if a.i < len(body) {
		err = parseError("trailing")
	}
	return msgs, batch, err
}

type answerScanner struct {
	b []byte
	i int
}

func (a *answerScanner) space() {
	for a.i < len(a.b) {
		switch a.b[a.i] {
		case ' ', '\t', '\n', '\r':
			a.i++
		default:
			return
		}
	}
}

func (a *answerScanner) message(m *Message) bool {
	start := a.i
	if !a.members(placeTop, m) {
		return false
	}
	m.Whole = Span{start, a.i}
	for _, inner := range []struct {
		p  place
		at Span
	}{{placeParams, m.Params}, {placeResult, m.Result}, {placeError, m.Error}} {
		a.inner(inner.p, inner.at, m)
	}
	a.inner(placeMeta, m.Meta, m)
	m.describe(a.b)
	return true
}

// inner reads the members of an object that was passed over.
func (a *answerScanner) inner(p place, at Span, m *Message) {
	if at.Present() && a.b[at.Start] == '{' {
		in := answerScanner{b: a.b[:at.End], i: at.Start}
		in.members(p, m)
	}
}

// members notes the members of the object at the read position and passes
// over their values.
func (a *answerScanner) members(p place, m *Message) bool {
	a.i++
	a.space()
	if a.i < len(a.b) && a.b[a.i] == '}' {
		a.i++
		return true
	}
	for {
		a.space()
		if a.i >= len(a.b) || a.b[a.i] != '"' {
			return false
		}
		start := a.i
		if !a.str() {
			return false
		}
		key := a.b[start+1 : a.i-1]
		var decoded string
		if bytes.IndexByte(key, '\\') >= 0 {
			decoded = Text(a.b[start:a.i])
			key = []byte(decoded)
		}
		a.space()
		if a.i >= len(a.b) || a.b[a.i] != ':' {
			return false
		}
		a.i++
		a.space()
		at := a.i
		if !a.skip() {
			return false
		}
		m.note(p, key, Span{at, a.i}, a.b)
		a.space()
		if a.i >= len(a.b) {
			return false
		}
		c := a.b[a.i]
		a.i++
		if c == '}' {
			return true
		}
		if c != ',' {
			return false
		}
	}
}

// str passes over a string: up to the next quote that no backslash escapes.
func (a *answerScanner) str() bool {
	for i := a.i + 1; ; {
		n := bytes.IndexByte(a.b[i:], '"')
		if n < 0 {
			return false
		}
		end := i + n
		slashes := 0
		for end-1-slashes > a.i && a.b[end-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			a.i = end + 1
			return true
		}
		i = end + 1
	}
}

// skip passes over any value by its brackets alone.
func (a *answerScanner) skip() bool {
	if a.i >= len(a.b) {
		return false
	}
	start := a.i
	switch a.b[a.i] {
	case '"':
		return a.str()
	case '{', '[':
	default:
		for a.i < len(a.b) {
			switch a.b[a.i] {
			case ',', '}', ']', ' ', '\t', '\n', '\r':
				return a.i > start
			}
			a.i++
		}
		return true
	}
	for depth := 0; a.i < len(a.b); {
		switch a.b[a.i] {
		case '"':
			if !a.str() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				a.i++
				return true
			}
		}
		a.i++
	}
	return false
}

// describe says what an answer is. A message that is a request and an answer
// at once is neither.
func (m *Message) describe(b []byte) {
	token := m.ID.Of(b)
	switch {
	case token == nil:
		m.IDType = IDNone
	case token[0] == '"':
		m.IDType = IDString
	case token[0] == 'n':
		m.IDType = IDNull
	default:
		m.IDType = IDNumber
	}
	answer := m.Result.Present() || m.Error.Present()
	switch {
	case m.Method.Present() && answer, m.Method.Present() && b[m.Method.Start] != '"':
		m.Kind = KindInvalid
	case m.Method.Present() && m.IDType != IDNone:
		m.Kind = KindRequest
	case m.Method.Present():
		m.Kind = KindNotification
	case m.Error.Present():
		m.Kind = KindError
	case m.Result.Present():
		m.Kind = KindResult
	}
	if m.Method.Present() && m.Kind != KindInvalid {
		_ = m.nameOperation(b)
	}
}
