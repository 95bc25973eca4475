package auditlog

import "time"

// Direction says which way a message travelled.
type Direction string

// The two directions.
const (
	ClientToServer Direction = "client→server"
	ServerToClient Direction = "server→client"
)

// Result is how an operation ended (record member "outcome").
type Result string

// How an operation can end; docs/log-format.md says what each means.
const (
	Success           Result = "success"
	ToolError         Result = "tool_error"
	RPCError          Result = "rpc_error"
	InputRequired     Result = "input_required"
	Denied            Result = "denied"
	RateLimited       Result = "rate_limited"
	UpstreamError     Result = "upstream_error"
	Timeout           Result = "timeout"
	ClientDisconnect  Result = "client_disconnect"
	Cancelled         Result = "cancelled"
	MalformedResponse Result = "malformed_upstream_response"
	InternalError     Result = "internal_error"
	Unknown           Result = "unknown"
)

// Principal is who made a call, as verified. Empty fields are left out of the
// record.
type Principal struct {
	Subject  string
	ClientID string
	Issuer   string
	// Source says where the identity came from, for example
	// "{http.auth.user.id}", "configured" or "shim".
	Source string
	Roles  []string
	Scopes []string
}

// Policy is the decision about a message.
type Policy struct {
	Decision string // "allow" or "deny"
	RuleID   string // empty: the default action decided
	Reason   string
	Digest   string // of the whole policy, so that the record names what judged it
}

// Payload is a params, result or error value to be recorded.
//
// Received is the value's bytes as they came (nil: the record has no such
// member; empty bytes are a value that is no JSON); Redacted is what redaction made
// of them (nil: nothing was changed). The record keeps the normal form of the
// redacted text. A value that is not strict JSON is kept as $raw, or, with
// RedactionOn, as $trunc, because bytes that cannot be parsed cannot be
// redacted safely. A payload longer than Limit (0: no limit) is kept as $trunc.
type Payload struct {
	Received    []byte
	Redacted    []byte
	RedactionOn bool
	Limit       int
	// Withheld, if not empty, forces the $trunc form although the value is
	// well-formed, and is its "why": a redaction rule failed.
	Withheld string
}

// Message is what the records of one JSON-RPC message have in common. Empty
// fields are left out of the record.
type Message struct {
	OperationID     string // UUIDv7; Begin and Event make one if empty
	Direction       Direction
	Transport       string // "http" or "stdio"
	ProtocolVersion string
	Method          string
	RequestID       string // decoded string, raw number token, or "" for null
	RequestIDType   string // "string", "number", "null"; "" means no id
	MCPName         string
	ToolName        string
	SessionID       string // in clear; the record carries its keyed hash
	TaskID          string // in clear; the record carries its keyed hash
	ClientID        string
	ServerID        string
	Principal       *Principal
	Policy          *Policy
	// ParentSeq is the seq of the intent in whose exchange the message
	// travelled; HasParent says whether there is one.
	ParentSeq   uint64
	HasParent   bool
	Reason      string
	Anomaly     []string
	HTTPStatus  int
	TraceParent string
	// ClientInfo is what the client says of itself, as JSON text. It is
	// recorded and never decides anything.
	ClientInfo []byte
}

// Intent is a request about to be forwarded.
type Intent struct {
	Message
	Params  Payload
	Request []byte // the exact bytes of the message, for request_bytes and request_sha256
}

// Outcome closes an operation. Members that name the operation are taken from
// its intent; Direction, if empty, is that of the intent.
type Outcome struct {
	Result     Result
	Direction  Direction
	Answer     Payload // member "result"
	Error      Payload // member "error"
	Response   []byte  // the exact bytes of the answer; nil: there was none
	Duration   time.Duration
	Reason     string
	Anomaly    []string
	HTTPStatus int
	// Policy replaces the intent's decision if not nil (a refusal after the intent).
	Policy *Policy
	// SessionID, if not empty, replaces the intent's: the answer opened it.
	SessionID string
	// TaskID, if not empty, replaces the intent's: the answer created it.
	TaskID string
	// ResponseHash replaces Response for an answer that was not held in
	// memory: see Operation.NewWireHash.
	ResponseHash *WireHash
	// Counts of messages that travelled with the operation and have no record
	// of their own, by name, for example "progress".
	Counts map[string]int
}

// Event is one message or fact without an operation of its own: a
// notification, an answer without an open intent, a refusal, GET or DELETE of
// a session.
type Event struct {
	Message
	Result  Result // member "outcome"; may be empty
	Params  Payload
	Answer  Payload // member "result"
	Error   Payload
	Request []byte
	// Count, if above 1, says for how many identical facts this event stands
	// (joined refusals).
	Count int
}
