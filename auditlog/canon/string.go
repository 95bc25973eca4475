package canon

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// plain marks the ASCII bytes that stand for themselves in a JSON string.
var plain = func() (t [utf8.RuneSelf]bool) {
	for b := byte(0x20); b < utf8.RuneSelf; b++ {
		t[b] = b != '"' && b != '\\'
	}
	return t
}()

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainRun returns how many bytes at the start of b are plain, eight at a time.
func plainRun(b []byte) int {
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote := w ^ ones*'"'
		slash := w ^ ones*'\\'
		// A byte below 0x20, at or above 0x80, a quote or a backslash.
		if special := (w | (w - ones*0x20) | (quote - ones) | (slash - ones)) & highs; special != 0 {
			// A borrow only reaches bytes above one that is special itself,
			// so that the lowest mark is always true.
			return i + bits.TrailingZeros64(special)>>3
		}
	}
	for ; i < len(b) && b[i] < utf8.RuneSelf && plain[b[i]]; i++ {
	}
	return i
}

// appendEscape appends the one JCS spelling of an ASCII character that needs
// an escape.
func appendEscape(dst []byte, b byte) []byte {
	switch b {
	case '"', '\\':
		return append(dst, '\\', b)
	case '\b':
		return append(dst, '\\', 'b')
	case '\t':
		return append(dst, '\\', 't')
	case '\n':
		return append(dst, '\\', 'n')
	case '\f':
		return append(dst, '\\', 'f')
	case '\r':
		return append(dst, '\\', 'r')
	}
	const hex = "0123456789abcdef"
	return append(dst, '\\', 'u', '0', '0', hex[b>>4], hex[b&15])
}

// str converts the string token at the read position.
func (c *converter) str(dst []byte) ([]byte, Violation) {
	c.i++
	dst = append(dst, '"')
	for {
		n := plainRun(c.src[c.i:])
		dst = append(dst, c.src[c.i:c.i+n]...)
		c.i += n
		r, done, v := c.char()
		if v != None {
			return dst, v
		}
		if done {
			return append(dst, '"'), None
		}
		if r < utf8.RuneSelf && !plain[r] {
			dst = appendEscape(dst, byte(r))
		} else {
			dst = utf8.AppendRune(dst, r)
		}
	}
}

// name converts a member name and notes its decoded text. A name that begins
// with "$" gains one more.
func (c *converter) name(dst []byte) ([]byte, Violation) {
	c.i++
	start := len(c.names)
	for {
		n := plainRun(c.src[c.i:])
		c.names = append(c.names, c.src[c.i:c.i+n]...)
		c.i += n
		r, done, v := c.char()
		if v != None {
			return dst, v
		}
		if done {
			break
		}
		c.names = utf8.AppendRune(c.names, r)
	}
	if len(c.names) > start && c.names[start] == '$' {
		c.names = append(c.names, 0)
		copy(c.names[start+1:], c.names[start:])
		c.names[start] = '$'
	}
	dst = append(dst, '"')
	for rest := c.names[start:]; len(rest) > 0; {
		n := 0
		for n < len(rest) && (rest[n] >= utf8.RuneSelf || plain[rest[n]]) {
			n++
		}
		dst = append(dst, rest[:n]...)
		if rest = rest[n:]; len(rest) > 0 {
			dst = appendEscape(dst, rest[0])
			rest = rest[1:]
		}
	}
	return append(dst, '"'), None
}

// char decodes the next character of a string, or reports its end.
func (c *converter) char() (r rune, done bool, v Violation) {
	if c.i >= len(c.src) {
		return 0, false, Grammar
	}
	switch b := c.src[c.i]; {
	case b == '"':
		c.i++
		return 0, true, None
	case b == '\\':
		r, n, v := unescape(c.src[c.i:])
		c.i += n
		return r, false, v
	case b < 0x20:
		return 0, false, Grammar
	case b < utf8.RuneSelf:
		c.i++
		return rune(b), false, None
	}
	r, n := utf8.DecodeRune(c.src[c.i:])
	if r == utf8.RuneError && n <= 1 {
		return 0, false, UTF8
	}
	c.i += n
	return r, false, None
}

// unescape decodes the escape that b starts with and returns its length.
func unescape(b []byte) (rune, int, Violation) {
	if len(b) < 2 {
		return 0, 0, Grammar
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2, None
	case 'b':
		return '\b', 2, None
	case 'f':
		return '\f', 2, None
	case 'n':
		return '\n', 2, None
	case 'r':
		return '\r', 2, None
	case 't':
		return '\t', 2, None
	case 'u':
	default:
		return 0, 0, Grammar
	}
	r, ok := hex4(b[2:])
	if !ok {
		return 0, 0, Grammar
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, None
	}
	if r >= 0xDC00 || len(b) < 8 || b[6] != '\\' || b[7] != 'u' {
		return 0, 0, Surrogate
	}
	low, ok := hex4(b[8:])
	if !ok {
		return 0, 0, Grammar
	}
	if low < 0xDC00 || low > 0xDFFF {
		return 0, 0, Surrogate
	}
	return utf16.DecodeRune(r, low), 12, None
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, d := range b[:4] {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// Unquote appends the decoded text of a JSON string token to dst. It reports
// false if token is not exactly one strict string.
func Unquote(dst, token []byte) ([]byte, bool) {
	if len(token) < 2 || token[0] != '"' {
		return dst, false
	}
	c := converter{src: token, i: 1}
	for {
		n := plainRun(c.src[c.i:])
		dst = append(dst, c.src[c.i:c.i+n]...)
		c.i += n
		r, done, v := c.char()
		if v != None {
			return dst, false
		}
		if done {
			return dst, c.i == len(token)
		}
		dst = utf8.AppendRune(dst, r)
	}
}
