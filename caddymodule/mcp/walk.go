package mcp

import (
	"bytes"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// place says which object of a message the scanner is in, so that it knows
// which names matter there.
type place uint8

const (
	placeOther place = iota
	placeTop
	placeParams
	placeMeta
	placeRef
	placeArgument
	placeTask
	placeNotifications
	placeInputResponses
	placeInputResponse
	placeError
	placeResult
)

// protocolNames are the names that decide something in each place. Another
// name that equals one of them under Unicode simple folding would be read as
// it by a lenient server, so it is refused.
var protocolNames = [...][]string{
	placeTop: {"jsonrpc", "id", "method", "params", "result", "error"},
	placeParams: {"name", "arguments", "uri", "_meta", "taskId", "ref", "argument", "task", "protocolVersion", "clientInfo",
		"capabilities", "requestId", "notifications", "inputResponses", "requestState", "cursor", "level", "progressToken"},
	placeMeta: {metaProtocolVersion, metaClientInfo, metaClientCapabilities, "io.modelcontextprotocol/logLevel",
		"io.modelcontextprotocol/related-task", "progressToken", "traceparent", "tracestate", "baggage"},
	placeRef:      {"type", "name", "uri"},
	placeArgument: {"name", "value"},
	placeTask:     {"ttl", "taskId"},
	placeNotifications: {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions",
		"taskIds"},
	placeError:          {"code", "message", "data"},
	placeResult:         {"action", "content", "isError", "structuredContent"},
	placeInputResponses: nil, // the names are the server's own
	placeInputResponse:  {"action", "content", "role", "roots"},
	placeOther:          nil,
}

// foldedNames are the same as bytes, so that comparing them allocates nothing.
var foldedNames = func() (t [len(protocolNames)][][]byte) {
	for p, names := range protocolNames {
		for _, n := range names {
			t[p] = append(t[p], []byte(n))
		}
	}
	return t
}()

const (
	metaPrefix             = "io.modelcontextprotocol/"
	metaProtocolVersion    = metaPrefix + "protocolVersion"
	metaClientInfo         = metaPrefix + "clientInfo"
	metaClientCapabilities = metaPrefix + "clientCapabilities"
)

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// message scans one JSON-RPC message.
func (s *scanner) message(m *Message) *ScanError {
	if s.i >= len(s.b) {
		return parseError("grammar")
	}
	if s.b[s.i] != '{' {
		// Read on, so that a text that is not even JSON says so.
		if err := s.value(placeOther, nil); err != nil {
			return err
		}
		return invalidError("no_object")
	}
	start := s.i
	if err := s.object(placeTop, m); err != nil {
		m.Whole = Span{start, len(s.b)}
		return err
	}
	m.Whole = Span{start, s.i}
	return m.classify(s.b)
}

// value passes over any value; in an object of a known place its members are
// noted in m.
func (s *scanner) value(p place, m *Message) *ScanError {
	if s.i >= len(s.b) {
		return parseError("grammar")
	}
	switch c := s.b[s.i]; c {
	case '{':
		return s.object(p, m)
	case '[':
		return s.array()
	case '"':
		n, _, v := canon.ScanString(s.b[s.i:])
		if v != canon.None {
			return parseError(string(v))
		}
		s.i += n
		return nil
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		n := canon.NumberLen(s.b[s.i:])
		if n == 0 {
			return parseError("grammar")
		}
		s.i += n
		return nil
	}
}

func (s *scanner) literal(word string) *ScanError {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return parseError("grammar")
	}
	s.i += len(word)
	return nil
}

func (s *scanner) array() *ScanError {
	if s.depth++; s.depth > MaxDepth {
		return parseError("depth")
	}
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		s.i++
		s.depth--
		return nil
	}
	for {
		s.space()
		if err := s.value(placeOther, nil); err != nil {
			return err
		}
		s.space()
		if s.i >= len(s.b) {
			return parseError("grammar")
		}
		c := s.b[s.i]
		s.i++
		if c == ']' {
			s.depth--
			return nil
		}
		if c != ',' {
			return parseError("grammar")
		}
	}
}

func (s *scanner) object(p place, m *Message) *ScanError {
	if s.depth++; s.depth > MaxDepth {
		return parseError("depth")
	}
	first, arena := len(s.names), len(s.arena)
	s.i++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == '}' {
		s.i++
		s.depth--
		return nil
	}
	for {
		s.space()
		n, err := s.name()
		if err != nil {
			return err
		}
		if len(s.names)-first >= MaxKeys {
			return parseError("keys")
		}
		s.names = append(s.names, n)
		key := s.text(n)
		if p != placeOther && foldVariant(p, key) {
			return invalidError("fold_variant")
		}
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != ':' {
			return parseError("grammar")
		}
		s.i++
		s.space()
		inner := placeOther
		if p != placeOther {
			inner = innerPlace(p, key)
		}
		start := s.i
		if err := s.value(inner, m); err != nil {
			return err
		}
		if p != placeOther {
			// The arena may have moved while the value was scanned.
			m.note(p, s.text(n), Span{start, s.i}, s.b)
		}
		s.space()
		if s.i >= len(s.b) {
			return parseError("grammar")
		}
		c := s.b[s.i]
		s.i++
		if c == ',' {
			continue
		}
		if c != '}' {
			return parseError("grammar")
		}
		if s.repeated(s.names[first:]) {
			return invalidError("dup_key")
		}
		s.names, s.arena = s.names[:first], s.arena[:arena]
		s.depth--
		return nil
	}
}

// name scans a member name. Only one with escapes is copied.
func (s *scanner) name() (name, *ScanError) {
	n, escaped, v := canon.ScanString(s.b[s.i:])
	if v != canon.None {
		return name{}, parseError(string(v))
	}
	token := Span{s.i, s.i + n}
	s.i += n
	if !escaped {
		return name{start: token.Start + 1, end: token.End - 1}, nil
	}
	start := len(s.arena)
	s.arena, _ = canon.Unquote(s.arena, token.Of(s.b))
	return name{start: start, end: len(s.arena), arena: true}, nil
}

func (s *scanner) text(n name) []byte {
	if n.arena {
		return s.arena[n.start:n.end]
	}
	return s.b[n.start:n.end]
}

// fewNames is up to where comparing each with each is faster than sorting.
const fewNames = 12

// repeated reports whether two names of an object are equal when decoded. It
// may reorder them.
func (s *scanner) repeated(names []name) bool {
	if len(names) <= fewNames {
		for i := 1; i < len(names); i++ {
			a := s.text(names[i])
			for _, other := range names[:i] {
				if bytes.Equal(a, s.text(other)) {
					return true
				}
			}
		}
		return false
	}
	slices.SortFunc(names, func(a, b name) int { return bytes.Compare(s.text(a), s.text(b)) })
	for i := 1; i < len(names); i++ {
		if bytes.Equal(s.text(names[i-1]), s.text(names[i])) {
			return true
		}
	}
	return false
}

// foldVariant reports whether a name is not a protocol name of its place but
// folds to one.
func foldVariant(p place, key []byte) bool {
	for _, known := range protocolNames[p] {
		if string(key) == known {
			return false
		}
	}
	for _, known := range foldedNames[p] {
		if bytes.EqualFold(key, known) {
			return true
		}
	}
	return false
}

func innerPlace(p place, key []byte) place {
	switch p {
	case placeTop:
		switch string(key) {
		case "params":
			return placeParams
		case "error":
			return placeError
		case "result":
			return placeResult
		}
	case placeParams:
		switch string(key) {
		case "_meta":
			return placeMeta
		case "ref":
			return placeRef
		case "argument":
			return placeArgument
		case "task":
			return placeTask
		case "notifications":
			return placeNotifications
		case "inputResponses":
			return placeInputResponses
		}
	case placeInputResponses:
		return placeInputResponse
	case placeResult:
		if string(key) == "task" {
			return placeTask
		}
	}
	return placeOther
}
