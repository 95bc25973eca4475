package export

import (
	"io"
	"strconv"
	"time"
)

// entryMembers are the members of a row in their order.
var entryMembers = [...]string{
	"id", "timestamp", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id", "request_id_type",
	"mcp_name", "tool_name", "params", "result", "error", "duration_ms", "client_id", "server_id", "principal", "policy",
	"reason", "anomaly", "http_status", "protocol_version", "session", "task", "client_info", "counts", "count",
	"request_bytes", "request_sha256", "response_bytes", "response_sha256", "parent_seq", "traceparent",
}

// jsonLines writes one JSON object a line. Values are as the log has them.
type jsonLines struct {
	w io.Writer
	b []byte
}

func (j *jsonLines) Write(r *Row) error {
	o := newObject(j.b[:0])
	o.text("kind", r.Kind)
	if r.own() {
		r.Close.Members(func(name string, value []byte) bool {
			if name != "kind" && name != "seq" && name != "leaf" {
				o.raw(name, value)
			}
			return true
		})
	} else {
		for _, name := range entryMembers {
			value := r.member(name)
			switch {
			case value == nil:
			case name == "timestamp":
				value = strconv.AppendQuote(nil, r.end().Format(time.RFC3339Nano))
			case name == "principal":
				value = members(value, false, "subject", "client_id", "issuer")
			case name == "error":
				value = members(value, false, "code", "message", "data")
			}
			o.raw(name, value)
		}
	}
	if r.Origin != "" && (!r.own() || r.Close.Member("origin") == nil) {
		o.text("origin", r.Origin)
	}
	o.integer("seq", int64(r.Seq()))
	o.text("leaf", r.Leaf())
	if r.Intent != nil {
		o.integer("intent_seq", int64(r.Intent.Line.Seal.Seq))
		o.text("intent_leaf", r.Intent.Line.Seal.Leaf.String())
	}
	j.b = append(o.end(), '\n')
	_, err := j.w.Write(j.b)
	return err
}
