package caddymodule

import (
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// refusalCapture is how much payload the record of an admission refusal
// keeps, so that a flood cannot fill the disk.
const refusalCapture = 4 << 10

// message fills in what the records of a client's message have in common. A
// nil m stands for a request that carries no readable message.
func (x *exchange) message(m *mcp.Message) auditlog.Message {
	base := auditlog.Message{
		Direction:       auditlog.ClientToServer,
		Transport:       x.h.Transport,
		ProtocolVersion: x.h.redact.Text(x.revision),
		SessionID:       x.session,
		ClientID:        x.clientID,
		ServerID:        x.h.ServerID,
		Principal:       x.principal,
		Anomaly:         slices.Clip(x.anomaly),
		TraceParent:     traceParent(x.r.Header.Get("Traceparent")),
	}
	if m != nil {
		describe(&base, m, x.body, x.h.redact)
		base.ClientInfo = x.clientInfo(m.ClientInfo.Of(x.body))
	}
	return base
}

// clientInfo is what a record keeps of what the client says of itself:
// redacted like a payload, and nothing at all if it is too long to be a name.
func (x *exchange) clientInfo(raw []byte) []byte {
	p := x.payload("", raw, refusalCapture)
	switch {
	case p.Withheld != "" || len(raw) > refusalCapture:
		return nil
	case p.Redacted != nil:
		return p.Redacted
	default:
		return raw
	}
}

// describe fills in what one message says of itself.
func describe(base *auditlog.Message, m *mcp.Message, body []byte, profile *redact.Profile) {
	method := mcp.Text(m.Method.Of(body))
	base.Method = profile.Text(method)
	name := mcp.Text(m.Name.Of(body))
	switch info, _ := mcp.Lookup(method); info.NameParam {
	case "taskId":
		base.TaskID = name
	case "uri", "ref":
		base.MCPName = profile.URI(name)
	default:
		base.MCPName = profile.Text(name)
	}
	if base.Method == methodToolsCall {
		base.ToolName = base.MCPName
	}
	if m.IDType != mcp.IDNone {
		base.RequestID = profile.Text(mcp.DecodeID(m.ID.Of(body), m.IDType))
		base.RequestIDType = idTypeName(m.IDType)
	}
	if m.TraceParent.Present() {
		base.TraceParent = traceParent(mcp.Text(m.TraceParent.Of(body)))
	}
}

// traceParent returns a trace context as W3C writes it, and nothing for any
// other text: a record takes no free text from a header.
func traceParent(text string) string {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(text) != length {
		return ""
	}
	for i, c := range []byte(text) {
		dash := i == 2 || i == 35 || i == 52
		if dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return text
}

func idTypeName(t mcp.IDType) string {
	switch t {
	case mcp.IDString:
		return "string"
	case mcp.IDNumber:
		return "number"
	default:
		return "null"
	}
}

// idTypeOf is the type of a raw id token.
func idTypeOf(token []byte) mcp.IDType {
	switch {
	case len(token) == 0:
		return mcp.IDNone
	case token[0] == '"':
		return mcp.IDString
	case token[0] == 'n':
		return mcp.IDNull
	default:
		return mcp.IDNumber
	}
}

// payload prepares the value of a message's member for its record: redacted by splicing, never
// re-encoded. A rule that fails drops the value; it never passes it raw.
func (x *exchange) payload(member string, raw []byte, limit int) auditlog.Payload {
	p := auditlog.Payload{Received: raw, Limit: limit, RedactionOn: x.h.redact.On()}
	if len(raw) == 0 || !p.RedactionOn || limit > 0 && len(raw) > limit {
		return p
	}
	out, changed, err := x.h.redact.Member(member, raw)
	switch {
	case err != nil && storedInFull(canon.Check(raw)):
		p.Withheld = "redaction"
	case err == nil && changed:
		p.Redacted = out
	}
	return p
}

// storedInFull reports whether the log keeps all bytes of a payload with this
// violation, or none, so that one which cannot be redacted must be withheld.
func storedInFull(v canon.Violation) bool {
	return v == canon.None || v == canon.Depth || v == canon.Keys
}

// resultOf is the outcome that an answer states.
func resultOf(m *mcp.Message, body []byte) auditlog.Result {
	switch {
	case m.Kind == mcp.KindError:
		return auditlog.RPCError
	case m.IsError:
		return auditlog.ToolError
	case mcp.Text(m.ResultType.Of(body)) == "input_required":
		return auditlog.InputRequired
	default:
		return auditlog.Success
	}
}

// outcome makes the record of an answer. whole is the exact bytes of its message.
func (x *exchange) outcome(m *mcp.Message, body, whole []byte, direction auditlog.Direction) auditlog.Outcome {
	capture := int(x.h.Capture)
	return auditlog.Outcome{
		Result:    resultOf(m, body),
		Direction: direction,
		Answer:    x.payload("result", m.Result.Of(body), capture),
		Error:     x.payload("error", m.Error.Of(body), capture),
		Response:  whole,
		TaskID:    mcp.Text(m.TaskID.Of(body)),
	}
}
