package mcp

import (
	"bytes"
	"fmt"
	"sync"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// JSON-RPC error codes that a message's shape can cause.
const (
	CodeParseError     = -32700
	CodeInvalidRequest = -32600
)

// The bounds of the strict scan. The outermost container
// has depth 1.
const (
	MaxDepth = canon.MaxDepth
	MaxKeys  = canon.MaxKeys
)

// MaxBatch bounds the messages of a batch, since a Message takes many times
// the bytes of the shortest text it is read from.
const MaxBatch = 1024

// ScanError says why a body is refused. Why is one of
//
//	grammar utf8 surrogate bom trailing depth keys      no strict JSON (CodeParseError)
//	dup_key fold_variant                                two readers would differ
//	no_object no_method mixed jsonrpc id method error   no JSON-RPC 2.0 message
//	params name meta                                    not what the method defines
//	empty_batch batch_size                              no batch
type ScanError struct {
	Code    int    // CodeParseError or CodeInvalidRequest
	Why     string // one word, for the record
	Element int    // of a batch, else 0
	ID      []byte // the raw id token, if it is unambiguous; else nil
}

// scanTexts says what each Why means, for people.
var scanTexts = map[string]string{
	"grammar":      "it breaks the grammar of RFC 8259",
	"utf8":         "it has bytes that are no UTF-8",
	"surrogate":    "a string has half of a surrogate pair",
	"bom":          "it begins with a byte order mark",
	"trailing":     "text follows the message",
	"depth":        fmt.Sprintf("it is nested more than %d deep", MaxDepth),
	"keys":         fmt.Sprintf("an object has more than %d members", MaxKeys),
	"dup_key":      "an object has two members of the same name",
	"fold_variant": "a member's name differs from one of the protocol only in its case",
	"no_object":    "a message must be an object",
	"no_method":    "it has neither a method nor a result nor an error",
	"mixed":        "it is a request and an answer at once",
	"jsonrpc":      `it needs "jsonrpc":"2.0"`,
	"id":           "an id must be a string or an integer",
	"method":       "the method must be a string",
	"error":        "the error must be an object",
	"params":       "the params must be an object",
	"name":         "the operation's name is missing, repeated or no string",
	"meta":         "a member of _meta has the wrong type",
	"empty_batch":  "the batch is empty",
	"batch_size":   fmt.Sprintf("the batch has more than %d messages", MaxBatch),
}

// Error implements error. The text is fit for the client: it tells no content.
func (e *ScanError) Error() string {
	if e.Code == CodeParseError {
		return "the message is not strict JSON: " + scanTexts[e.Why]
	}
	return "the message is not valid: " + scanTexts[e.Why]
}

func parseError(why string) *ScanError   { return &ScanError{Code: CodeParseError, Why: why} }
func invalidError(why string) *ScanError { return &ScanError{Code: CodeInvalidRequest, Why: why} }

// Scan reads a client's body strictly, in one pass and without allocating in
// the steady state, and appends one Message to dst[:0], or one per element of
// a batch. Anything two parsers could read differently is an error, and so is
// a shape that is no JSON-RPC 2.0 message. On an error the messages read so
// far are returned for the record; they must not be forwarded. The spans point
// into body, which must not change while they are used.
func Scan(body []byte, dst []Message) (msgs []Message, batch bool, err *ScanError) {
	s := scanners.Get().(*scanner)
	s.reset(body)
	msgs, batch, err = s.scan(dst[:0])
	s.put()
	if err != nil && err.ID == nil && !batch {
		err.ID = onlyID(body)
	}
	return msgs, batch, err
}

func (s *scanner) scan(msgs []Message) ([]Message, bool, *ScanError) {
	body := s.b
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		return msgs, false, parseError("bom")
	}
	s.space()
	if s.i < len(body) && body[s.i] == '[' {
		return s.batch(msgs)
	}
	var m Message
	if err := s.message(&m); err != nil {
		return appendPartial(msgs, &m), false, err
	}
	s.space()
	if s.i < len(body) {
		return msgs, false, parseError("trailing")
	}
	m.Whole = Span{0, len(body)}
	return append(msgs, m), false, nil
}

// appendPartial keeps what was read of a message if it says what it is.
func appendPartial(msgs []Message, m *Message) []Message {
	if m.Kind == KindInvalid {
		return msgs
	}
	return append(msgs, *m)
}

func (s *scanner) batch(msgs []Message) ([]Message, bool, *ScanError) {
	s.i++
	s.depth++
	s.space()
	if s.i < len(s.b) && s.b[s.i] == ']' {
		return msgs, true, invalidError("empty_batch")
	}
	for n := 0; ; n++ {
		if n == MaxBatch {
			return msgs, true, invalidError("batch_size")
		}
		s.space()
		var m Message
		if err := s.message(&m); err != nil {
			err.Element = n
			// An id of one element does not answer a whole batch.
			err.ID = nil
			return appendPartial(msgs, &m), true, err
		}
		msgs = append(msgs, m)
		s.space()
		if s.i >= len(s.b) {
			return msgs, true, parseError("grammar")
		}
		c := s.b[s.i]
		s.i++
		if c == ',' {
			continue
		}
		if c != ']' {
			return msgs, true, parseError("grammar")
		}
		s.space()
		if s.i < len(s.b) {
			return msgs, true, parseError("trailing")
		}
		return msgs, true, nil
	}
}

// scanner walks strict JSON by position.
type scanner struct {
	b     []byte
	i     int
	depth int
	names []name // of the objects that are open
	arena []byte // decoded names with escapes

	// Where both begin, so that a new scanner is one allocation.
	firstNames [64]name
	firstBytes [256]byte
}

// name is a decoded member name: in the body, or in the arena if it had
// escapes.
type name struct {
	start, end int
	arena      bool
}

var scanners = sync.Pool{New: func() any {
	s := new(scanner)
	s.names, s.arena = s.firstNames[:0], s.firstBytes[:0]
	return s
}}

func (s *scanner) reset(b []byte) {
	s.b, s.i, s.depth = b, 0, 0
	s.names, s.arena = s.names[:0], s.arena[:0]
}

// keepScratch is the largest scratch space, in bytes or names, that is kept
// for the next scan.
const keepScratch = 64 << 10

// put gives the scanner back without the body it read.
func (s *scanner) put() {
	s.b = nil
	if cap(s.arena) > keepScratch {
		s.arena = s.firstBytes[:0]
	}
	if cap(s.names) > keepScratch {
		s.names = s.firstNames[:0]
	}
	scanners.Put(s)
}
