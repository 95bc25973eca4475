package canon

import (
	"bytes"
	"unicode/utf8"
)

// IsCanonical reports whether src is exactly the JCS form of one value that
// passes the gate, with at most maxDepth levels. It only compares: nothing is
// decoded into a value, and no "$" rule applies.
func IsCanonical(src []byte, maxDepth int) bool {
	c := canonicalChecker{src: src, maxDepth: maxDepth}
	return c.value() && c.i == len(src)
}

type canonicalChecker struct {
	src      []byte
	i        int
	depth    int
	maxDepth int
}

func (c *canonicalChecker) value() bool {
	if c.i >= len(c.src) {
		return false
	}
	switch c.src[c.i] {
	case '{':
		return c.object()
	case '[':
		return c.array()
	case '"':
		_, _, ok := c.str()
		return ok
	case 't':
		return c.literal("true")
	case 'f':
		return c.literal("false")
	case 'n':
		return c.literal("null")
	default:
		return c.number()
	}
}

func (c *canonicalChecker) literal(word string) bool {
	if len(c.src)-c.i < len(word) || string(c.src[c.i:c.i+len(word)]) != word {
		return false
	}
	c.i += len(word)
	return true
}

func (c *canonicalChecker) number() bool {
	n, simple := numberLen(c.src[c.i:])
	if n == 0 {
		return false
	}
	token := c.src[c.i : c.i+n]
	c.i += n
	if simple {
		return true
	}
	var buf [32]byte
	text, exact := appendNumber(buf[:0], token)
	return exact && bytes.Equal(text, token)
}

func (c *canonicalChecker) array() bool {
	if c.depth++; c.depth > c.maxDepth {
		return false
	}
	if c.i++; c.i < len(c.src) && c.src[c.i] == ']' {
		c.i++
		c.depth--
		return true
	}
	for c.value() && c.i < len(c.src) {
		b := c.src[c.i]
		c.i++
		if b == ']' {
			c.depth--
			return true
		}
		if b != ',' {
			return false
		}
	}
	return false
}

func (c *canonicalChecker) object() bool {
	if c.depth++; c.depth > c.maxDepth {
		return false
	}
	if c.i++; c.i < len(c.src) && c.src[c.i] == '}' {
		c.i++
		c.depth--
		return true
	}
	var last []byte // raw text of the name before, between its quotes
	lastEscaped := false
	for keys := 0; c.i < len(c.src) && c.src[c.i] == '"'; keys++ {
		name, escaped, ok := c.str()
		if !ok || keys >= MaxKeys || keys > 0 && !namesAscend(last, name, lastEscaped || escaped) {
			return false
		}
		last, lastEscaped = name, escaped
		if c.i >= len(c.src) || c.src[c.i] != ':' {
			return false
		}
		c.i++
		if !c.value() || c.i >= len(c.src) {
			return false
		}
		b := c.src[c.i]
		c.i++
		if b == '}' {
			c.depth--
			return true
		}
		if b != ',' {
			return false
		}
	}
	return false
}

// namesAscend compares two raw names; only those with escapes need decoding.
func namesAscend(a, b []byte, escaped bool) bool {
	if !escaped {
		return CompareNames(a, b) < 0
	}
	var bufA, bufB [64]byte
	return CompareNames(decodeRaw(bufA[:0], a), decodeRaw(bufB[:0], b)) < 0
}

func decodeRaw(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		r, n, _ := unescape(raw[i:])
		dst = utf8.AppendRune(dst, r)
		i += n
	}
	return dst
}

// str passes over a string in its one canonical spelling and returns its raw
// text between the quotes.
func (c *canonicalChecker) str() (raw []byte, escaped, ok bool) {
	c.i++
	start := c.i
	for {
		c.i += plainRun(c.src[c.i:])
		if c.i >= len(c.src) {
			return nil, false, false
		}
		switch b := c.src[c.i]; {
		case b == '"':
			c.i++
			return c.src[start : c.i-1], escaped, true
		case b == '\\':
			r, n, v := unescape(c.src[c.i:])
			if v != None || r >= utf8.RuneSelf || plain[r] {
				return nil, false, false
			}
			var buf [6]byte
			if !bytes.Equal(appendEscape(buf[:0], byte(r)), c.src[c.i:c.i+n]) {
				return nil, false, false
			}
			escaped = true
			c.i += n
		case b < 0x20:
			return nil, false, false
		default:
			r, n := utf8.DecodeRune(c.src[c.i:])
			if r == utf8.RuneError && n <= 1 {
				return nil, false, false
			}
			c.i += n
		}
	}
}
