package export

import (
	"bytes"
	"encoding/hex"
	"strings"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
)

// LogRecord is a row as a log record of OpenTelemetry (logs data model 1.x):
// the body is one sentence, the attribute mcp_audit.row the row as in the
// format jsonl, and the others say what is asked for most.
func LogRecord(r *Row) (*logs.LogRecord, error) {
	var row bytes.Buffer
	lines, err := New("jsonl", &row, Options{})
	if err == nil {
		err = lines.Write(r)
	}
	if err != nil {
		return nil, err
	}
	at := uint64(max(r.end().UnixNano(), 0))
	record := &logs.LogRecord{
		TimeUnixNano: at, ObservedTimeUnixNano: at,
		SeverityNumber: otlpSeverity(r), SeverityText: otlpSeverityText(r),
		EventName: "mcp_audit." + r.Kind,
		Body:      stringValue(strings.ToValidUTF8(r.summary(), "�")),
	}
	text := func(name, value string) {
		if value != "" {
			record.Attributes = append(record.Attributes, &common.KeyValue{Key: name, Value: stringValue(strings.ToValidUTF8(value, "�"))})
		}
	}
	number := func(name string, value uint64) {
		record.Attributes = append(record.Attributes, &common.KeyValue{Key: name, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: int64(value)}}})
	}
	text("mcp_audit.origin", r.Origin)
	number("mcp_audit.seq", r.Seq())
	text("mcp_audit.leaf", r.Leaf())
	if r.Intent != nil {
		number("mcp_audit.intent_seq", r.Intent.Line.Seal.Seq)
	}
	for _, a := range [...]struct{ attribute, member string }{
		{"mcp_audit.operation_id", "audit_operation_id"}, {"mcp_audit.outcome", "outcome"}, {"mcp.method.name", "method"},
		{"gen_ai.tool.name", "tool_name"}, {"mcp_audit.client_id", "client_id"}, {"mcp_audit.server_id", "server_id"},
		{"mcp.protocol.version", "protocol_version"},
	} {
		text(a.attribute, r.text(a.member))
	}
	text("user.id", r.inner("principal", "subject"))
	text("mcp_audit.decision", r.inner("policy", "decision"))
	text("mcp_audit.rule_id", r.inner("policy", "rule_id"))
	text("mcp_audit.reason", r.reason())
	if ms, ok := r.number("duration_ms"); ok {
		number("mcp_audit.duration_ms", ms)
	}
	if status, ok := r.number("http_status"); ok {
		number("http.response.status_code", status)
	}
	record.TraceId, record.SpanId = traceOf(r.text("traceparent"))
	text("mcp_audit.row", strings.TrimSuffix(row.String(), "\n"))
	return record, nil
}

func stringValue(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}}
}

func otlpSeverity(r *Row) logs.SeverityNumber {
	switch severityOf(r) {
	case high:
		return logs.SeverityNumber_SEVERITY_NUMBER_ERROR
	case medium:
		return logs.SeverityNumber_SEVERITY_NUMBER_WARN
	case low:
		return logs.SeverityNumber_SEVERITY_NUMBER_INFO2
	}
	return logs.SeverityNumber_SEVERITY_NUMBER_INFO
}

func otlpSeverityText(r *Row) string {
	return [...]string{informational: "INFO", low: "INFO2", medium: "WARN", high: "ERROR"}[severityOf(r)]
}

// traceOf takes a traceparent apart (W3C Trace Context, version 00).
func traceOf(traceparent string) (trace, span []byte) {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return nil, nil
	}
	trace, err := hex.DecodeString(parts[1])
	if err != nil {
		return nil, nil
	}
	if span, err = hex.DecodeString(parts[2]); err != nil {
		return nil, nil
	}
	return trace, span
}
