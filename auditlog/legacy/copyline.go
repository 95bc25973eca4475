package legacy

import (
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// copiedTexts are the text members that an entry takes from a record.
var copiedTexts = []string{
	"id", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id",
	"mcp_name", "tool_name", "client_id", "server_id",
}

// entryOf is the entry that stands for an outcome or event. params is the
// JSON text of the request's, nil if there is none.
func entryOf(body, params []byte) (*entry, error) {
	e := &entry{text: make(map[string]string, len(textMembers)), params: params, duration: []byte("0")}
	for _, name := range copiedTexts {
		text, _ := canon.Unquote(nil, auditlog.ObjectMember(body, name))
		e.text[name] = string(text)
	}
	stamp, _ := canon.Unquote(nil, auditlog.ObjectMember(body, "timestamp"))
	var err error
	if e.time, err = time.Parse(time.RFC3339Nano, string(stamp)); err != nil {
		return nil, err
	}
	e.result = auditlog.ObjectMember(body, "result")
	if d := auditlog.ObjectMember(body, "duration_ms"); d != nil {
		if _, ok := safeInteger(d); ok {
			e.duration = d
		}
	}
	if value := auditlog.ObjectMember(body, "error"); value != nil {
		e.rpcError = errorOf(value)
	}
	e.principal = copiedObject(auditlog.ObjectMember(body, "principal"), principalMembers)
	e.policy = copiedObject(auditlog.ObjectMember(body, "policy"), policyMembers)
	return e, nil
}

// errorOf splits a recorded error. What has no code and message of the right
// types, such as a payload kept in part, goes into data as a whole.
func errorOf(value []byte) *rpcError {
	code := auditlog.ObjectMember(value, "code")
	message, text := canon.Unquote(nil, auditlog.ObjectMember(value, "message"))
	e := &rpcError{code: []byte("0"), data: value}
	if code == nil && !text {
		return e
	}
	if _, ok := safeInteger(code); ok {
		e.code = code
	}
	if text {
		e.message = string(message)
	}
	e.data = auditlog.ObjectMember(value, "data")
	return e
}

// copiedObject takes the known members of an object; nil if there is none.
func copiedObject(value []byte, known []string) []string {
	if value == nil {
		return nil
	}
	values := make([]string, len(known))
	for i, name := range known {
		text, _ := canon.Unquote(nil, auditlog.ObjectMember(value, name))
		values[i] = string(text)
	}
	return values
}

// appendEntry appends the line of a record, without LF: the members in the
// order of the other system, and both signatures.
func appendEntry(dst, body, params, secret []byte, keyID string) ([]byte, error) {
	e, err := entryOf(body, params)
	if err != nil {
		return nil, err
	}
	v2, err := signV2(secret, e)
	if err != nil {
		return nil, err
	}
	w := writer{b: dst}
	w.text("id", e.text["id"])
	w.text("timestamp", e.stamp())
	w.optional("audit_operation_id", e.text["audit_operation_id"])
	w.optional("outcome", e.text["outcome"])
	for _, name := range []string{"direction", "transport", "method"} {
		w.text(name, e.text[name])
	}
	for _, name := range []string{"request_id", "mcp_name", "tool_name"} {
		w.optional(name, e.text[name])
	}
	w.json("params", e.params)
	w.json("result", e.result)
	if e.rpcError != nil {
		w.open("error")
		w.json("code", e.rpcError.code)
		w.text("message", e.rpcError.message)
		w.json("data", e.rpcError.data)
		w.close()
	}
	w.json("duration_ms", e.duration)
	w.text("client_id", e.text["client_id"])
	w.text("server_id", e.text["server_id"])
	w.identity(e)
	w.text("signature", signV1(secret, e, e.params))
	w.open("integrity")
	w.json("version", []byte(v2Version))
	w.text("algorithm", v2Algorithm)
	w.text("key_id", keyID)
	w.text("signature", v2)
	w.close()
	return append(w.b, '}'), nil
}
