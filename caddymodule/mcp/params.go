package mcp

import (
	"bytes"
	"math/big"
	"net/http"
	"slices"
	"strings"
)

// paramPrefix begins the headers that mirror arguments (SEP-2243).
const paramPrefix = "Mcp-Param-"

// annotation is the member of a property's schema that names its header.
const annotation = "x-mcp-header"

// ParamHeader says that a header mirrors an argument of a tool.
type ParamHeader struct {
	Name string   // the header, canonical: Mcp-Param-Region
	Path []string // of the argument, through the properties of its schema
}

// MirrorsParams reports whether a list of tools may declare such headers. It
// keeps most lists from being read a second time.
func MirrorsParams(result []byte) bool { return bytes.Contains(result, []byte(annotation)) }

// ParamHeaders calls each for every tool in the result of tools/list, with the
// headers that its schema declares, perhaps none. Of a tool that declares a
// header twice or in a way that the specification rules out, that header is
// left out: the server must not rely on it either.
func ParamHeaders(result []byte, each func(tool string, headers []ParamHeader)) {
	eachMember(result, func(name, value []byte) {
		if string(name) != "tools" {
			return
		}
		eachElement(value, func(tool []byte) {
			var toolName string
			var schema []byte
			eachMember(tool, func(name, value []byte) {
				switch string(name) {
				case "name":
					toolName = Text(value)
				case "inputSchema":
					schema = value
				}
			})
			each(toolName, declared(schema))
		})
	})
}

// ToolNames calls each for the name of every tool in the result of tools/list.
func ToolNames(result []byte, each func(name string)) {
	eachMember(result, func(name, value []byte) {
		if string(name) != "tools" {
			return
		}
		eachElement(value, func(tool []byte) {
			eachMember(tool, func(name, value []byte) {
				if string(name) == "name" {
					each(Text(value))
				}
			})
		})
	})
}

// declared reads the headers of a schema and drops those declared twice.
func declared(schema []byte) []ParamHeader {
	all := appendDeclared(nil, schema, nil)
	return slices.DeleteFunc(slices.Clone(all), func(h ParamHeader) bool {
		n := 0
		for _, other := range all {
			if other.Name == h.Name {
				n++
			}
		}
		return n > 1
	})
}

// appendDeclared descends through properties alone: what stands under items or
// a combination of schemas has no fixed place.
func appendDeclared(dst []ParamHeader, schema []byte, path []string) []ParamHeader {
	if len(path) >= MaxDepth {
		return dst
	}
	eachMember(schema, func(name, value []byte) {
		if string(name) != "properties" {
			return
		}
		eachMember(value, func(property, definition []byte) {
			at := append(slices.Clip(path), string(property))
			var header, kind string
			eachMember(definition, func(name, value []byte) {
				switch string(name) {
				case annotation:
					header = Text(value)
				case "type":
					kind = Text(value)
				}
			})
			if isToken(header) && (kind == "string" || kind == "integer" || kind == "boolean") {
				dst = append(dst, ParamHeader{Name: http.CanonicalHeaderKey(paramPrefix + header), Path: at})
			}
			dst = appendDeclared(dst, definition, at)
		})
	})
	return dst
}

// CheckParamHeaders compares the Mcp-Param headers that are there with the
// arguments that they mirror. arguments is the raw object of a message that
// passed Scan, or nil. A header that is missing is the server's business: it
// knows its schema better than a list that was seen some time ago.
func CheckParamHeaders(h http.Header, headers []ParamHeader, arguments []byte) *HeaderFault {
	for _, p := range headers {
		got, present := single(h, p.Name)
		if !present {
			continue
		}
		decoded, ok := DecodeHeaderValue(got)
		// Arguments and their mirrors are not repeated in the fault.
		if fault := (&HeaderFault{Status: http.StatusBadRequest, Code: CodeHeaderMismatch, Why: "header_mismatch", Header: p.Name}); !ok ||
			!mirrors(decoded, argument(arguments, p.Path)) {
			return fault
		}
	}
	return nil
}

// checkParamValues refuses what no reader could compare: a repeated Mcp-Param
// header, and a sentinel that does not decode.
func checkParamValues(h http.Header) *HeaderFault {
	for name, values := range h {
		if !strings.HasPrefix(name, paramPrefix) {
			continue
		}
		if len(values) > 1 {
			return badRequest("repeated_header", name)
		}
		if _, ok := DecodeHeaderValue(strings.Trim(values[0], " \t")); !ok {
			return &HeaderFault{Status: http.StatusBadRequest, Code: CodeHeaderMismatch, Why: "header_sentinel", Header: name}
		}
	}
	return nil
}

// argument is the raw value at a path, nil if there is none.
func argument(object []byte, path []string) (value []byte) {
	value = object
	for _, step := range path {
		inner := value
		value = nil
		eachMember(inner, func(name, v []byte) {
			if string(name) == step {
				value = v
			}
		})
	}
	return value
}

// mirrors reports whether a decoded header value stands for a raw argument:
// text as it is, integers by their value, booleans by their word. An absent or
// null argument has no header.
func mirrors(header string, value []byte) bool {
	if len(value) == 0 {
		return false
	}
	switch value[0] {
	case '"':
		return header == Text(value)
	case 't', 'f':
		return header == string(value)
	case 'n', '{', '[':
		return false
	}
	if header == string(value) {
		return true
	}
	// Bounded, since an exponent is quickly written and long in its expansion.
	if len(header) > 64 || len(value) > 64 || strings.ContainsAny(header, "eE/pPxX_") || bytes.ContainsAny(value, "eE") {
		return false
	}
	a, okA := new(big.Rat).SetString(header)
	b, okB := new(big.Rat).SetString(string(value))
	return okA && okB && a.Cmp(b) == 0
}

// isToken reports whether a text is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// eachMember calls f for the members of a JSON object, with decoded names and
// raw values, as lenient parsers read it; for nothing else, and up to the first
// fault of the grammar.
func eachMember(object []byte, f func(name, value []byte)) {
	a := answerScanner{b: object}
	a.space()
	if a.peek() != '{' {
		return
	}
	for more := a.enter(); more; more = a.next() {
		name, ok := a.name()
		start := a.i
		if !ok || !a.value() {
			return
		}
		f(name, object[start:a.i])
	}
}

// eachElement is eachMember for the elements of an array.
func eachElement(array []byte, f func(value []byte)) {
	a := answerScanner{b: array}
	a.space()
	if a.peek() != '[' {
		return
	}
	for more := a.enter(); more; more = a.next() {
		start := a.i
		if !a.value() {
			return
		}
		f(array[start:a.i])
	}
}
