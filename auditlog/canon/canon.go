// Package canon is the strict JSON gate and the canonical form of the audit
// log: RFC 8259 text in, RFC 8785 (JCS) text out, in one pass and without a
// JSON library whose readings could differ.
//
// The gate accepts one value of valid UTF-8 JSON with only white space around
// it, no unpaired surrogate, no duplicate decoded name, at most MaxDepth
// levels and MaxKeys members an object. All functions are safe for concurrent
// use and allocate nothing in the steady state.
package canon

import (
	"bytes"
	"slices"
	"sync"
	"unicode/utf8"
)

// Violation names the first rule that a text breaks, as the records do
// ("why"). The empty Violation means that none is broken.
type Violation string

// The violations, in the words of the log format.
const (
	None      Violation = ""
	Grammar   Violation = "grammar"
	UTF8      Violation = "utf8"
	Surrogate Violation = "surrogate"
	Depth     Violation = "depth"
	Keys      Violation = "keys"
	DupKey    Violation = "dup_key"
)

// The bounds of the gate. The outermost container has depth 1.
const (
	MaxDepth = 64
	MaxKeys  = 1024
)

// Check reports the first violation in src, in one left-to-right pass;
// a duplicate name counts where its object closes.
func Check(src []byte) Violation {
	c := get()
	defer c.put()
	out, v := c.run(c.out[:0], src)
	c.out = out[:0]
	return v
}

// Append appends the normal form of a payload to dst: JCS, with every number
// whose JCS text is not the same decimal value and every negative zero as
// {"$num":"<token>"}, and one more "$" before each member name that begins
// with "$", so that the form is injective. On a violation dst is returned as
// it was.
func Append(dst, src []byte) ([]byte, Violation) {
	c := get()
	defer c.put()
	out, v := c.run(dst, src)
	if v != None {
		return dst[:len(dst):cap(dst)], v
	}
	return out, None
}

// member is one object member in the output.
type member struct{ start, end, name, nameEnd int }

// converter holds the state of one pass.
type converter struct {
	src     []byte
	i       int
	depth   int
	members []member // of the objects that are open
	names   []byte   // their decoded names
	out     []byte   // of Check
	spare   []byte   // for reordering
}

var converters = sync.Pool{New: func() any { return new(converter) }}

// keepScratch is the largest scratch space that is kept for the next pass.
const keepScratch = 1 << 20

func get() *converter { return converters.Get().(*converter) }

func (c *converter) put() {
	c.src = nil
	if cap(c.out) > keepScratch {
		c.out = nil
	}
	if cap(c.spare) > keepScratch {
		c.spare = nil
	}
	if cap(c.names) > keepScratch {
		c.names = nil
	}
	converters.Put(c)
}

func (c *converter) run(dst, src []byte) ([]byte, Violation) {
	c.src, c.i, c.depth = src, 0, 0
	c.members, c.names = c.members[:0], c.names[:0]
	c.space()
	dst, v := c.value(dst)
	if v != None {
		return dst, v
	}
	c.space()
	if c.i < len(src) {
		return dst, Grammar
	}
	return dst, None
}

func (c *converter) space() {
	for c.i < len(c.src) {
		switch c.src[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

func (c *converter) value(dst []byte) ([]byte, Violation) {
	if c.i >= len(c.src) {
		return dst, Grammar
	}
	switch b := c.src[c.i]; b {
	case '{':
		return c.object(dst)
	case '[':
		return c.array(dst)
	case '"':
		return c.str(dst)
	case 't':
		return c.literal(dst, "true")
	case 'f':
		return c.literal(dst, "false")
	case 'n':
		return c.literal(dst, "null")
	default:
		if b == '-' || b >= '0' && b <= '9' {
			return c.number(dst)
		}
		return dst, Grammar
	}
}

func (c *converter) literal(dst []byte, word string) ([]byte, Violation) {
	if len(c.src)-c.i < len(word) || string(c.src[c.i:c.i+len(word)]) != word {
		return dst, Grammar
	}
	c.i += len(word)
	return append(dst, word...), None
}

func (c *converter) number(dst []byte) ([]byte, Violation) {
	n, simple := numberLen(c.src[c.i:])
	if n == 0 {
		return dst, Grammar
	}
	token := c.src[c.i : c.i+n]
	c.i += n
	if simple {
		return append(dst, token...), None
	}
	if out, exact := appendNumber(dst, token); exact {
		return out, None
	}
	dst = append(dst, `{"$num":"`...)
	dst = append(dst, token...)
	return append(dst, `"}`...), None
}

func (c *converter) array(dst []byte) ([]byte, Violation) {
	if c.depth++; c.depth > MaxDepth {
		return dst, Depth
	}
	c.i++
	dst = append(dst, '[')
	c.space()
	if c.i < len(c.src) && c.src[c.i] == ']' {
		c.i++
		c.depth--
		return append(dst, ']'), None
	}
	for {
		c.space()
		var v Violation
		if dst, v = c.value(dst); v != None {
			return dst, v
		}
		c.space()
		if c.i >= len(c.src) {
			return dst, Grammar
		}
		b := c.src[c.i]
		c.i++
		switch b {
		case ',':
			dst = append(dst, ',')
		case ']':
			c.depth--
			return append(dst, ']'), None
		default:
			return dst, Grammar
		}
	}
}

func (c *converter) object(dst []byte) ([]byte, Violation) {
	if c.depth++; c.depth > MaxDepth {
		return dst, Depth
	}
	c.i++
	open := len(dst)
	dst = append(dst, '{')
	first, firstName := len(c.members), len(c.names)
	ascending := true
	c.space()
	if c.i < len(c.src) && c.src[c.i] == '}' {
		c.i++
		c.depth--
		return append(dst, '}'), None
	}
	for {
		c.space()
		if c.i >= len(c.src) || c.src[c.i] != '"' {
			return dst, Grammar
		}
		m := member{start: len(dst), name: len(c.names)}
		var v Violation
		if dst, v = c.name(dst); v != None {
			return dst, v
		}
		m.nameEnd = len(c.names)
		if n := len(c.members); n > first && ascending {
			last := c.members[n-1]
			ascending = CompareNames(c.names[last.name:last.nameEnd], c.names[m.name:m.nameEnd]) < 0
		}
		if len(c.members)-first >= MaxKeys {
			return dst, Keys
		}
		c.space()
		if c.i >= len(c.src) || c.src[c.i] != ':' {
			return dst, Grammar
		}
		c.i++
		dst = append(dst, ':')
		c.space()
		at := len(c.members)
		c.members = append(c.members, m)
		if dst, v = c.value(dst); v != None {
			return dst, v
		}
		c.members[at].end = len(dst)
		c.space()
		if c.i >= len(c.src) {
			return dst, Grammar
		}
		b := c.src[c.i]
		c.i++
		if b == ',' {
			dst = append(dst, ',')
			continue
		}
		if b != '}' {
			return dst, Grammar
		}
		if !ascending {
			if dst, v = c.reorder(dst, open, c.members[first:]); v != None {
				return dst, v
			}
		}
		c.members, c.names = c.members[:first], c.names[:firstName]
		c.depth--
		return append(dst, '}'), None
	}
}

// reorder sorts the members of an object that did not come in order.
func (c *converter) reorder(dst []byte, open int, members []member) ([]byte, Violation) {
	names := c.names
	slices.SortFunc(members, func(a, b member) int {
		return CompareNames(names[a.name:a.nameEnd], names[b.name:b.nameEnd])
	})
	for i := 1; i < len(members); i++ {
		a, b := members[i-1], members[i]
		if bytes.Equal(names[a.name:a.nameEnd], names[b.name:b.nameEnd]) {
			return dst, DupKey
		}
	}
	body := append(c.spare[:0], dst[open+1:]...)
	c.spare = body[:0]
	out := dst[:open+1]
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, body[m.start-open-1:m.end-open-1]...)
	}
	return out, None
}

// CompareNames orders decoded member names by their UTF-16 code units, as RFC
// 8785 demands: byte order, except that where the first differing bytes are
// both 0xEE or above and exactly one is 0xF0 or above the order flips.
func CompareNames(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		less := x < y
		if x >= 0xEE && y >= 0xEE && (x >= 0xF0) != (y >= 0xF0) {
			less = !less
		}
		if less {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// AppendString appends the JCS token of a string. Invalid UTF-8 in s is
// replaced by U+FFFD, so that the result is always valid.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if plain[b] {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			dst = appendEscape(dst, b)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[start:i]...)
			dst = utf8.AppendRune(dst, utf8.RuneError)
			i++
			start = i
			continue
		}
		i += n
	}
	return append(append(dst, s[start:]...), '"')
}
