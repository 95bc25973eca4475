package canon

import "unicode/utf8"

// ScanString passes over the JSON string token that b starts with and returns
// its length with both quotes. escaped says that its raw text is not its
// decoded text.
func ScanString(b []byte) (n int, escaped bool, v Violation) {
	if len(b) == 0 || b[0] != '"' {
		return 0, false, Grammar
	}
	for i := 1; ; {
		i += plainRun(b[i:])
		if i >= len(b) {
			return 0, false, Grammar
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped, None
		case c == '\\':
			_, k, v := unescape(b[i:])
			if v != None {
				return 0, false, v
			}
			escaped = true
			i += k
		case c < 0x20:
			return 0, false, Grammar
		default:
			r, k := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && k <= 1 {
				return 0, false, UTF8
			}
			i += k
		}
	}
}

// NumberLen returns the length of the JSON number token that b starts with, 0
// if there is none.
func NumberLen(b []byte) int {
	n, _ := numberLen(b)
	return n
}
