package redact

import (
	"bytes"
	"encoding/binary"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

const bom = '\uFEFF'

// str passes over the string token at i and reports whether it has escapes.
// That the text is valid UTF-8 is known.
func (t *pass) str() (escaped, ok bool) {
	t.i++
	for {
		t.i += plainRun(t.text[t.i:])
		switch t.peek() {
		case '"':
			t.i++
			return escaped, true
		case '\\':
			_, n := unescape(t.text[t.i:])
			if n == 0 {
				return escaped, false
			}
			escaped = true
			t.i += n
		default:
			return escaped, false
		}
	}
}

// plainRun returns how many bytes at the start of b are no quote, backslash or
// control character, eight at a time.
func plainRun(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		// The high bit of a byte tells whether it is to be looked at; a borrow
		// only ever marks bytes behind one that is. Bytes of 0x80 and above
		// are plain, hence the ^w.
		quote, slash := w^ones*'"', w^ones*'\\'
		if ((w-ones*0x20)|(quote-ones)|(slash-ones))&^w&highs != 0 {
			break
		}
	}
	for ; i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\'; i++ {
	}
	return i
}

// number passes over the number at i.
func (t *pass) number() bool {
	if t.peek() == '-' {
		t.i++
	}
	if t.peek() == '0' {
		t.i++
	} else if !t.digits() {
		return false
	}
	if t.peek() == '.' {
		if t.i++; !t.digits() {
			return false
		}
	}
	if c := t.peek(); c == 'e' || c == 'E' {
		t.i++
		if c := t.peek(); c == '+' || c == '-' {
			t.i++
		}
		return t.digits()
	}
	return true
}

// digits passes over one digit or more.
func (t *pass) digits() bool {
	start := t.i
	for isDigit(t.peek()) {
		t.i++
	}
	return t.i > start
}

func (t *pass) literal(word string) bool {
	if len(t.text)-t.i < len(word) || string(t.text[t.i:t.i+len(word)]) != word {
		return false
	}
	t.i += len(word)
	return true
}

// unescape decodes the escape that b begins with and returns its length, 0 if
// it is invalid or half of a surrogate pair.
func unescape(b []byte) (rune, int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	}
	r := codeUnit(b)
	if !utf16.IsSurrogate(r) {
		if r < 0 {
			return 0, 0
		}
		return r, 6
	}
	if r = utf16.DecodeRune(r, codeUnit(b[6:])); r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// codeUnit decodes the \uXXXX that b begins with, -1 if there is none.
func codeUnit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	r := rune(0)
	for _, d := range b[2:6] {
		switch {
		case isDigit(d):
			d -= '0'
		case d >= 'a' && d <= 'f':
			d -= 'a' - 10
		case d >= 'A' && d <= 'F':
			d -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(d)
	}
	return r
}

// decode appends the decoded text of raw, the valid text between the quotes of
// a string token, to dst.
func decode(dst, raw []byte) []byte {
	dst = slices.Grow(dst, len(raw)) // what is decoded is no longer
	for {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:n]...)
		r, size := unescape(raw[n:])
		dst = utf8.AppendRune(dst, r)
		raw = raw[n+size:]
	}
}

// opensJSON reports whether the decoded text of raw begins like an object or
// an array, after white space.
func opensJSON(raw []byte) bool {
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		if r == '\\' {
			r, n = unescape(raw)
		}
		switch r {
		case '{', '[', '"':
			return true
		case ' ', '\t', '\n', '\r', bom:
			raw = raw[n:]
		default:
			return false
		}
	}
	return false
}
