package mcp

import (
	"bytes"
	"math"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// fields are the members of a message that classify needs beside the exported
// spans.
type fields struct {
	jsonrpc                  Span
	name, uri, taskID        Span
	refName, refURI          Span
	paramsVersion            Span
	paramsClient, metaClient Span
	paramsProgress           Span
	resultTaskID             Span
}

// note keeps the span of a member that matters.
func (m *Message) note(p place, key []byte, at Span, b []byte) {
	switch p {
	case placeTop:
		switch string(key) {
		case "jsonrpc":
			m.f.jsonrpc = at
		case "id":
			m.ID = at
		case "method":
			m.Method = at
		case "params":
			m.Params = at
		case "result":
			m.Result = at
		case "error":
			m.Error = at
		}
	case placeParams:
		switch string(key) {
		case "name":
			m.f.name = at
		case "uri":
			m.f.uri = at
		case "taskId":
			m.f.taskID = at
		case "arguments":
			m.Arguments = at
		case "_meta":
			m.Meta = at
		case "protocolVersion":
			m.f.paramsVersion = at
		case "clientInfo":
			m.f.paramsClient = at
		case "requestId":
			m.CancelledID = at
		case "progressToken":
			m.f.paramsProgress = at
		case "inputResponses":
			m.InputResponses = at
		case "notifications":
			m.Notifications = at
		}
	case placeMeta:
		switch string(key) {
		case metaProtocolVersion:
			m.ProtocolVersion = at
		case metaClientInfo:
			m.f.metaClient = at
		case "traceparent":
			m.TraceParent = at
		case "progressToken":
			m.ProgressToken = at
		}
	case placeRef:
		switch string(key) {
		case "name":
			m.f.refName = at
		case "uri":
			m.f.refURI = at
		}
	case placeError:
		if string(key) == "code" {
			m.ErrorCode = at
		}
	case placeResult:
		switch string(key) {
		case "isError":
			m.IsError = string(at.Of(b)) == "true"
		case "resultType":
			m.ResultType = at
		case "inputRequests":
			m.InputRequests = at
		case "protocolVersion":
			m.ProtocolVersion = at
		case "taskId":
			m.f.resultTaskID = at
		}
	case placeTask:
		if string(key) == "taskId" {
			m.TaskID = at
		}
	}
}

// forget drops what was noted in a place: a member of that name is about to be
// read again, and the last one counts.
func (m *Message) forget(p place) {
	switch p {
	case placeParams:
		m.Meta, m.Arguments, m.CancelledID = Span{}, Span{}, Span{}
		m.InputResponses, m.Notifications = Span{}, Span{}
		m.f = fields{jsonrpc: m.f.jsonrpc}
		m.forget(placeMeta)
	case placeMeta:
		m.ProtocolVersion, m.TraceParent, m.ProgressToken, m.f.metaClient = Span{}, Span{}, Span{}, Span{}
	case placeRef:
		m.f.refName, m.f.refURI = Span{}, Span{}
	case placeResult:
		m.IsError, m.ResultType, m.ProtocolVersion, m.InputRequests = false, Span{}, Span{}, Span{}
		m.f.resultTaskID, m.TaskID = Span{}, Span{}
	case placeTask:
		m.TaskID = Span{}
	case placeError:
		m.ErrorCode = Span{}
	}
}

// classify says what a scanned message is and checks its shape (JSON-RPC 2.0
// and, for the methods the protocol defines, its operation's name).
func (m *Message) classify(b []byte) *ScanError {
	if err := m.classifyID(b); err != nil {
		return err
	}
	refuse := func(why string) *ScanError {
		err := invalidError(why)
		if m.IDType == IDString || m.IDType == IDNumber {
			err.ID = m.ID.Of(b)
		}
		return err
	}
	answer := m.Result.Present() || m.Error.Present()
	switch {
	case m.Method.Present() && answer, m.Result.Present() && m.Error.Present():
		return refuse("mixed")
	case m.Method.Present():
		if b[m.Method.Start] != '"' {
			return refuse("method")
		}
		m.Kind = KindNotification
		if m.IDType != IDNone {
			m.Kind = KindRequest
		}
	case m.Result.Present():
		m.Kind = KindResult
	case m.Error.Present():
		m.Kind = KindError
	default:
		return refuse("no_method")
	}
	if string(textBytes(m.f.jsonrpc.Of(b))) != "2.0" {
		return refuse("jsonrpc")
	}
	switch {
	case m.IDType == IDNull && m.Kind != KindError, answer && m.IDType == IDNone:
		return refuse("id")
	case m.Kind == KindError && b[m.Error.Start] != '{':
		return refuse("error")
	}
	if answer {
		return nil
	}
	if why := m.nameOperation(b); why != "" {
		return refuse(why)
	}
	return nil
}

func (m *Message) classifyID(b []byte) *ScanError {
	token := m.ID.Of(b)
	switch {
	case token == nil:
		m.IDType = IDNone
	case token[0] == '"':
		m.IDType = IDString
	case token[0] == 'n':
		m.IDType = IDNull
	case isInteger(token):
		m.IDType = IDNumber
	default:
		return invalidError("id")
	}
	return nil
}

// isInteger reports whether a number token is written as an integer.
func isInteger(token []byte) bool {
	for i, c := range token {
		if (c < '0' || c > '9') && !(i == 0 && c == '-') {
			return false
		}
	}
	return len(token) > 0
}

// nameOperation finds the operation's name and the other params that matter
// and checks that they are what the method says. It returns why not.
func (m *Message) nameOperation(b []byte) (why string) {
	method := textBytes(m.Method.Of(b))
	info, known := methods[string(method)]
	initialize := string(method) == methodInitialize
	if params := m.Params.Of(b); params != nil && params[0] != '{' && (known || params[0] != '[') {
		return "params"
	}
	if known && info.NameParam == "ref" && m.f.refName.Present() && m.f.refURI.Present() {
		// A prompt or a resource: which one, only the server decides.
		return "name"
	}
	m.Name = m.nameFor(info, known)
	if m.Name.Present() && b[m.Name.Start] != '"' {
		if known && info.NameParam != "" {
			return "name"
		}
		m.Name = Span{}
	}
	if known && info.NameRequired && !m.Name.Present() {
		return "name"
	}
	if m.f.paramsVersion.Present() && initialize {
		m.ProtocolVersion = m.f.paramsVersion
	}
	m.ClientInfo = m.f.metaClient
	if !m.ClientInfo.Present() && initialize {
		m.ClientInfo = m.f.paramsClient
	}
	for _, text := range []Span{m.ProtocolVersion, m.TraceParent} {
		if text.Present() && b[text.Start] != '"' {
			return "meta"
		}
	}
	if string(method) == methodProgress {
		m.ProgressToken = m.f.paramsProgress
	}
	if string(method) != methodCancelled {
		m.CancelledID = Span{}
	}
	return ""
}

func (m *Message) nameFor(info MethodInfo, known bool) Span {
	if known {
		switch info.NameParam {
		case "name":
			return m.f.name
		case "uri":
			return m.f.uri
		case "taskId":
			return m.f.taskID
		case "ref":
			if m.f.refName.Present() {
				return m.f.refName
			}
			return m.f.refURI
		default:
			return Span{}
		}
	}
	for _, candidate := range []Span{m.f.name, m.f.uri, m.f.taskID} {
		if candidate.Present() {
			return candidate
		}
	}
	return Span{}
}

// Text decodes a string token; anything else is "".
func Text(token []byte) string { return string(textBytes(token)) }

// textBytes is Text without a copy where the token has no escapes.
func textBytes(token []byte) []byte {
	if len(token) < 2 || token[0] != '"' {
		return nil
	}
	if n, escaped, v := canon.ScanString(token); v == canon.None && !escaped && n == len(token) {
		return token[1 : n-1]
	}
	out, ok := canon.Unquote(nil, token)
	if !ok {
		return nil
	}
	return out
}

// DecodeID is the text under which records keep an id: the decoded string, the
// raw number token, or "" for null and none. A string that cannot be decoded,
// which only an answer may hold, is kept as its token in valid UTF-8.
func DecodeID(token []byte, t IDType) string {
	switch t {
	case IDString:
		text, ok := canon.Unquote(nil, token)
		if !ok {
			text = bytes.ToValidUTF8(token, []byte("\ufffd"))
		}
		return string(text)
	case IDNumber:
		return string(token)
	default:
		return ""
	}
}

// IDKey is an id as answers are matched by it. 1 and "1" differ, and so do 1
// and 1.0. Integers are compared by their double value, because common peers
// return a large one rounded or, from 1e21 on, with an exponent.
func IDKey(token []byte, t IDType) string {
	switch t {
	case IDString:
		if text, ok := canon.Unquote(nil, token); ok {
			return "s" + string(text)
		}
		return "x" + string(token)
	case IDNumber:
		if number, ok := bigInteger(token); ok {
			return "n" + number
		}
		if string(token) == "-0" {
			return "n0"
		}
		return "n" + string(token)
	case IDNull:
		return "null"
	default:
		return ""
	}
}

// exactDigits is how many digits every double holds exactly.
const exactDigits = 15

// bigInteger writes an integer that a double may not hold as the double that
// JavaScript and others read it as.
func bigInteger(token []byte) (string, bool) {
	integer := isInteger(token)
	if integer && len(token) <= exactDigits {
		return "", false
	}
	f, err := strconv.ParseFloat(string(token), 64)
	if err != nil || !integer && math.Abs(f) < 1e21 {
		return "", false
	}
	return strconv.FormatFloat(f, 'f', -1, 64), true
}
