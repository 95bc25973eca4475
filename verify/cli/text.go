package cli

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
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

// clipped is a text cut to a number of characters.
func clipped(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
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
	text, ok := canon.Unquote(nil, auditlog.ObjectMember(object, name))
	if !ok {
		return ""
	}
	return string(text)
}

// reordered is an object with some members first, in the given order.
func reordered(object []byte, first ...string) []byte {
	type member struct{ name, value []byte }
	var rest []member
	found := make([]member, len(first))
	ok := auditlog.ObjectMembers(object, func(name, value []byte) bool {
		m := member{name, value}
		if i := slices.Index(first, string(name)); i >= 0 {
			found[i] = m
		} else {
			rest = append(rest, m)
		}
		return true
	})
	if !ok {
		return object
	}
	out := []byte{'{'}
	for _, m := range append(found, rest...) {
		if m.value == nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), m.name...), `":`...), m.value...)
	}
	return append(out, '}')
}
