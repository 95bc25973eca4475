package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// printable makes text from a log fit for a terminal: whatever could move the
// cursor, change colours or reorder text is shown as an escape.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) < 0 {
		return s
	}
	return escape(s)
}

// escape writes each character that is not printable as JSON does.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsPrint(r):
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

// inner returns a text member of an object in a record, or "".
func inner(object []byte, name string) string {
	value := innerValue(object, name)
	text, ok := canon.Unquote(nil, value)
	if !ok {
		return ""
	}
	return string(text)
}

// innerValue returns a member of a canonical object, or nil.
func innerValue(object []byte, name string) []byte {
	for depth, i := 0, 0; i < len(object); i++ {
		switch object[i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			n, _, v := canon.ScanString(object[i:])
			if v != canon.None {
				return nil
			}
			end := i + n
			if depth == 1 && end < len(object) && object[end] == ':' && string(object[i+1:end-1]) == name {
				return valueAt(object, end+1)
			}
			i = end - 1
		}
	}
	return nil
}

// valueAt returns the scalar value that starts at i.
func valueAt(object []byte, i int) []byte {
	if i < len(object) && object[i] == '"' {
		n, _, _ := canon.ScanString(object[i:])
		return object[i : i+n]
	}
	end := i
	for end < len(object) && !strings.ContainsRune(",}]", rune(object[end])) {
		end++
	}
	return object[i:end]
}
