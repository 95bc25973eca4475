package export

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxField is how many bytes of a text the line formats carry.
const maxField = 1023

// clip cuts a text to maxField bytes at a character, and marks it.
func clip(s string) string {
	if len(s) <= maxField {
		return s
	}
	const mark = "…"
	n := maxField - len(mark)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}

// oneLine writes characters that would end a line, or that a terminal would
// obey, as JSON does. Line feeds and carriage returns may be kept, for formats
// that have an escape of their own for them.
func oneLine(s string, keepBreaks bool) string {
	odd := func(r rune) bool {
		if r == '\n' || r == '\r' {
			return !keepBreaks
		}
		return r == utf8.RuneError || unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Cf, r)
	}
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !odd(r):
			b.WriteRune(r)
		case r > 0xFFFF:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xD800+r>>10, 0xDC00+r&0x3FF)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
