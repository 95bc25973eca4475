package mcp

import "bytes"

// ScanAnswer reads a server's message, or an array of them, leniently: it is
// already executed, so it is described and never refused. It tolerates what
// the strict scan refuses as long as a client's parser reads on: duplicate
// names and numbers of any size, any depth, unpaired surrogates, bytes that
// are no UTF-8, a byte order mark. A repeated member of the message counts
// with its last value, as most clients read it. What is no JSON at all, as a
// NaN or a line break in a string, is an error, since the client cannot read
// it either; so is an array of more than MaxBatch messages. Messages before
// an error are returned all the same. It does not allocate beyond dst, except
// for names with escapes and for values nested over 64 deep, and its stack is
// constant.
func ScanAnswer(body []byte, dst []Message) (msgs []Message, batch bool, err *ScanError) {
	msgs = dst[:0]
	a := answerScanner{b: body}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		a.i = 3
	}
	a.space()
	switch a.peek() {
	case '{':
		var m Message
		if !a.message(&m) {
			return msgs, false, parseError("grammar")
		}
		msgs = append(msgs, m)
	case '[':
		if msgs, err = a.batch(msgs); err != nil {
			return msgs, true, err
		}
		batch = true
	case 0:
		return msgs, false, parseError("grammar")
	default:
		return msgs, false, parseError("no_object")
	}
	a.space()
	if a.i < len(body) {
		return msgs, batch, parseError("trailing")
	}
	if !batch {
		msgs[0].Whole = Span{0, len(body)}
	}
	return msgs, batch, err
}

func (a *answerScanner) batch(msgs []Message) ([]Message, *ScanError) {
	for n := 0; ; n++ {
		a.i++
		a.space()
		if a.peek() != '{' {
			return msgs, parseError("no_object")
		}
		if n == MaxBatch {
			return msgs, invalidError("batch_size")
		}
		var m Message
		if !a.message(&m) {
			return msgs, parseError("grammar")
		}
		msgs = append(msgs, m)
		a.space()
		switch a.peek() {
		case ',':
		case ']':
			a.i++
			return msgs, nil
		default:
			return msgs, parseError("grammar")
		}
	}
}

func (a *answerScanner) message(m *Message) bool {
	start := a.i
	if !a.members(placeTop, m) {
		return false
	}
	m.Whole = Span{start, a.i}
	m.describe(a.b)
	return true
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
	case token[0] == '-' || token[0] >= '0' && token[0] <= '9':
		m.IDType = IDNumber
	default:
		// true, {} or []: no answer can be told by it.
		m.IDType = IDNone
	}
	answer := m.Result.Present() || m.Error.Present()
	switch {
	case m.Method.Present() && answer, m.Method.Present() && b[m.Method.Start] != '"':
		m.Kind = KindInvalid
	case m.Method.Present() && m.ID.Present():
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
	if Text(m.ResultType.Of(b)) == "task" {
		m.TaskID = m.f.resultTaskID
	}
}
