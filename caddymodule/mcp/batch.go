package mcp

// AppendBatch appends an array of the exact bytes of the messages that keep
// chooses, and reports how many there are. body is what msgs were scanned from.
func AppendBatch(dst, body []byte, msgs []Message, keep func(i int) bool) (batch []byte, n int) {
	dst = append(dst, '[')
	for i := range msgs {
		if !keep(i) {
			continue
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, msgs[i].Whole.Of(body)...)
		n++
	}
	return append(dst, ']'), n
}

// RepeatedID reports whether two requests of a batch have ids that a reader
// could take for the same, so that their answers could not be told apart.
func RepeatedID(body []byte, msgs []Message) bool {
	if len(msgs) < 2 {
		return false
	}
	seen := make(map[string]struct{}, len(msgs))
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != KindRequest {
			continue
		}
		key := IDKey(m.ID.Of(body), m.IDType)
		if _, dup := seen[key]; dup {
			return true
		}
		seen[key] = struct{}{}
	}
	return false
}

// Joiner puts answers of an intermediary into the array that a server answers
// a batch with, as it streams by: the server's bytes stay as they are, but for
// the brackets around a single message. What is no JSON array or object passes
// unchanged, and then Joined reports false. The zero Joiner has no answers.
type Joiner struct {
	// Answers are JSON-RPC answers, joined by commas, never empty.
	Answers []byte

	state joinState
}

type joinState uint8

const (
	joinStart  joinState = iota // nothing but white space yet
	joinOpened                  // behind the server's opening bracket
	joinArray
	joinObject
	joinForeign
)

// Next appends what is to be sent for the next bytes of the server's answer.
func (j *Joiner) Next(dst, p []byte) []byte {
	for len(p) > 0 && (j.state == joinStart || j.state == joinOpened) {
		c := p[0]
		if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
			dst, p = append(dst, c), p[1:]
			continue
		}
		if j.state == joinOpened {
			if c != ']' {
				dst = append(dst, ',')
			}
			j.state = joinArray
			break
		}
		switch c {
		case '[':
			dst, p = append(append(dst, '['), j.Answers...), p[1:]
			j.state = joinOpened
		case '{':
			dst = append(append(append(dst, '['), j.Answers...), ',')
			j.state = joinObject
		default:
			j.state = joinForeign
		}
	}
	return append(dst, p...)
}

// End appends what is to be sent when the server's answer is over. An empty one
// becomes an array of the intermediary's answers alone.
func (j *Joiner) End(dst []byte) []byte {
	switch j.state {
	case joinStart:
		dst = append(append(append(dst, '['), j.Answers...), ']')
	case joinObject:
		dst = append(dst, ']')
	}
	j.state = joinArray
	return dst
}

// Joined reports whether the answers stand in what was sent so far.
func (j *Joiner) Joined() bool { return j.state != joinStart && j.state != joinForeign }
