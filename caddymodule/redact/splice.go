package redact

import (
	"bytes"
	"cmp"
	"slices"
	"unicode/utf8"
)

// lift translates edits of the decoded text of a string into edits of the text
// that holds it, and appends them to dst. raw is the text between the string's
// quotes and base its place.
func lift(dst, edits []edit, raw []byte, base int) []edit {
	at, decoded := 0, 0 // the same place in raw and in the decoded text
	seek := func(target int) int {
		for decoded < target {
			if raw[at] == '\\' {
				r, n := unescape(raw[at:])
				at += n
				decoded += utf8.RuneLen(r)
				continue
			}
			n := bytes.IndexByte(raw[at:], '\\')
			if n < 0 || n > target-decoded {
				n = target - decoded
			}
			at += n
			decoded += n
		}
		return base + at
	}
	for _, e := range edits {
		dst = append(dst, edit{start: seek(e.start), end: seek(e.end), level: e.level, bare: e.bare, with: e.with})
	}
	return dst
}

// splice returns src with the ranges of edits, which are in order and do not
// overlap, replaced.
func splice(src []byte, edits []edit) []byte {
	size := len(src)
	for _, e := range edits {
		size += len(e.with) + 2*quoteLen(e.level) - (e.end - e.start)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, e := range edits {
		out = append(out, src[at:e.start]...)
		if e.bare {
			out = append(out, e.with...)
		} else {
			out = appendQuote(out, e.level)
			out = append(out, e.with...)
			out = appendQuote(out, e.level)
		}
		at = e.end
	}
	return append(out, src[at:]...)
}

// sortEdits puts edits in order; of two that begin together, the longer is first.
func sortEdits(edits []edit) {
	slices.SortStableFunc(edits, func(a, b edit) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.end, a.end))
	})
}

// quoteLen is the length of a quote that is escaped once for each level: each
// escaping doubles the backslashes and adds one.
func quoteLen(level int) int { return 1 << level }

func appendQuote(dst []byte, level int) []byte {
	for range quoteLen(level) - 1 {
		dst = append(dst, '\\')
	}
	return append(dst, '"')
}
