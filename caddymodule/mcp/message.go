// Package mcp is the protocol as an intermediary must see it: the strict scan
// of a request, revisions, operations, SSE framing and header rules. It is
// pure: no I/O, no Caddy, no logging.
package mcp

// Span is a half-open range of bytes in a scanned body. The zero Span means
// the member is absent.
type Span struct{ Start, End int }

// Present reports whether the member is there.
func (s Span) Present() bool { return s.End > s.Start }

// Of returns the bytes of the span in body, nil if absent.
func (s Span) Of(body []byte) []byte {
	if !s.Present() {
		return nil
	}
	return body[s.Start:s.End]
}

// IDType is the JSON type of a message id.
type IDType uint8

// The id types. IDNone means that the message has no id member or, in an
// answer, one that is no id.
const (
	IDNone IDType = iota
	IDString
	IDNumber
	IDNull
)

// Kind tells the four sorts of JSON-RPC message apart.
type Kind uint8

// The kinds of message. A method without an id is a Notification; whether the
// method may be one is ClassifyMethod's business.
const (
	KindInvalid Kind = iota
	KindRequest
	KindNotification
	KindResult
	KindError
)

// Message is one scanned JSON-RPC message. All spans are offsets into the
// scanned body, of raw JSON tokens (strings with their quotes).
type Message struct {
	Kind   Kind
	Whole  Span // the exact bytes: the body, or of a batch the element without the white space around it
	ID     Span
	IDType IDType
	Method Span
	Params Span
	Result Span
	Error  Span

	// Name is the operation's name as policy and Mcp-Name see it:
	// params.name, params.uri, params.taskId or params.ref.name/uri,
	// whichever the method defines. It is always a string token.
	Name            Span
	Arguments       Span // params.arguments
	Meta            Span // params._meta
	ProtocolVersion Span // params._meta["io.modelcontextprotocol/protocolVersion"], or protocolVersion in initialize's params or result
	TraceParent     Span // params._meta.traceparent
	ClientInfo      Span // params.clientInfo or params._meta["io.modelcontextprotocol/clientInfo"]
	ProgressToken   Span // params._meta.progressToken, in notifications/progress params.progressToken
	CancelledID     Span // params.requestId of notifications/cancelled (raw id token)
	InputResponses  Span // params.inputResponses
	Notifications   Span // params.notifications, of subscriptions/listen

	// Of an answer (KindResult, KindError):
	ErrorCode  Span // error.code
	IsError    bool // result.isError is true
	ResultType Span // result.resultType
	// InputRequests is result.inputRequests: what the server asks its client
	// for before it goes on.
	InputRequests Span
	TaskID        Span // result.task.taskId, or result.taskId of a result that is a task

	f fields
}
