package legacy

import (
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// field is one member of an object: its decoded name and the JSON text of its
// value, which points into the source.
type field struct {
	name  string
	value []byte
}

// object is a JSON object taken apart, its members in their order. A name may
// occur more than once.
type object []field

// maxFields bounds the members of an object, as the gate does.
const maxFields = canon.MaxKeys

// parseObject takes the text of one object apart, with white space around it.
// Each value passed the gate on its own, up to 64 levels, except that a
// repeated name inside of one is left to the reader of that value. The
// violation says why a text is refused.
func parseObject(text []byte) (object, canon.Violation) {
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return nil, canon.Grammar
	}
	var o object
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == '}' {
		return o, trailing(text, i+1)
	}
	for {
		f, next, v := parseField(text, i)
		if v != canon.None {
			return nil, v
		}
		if len(o) == maxFields {
			return nil, canon.Keys
		}
		o = append(o, f)
		if next >= len(text) {
			return nil, canon.Grammar
		}
		switch text[next] {
		case ',':
			i = skipSpace(text, next+1)
		case '}':
			return o, trailing(text, next+1)
		default:
			return nil, canon.Grammar
		}
	}
}

// parseField reads a member at i and returns the index of what follows it.
func parseField(text []byte, i int) (f field, next int, v canon.Violation) {
	n, _, v := canon.ScanString(text[min(i, len(text)):])
	if v != canon.None {
		return f, 0, v
	}
	name, ok := canon.Unquote(nil, text[i:i+n])
	if !ok {
		return f, 0, canon.Grammar
	}
	i = skipSpace(text, i+n)
	if i >= len(text) || text[i] != ':' {
		return f, 0, canon.Grammar
	}
	start := skipSpace(text, i+1)
	end, v := valueEnd(text, start)
	if v != canon.None {
		return f, 0, v
	}
	f = field{string(name), text[start:end:end]}
	if v := gate(f.value); v != canon.None && v != canon.DupKey {
		return f, 0, v
	}
	return f, skipSpace(text, end), canon.None
}

// maxOwnDepth is how deep a value of our own copy can be: a payload of 64
// levels whose innermost number stands in a $num object.
const maxOwnDepth = canon.MaxDepth + 1

// gate reports the first rule of strict JSON that a value breaks.
func gate(value []byte) canon.Violation {
	v := canon.Check(value)
	if v == canon.Depth && canon.IsCanonical(value, maxOwnDepth) {
		return canon.None
	}
	return v
}

func trailing(text []byte, i int) canon.Violation {
	if skipSpace(text, i) != len(text) {
		return canon.Grammar
	}
	return canon.None
}

func skipSpace(text []byte, i int) int {
	for i < len(text) {
		switch text[i] {
		case ' ', '\t', '\n', '\r':
			i++
		default:
			return i
		}
	}
	return i
}

// valueEnd returns the index behind the value at i. It follows strings and
// brackets only; the gate judges what lies between.
func valueEnd(text []byte, i int) (int, canon.Violation) {
	depth := 0
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			n, _, v := canon.ScanString(text[i:])
			if v != canon.None {
				return 0, v
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i, canon.None
			}
			depth--
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i, canon.None
			}
		}
	}
	if depth > 0 {
		return 0, canon.Grammar
	}
	return i, canon.None
}

// get returns the value of the first member of a name, or nil.
func (o object) get(name string) []byte {
	i := slices.IndexFunc(o, func(f field) bool { return f.name == name })
	if i < 0 {
		return nil
	}
	return o[i].value
}

// has reports whether there is a member of this name that is not null.
func (o object) has(name string) bool {
	v := o.get(name)
	return v != nil && string(v) != "null"
}

// text returns the decoded text of a string member. ok is false if the member
// is there and is neither a string nor null.
func (o object) text(name string) (text string, ok bool) {
	v := o.get(name)
	if v == nil || string(v) == "null" {
		return "", true
	}
	out, ok := canon.Unquote(nil, v)
	return string(out), ok
}
