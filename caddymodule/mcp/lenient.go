package mcp

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// answerScanner walks JSON as lenient parsers read it: the grammar of RFC 8259,
// but no rule about names, sizes, depth or what the characters of a string are.
type answerScanner struct {
	b []byte
	i int
}

// peek returns the byte at the read position, 0 at the end. A 0 in the text
// is no JSON either.
func (a *answerScanner) peek() byte {
	if a.i >= len(a.b) {
		return 0
	}
	return a.b[a.i]
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

// members notes the members of the object at the read position and passes
// over their values. Only objects with a place of their own nest.
func (a *answerScanner) members(p place, m *Message) bool {
	for more := a.enter(); more; more = a.next() {
		key, ok := a.name()
		if !ok {
			return false
		}
		at := a.i
		inner := innerPlace(p, key)
		m.forget(inner)
		if inner != placeOther && a.peek() == '{' {
			ok = a.members(inner, m)
		} else {
			ok = a.value()
		}
		if !ok {
			return false
		}
		m.note(p, key, Span{at, a.i}, a.b)
	}
	return a.leave('}')
}

// enter passes over an opening bracket. It reports whether an element follows.
func (a *answerScanner) enter() bool {
	a.i++
	a.space()
	c := a.peek()
	return c != '}' && c != ']'
}

// next passes over the comma after an element, if there is one.
func (a *answerScanner) next() bool {
	a.space()
	if a.peek() != ',' {
		return false
	}
	a.i++
	a.space()
	return true
}

func (a *answerScanner) leave(end byte) bool {
	if a.peek() != end {
		return false
	}
	a.i++
	return true
}

// name passes over a member's name, the colon and the white space around
// them, and returns the decoded name. One that cannot be decoded is empty.
func (a *answerScanner) name() (key []byte, ok bool) {
	start := a.i
	if !a.str() {
		return nil, false
	}
	key = a.b[start+1 : a.i-1]
	if bytes.IndexByte(key, '\\') >= 0 {
		if key, ok = canon.Unquote(nil, a.b[start:a.i]); !ok {
			key = nil
		}
	}
	return key, a.colon()
}

// colon passes over the colon after a name and the white space around it.
func (a *answerScanner) colon() bool {
	a.space()
	if a.peek() != ':' {
		return false
	}
	a.i++
	a.space()
	return true
}

// value passes over any value.
func (a *answerScanner) value() bool {
	if c := a.peek(); c == '{' || c == '[' {
		return a.container()
	}
	return a.scalar()
}

func (a *answerScanner) scalar() bool {
	switch a.peek() {
	case '"':
		return a.str()
	case 't':
		return a.literal("true")
	case 'f':
		return a.literal("false")
	case 'n':
		return a.literal("null")
	default:
		n := canon.NumberLen(a.b[a.i:])
		a.i += n
		return n > 0
	}
}

func (a *answerScanner) literal(word string) bool {
	if len(a.b)-a.i < len(word) || string(a.b[a.i:a.i+len(word)]) != word {
		return false
	}
	a.i += len(word)
	return true
}

// container passes over an object or array of any depth. It keeps a byte for
// each level that is open and does not recurse.
func (a *answerScanner) container() bool {
	var few [64]byte
	open := append(few[:0], a.peek())
	a.i++
	for first := true; ; {
		a.space()
		c := a.peek()
		object := open[len(open)-1] == '{'
		if !(first && (c == '}' || c == ']')) {
			if object {
				if c != '"' || !a.str() || !a.colon() {
					return false
				}
				c = a.peek()
			}
			if c == '{' || c == '[' {
				open = append(open, c)
				a.i++
				first = true
				continue
			}
			if !a.scalar() {
				return false
			}
		}
		if open, first = a.close(open); len(open) == 0 {
			return !first
		}
		if first {
			return false
		}
	}
}

// close passes over the ends of containers after a value, up to the comma
// before the next one. It returns what is still open, and whether the text is
// broken.
func (a *answerScanner) close(open []byte) (rest []byte, broken bool) {
	for {
		a.space()
		c := a.peek()
		a.i++
		switch {
		case c == ',':
			return open, false
		case c == '}' && open[len(open)-1] == '{', c == ']' && open[len(open)-1] == '[':
			if open = open[:len(open)-1]; len(open) == 0 {
				return open, false
			}
		default:
			return open, true
		}
	}
}

// str passes over a string. Its characters may be anything but control
// characters; its escapes must be JSON's.
func (a *answerScanner) str() bool {
	if a.peek() != '"' {
		return false
	}
	for a.i++; ; {
		a.i += textRun(a.b[a.i:])
		switch a.peek() {
		case '"':
			a.i++
			return true
		case '\\':
			n := escapeLen(a.b[a.i:])
			if n == 0 {
				return false
			}
			a.i += n
		default:
			return false
		}
	}
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// textRun returns how many bytes at the start of b are neither a quote nor a
// backslash nor a control character, eight at a time.
func textRun(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^ones*'"', w^ones*'\\'
		special := ((w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
		if special != 0 {
			// A borrow only reaches bytes above one that is special itself,
			// so that the lowest mark is always true.
			return i + bits.TrailingZeros64(special)>>3
		}
	}
	for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// escapeLen returns the length of the escape that b starts with, 0 if it is
// none of JSON's.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
}
