package caddymodule

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// tracerName is the instrumentation scope of the spans.
const tracerName = "github.com/caddy-mcp-audit/mcp-audit/caddymodule"

// traceContext reads and writes the W3C headers. Baggage is the client's text
// and none of ours.
var traceContext = propagation.TraceContext{}

// startSpan begins the span of an operation, if Caddy's tracing has one for the
// exchange; nil if not. Its parent is the span that the message names in its
// _meta, with a link to Caddy's, or else Caddy's. Nothing of arguments or
// results becomes an attribute.
func (x *exchange) startSpan(m *mcp.Message, body []byte, base *auditlog.Message) trace.Span {
	outer := trace.SpanFromContext(x.r.Context())
	if !outer.SpanContext().IsValid() {
		return nil
	}
	kind := trace.SpanKindServer
	if base.Direction == auditlog.ServerToClient {
		kind = trace.SpanKindClient
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(kind)}
	ctx := x.r.Context()
	if parent := remoteSpan(traceParent(mcp.Text(m.TraceParent.Of(body)))); parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
		options = append(options, trace.WithLinks(trace.Link{SpanContext: outer.SpanContext()}))
	}
	tracer := outer.TracerProvider().Tracer(tracerName, trace.WithSchemaURL(semconv.SchemaURL))
	_, span := tracer.Start(ctx, spanName(base), options...)
	if span.IsRecording() {
		span.SetAttributes(x.spanAttributes(base)...)
	}
	return span
}

// remoteSpan reads a trace context as W3C writes it.
func remoteSpan(text string) trace.SpanContext {
	if text == "" {
		return trace.SpanContext{}
	}
	ctx := traceContext.Extract(context.Background(), propagation.MapCarrier{"traceparent": text})
	return trace.SpanContextFromContext(ctx)
}

// spanName is the method, with the name of the tool or prompt: those come from
// a bounded set, where a URI does not.
func spanName(base *auditlog.Message) string {
	method := methodLabel(base.Method)
	switch {
	case base.ToolName != "":
		return method + " " + base.ToolName
	case base.Method == methodPromptsGet && base.MCPName != "":
		return method + " " + base.MCPName
	default:
		return method
	}
}

const methodPromptsGet = "prompts/get"

// spanAttributes are by the names of OpenTelemetry's semantic conventions for
// MCP, GenAI, JSON-RPC and networks; what they lack is under mcp_audit.
func (x *exchange) spanAttributes(base *auditlog.Message) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 16)
	add := func(key attribute.Key, value string) {
		if value != "" {
			attributes = append(attributes, key.String(value))
		}
	}
	add(semconv.McpMethodNameKey, base.Method)
	add(semconv.McpProtocolVersionKey, base.ProtocolVersion)
	add(semconv.JSONRPCRequestIDKey, base.RequestID)
	switch base.Method {
	case methodToolsCall:
		attributes = append(attributes, semconv.GenAIOperationNameExecuteTool)
		add(semconv.GenAIToolNameKey, base.ToolName)
	case methodPromptsGet:
		add(semconv.GenAIPromptNameKey, base.MCPName)
	}
	if base.Transport == "stdio" {
		attributes = append(attributes, semconv.NetworkTransportPipe)
	} else {
		attributes = append(attributes, semconv.NetworkTransportTCP, semconv.NetworkProtocolName("http"))
	}
	add("mcp_audit.log", x.h.settings.name)
	add("mcp_audit.direction", directionLabel(base.Direction))
	add("mcp_audit.client_id", base.ClientID)
	add("mcp_audit.server_id", base.ServerID)
	if base.Policy != nil {
		add("mcp_audit.policy.decision", base.Policy.Decision)
		add("mcp_audit.policy.rule_id", base.Policy.RuleID)
	}
	return attributes
}

// forwardSpan makes the operation's span the parent of what the server traces.
func (x *exchange) forwardSpan(span trace.Span) {
	ctx := trace.ContextWithSpan(context.Background(), span)
	traceContext.Inject(ctx, propagation.HeaderCarrier(x.r.Header))
}

// spanRefusal traces a request that was refused, once it is recorded as the
// i-th event of its refusal.
func (x *exchange) spanRefusal(ref *refusal, i int, e *auditlog.Event) {
	m := ref.m
	if m == nil && i < len(x.msgs) {
		m = &x.msgs[i]
	}
	if m == nil || m.Kind != mcp.KindRequest {
		return
	}
	if span := x.startSpan(m, x.body, &e.Message); span != nil {
		endSpan(span, e.OperationID, e.Result, int32(ref.code))
	}
}

// endSpan closes the span of an operation, or of a refused request, with what
// became of it.
func endSpan(span trace.Span, operationID string, result auditlog.Result, code int32) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		if operationID != "" {
			span.SetAttributes(attribute.String("mcp_audit.operation_id", operationID))
		}
		span.SetAttributes(attribute.String("mcp_audit.outcome", string(result)))
		if code != 0 {
			span.SetAttributes(semconv.RPCResponseStatusCode(strconv.Itoa(int(code))))
		}
		if kind := errorType(result, code); kind != "" {
			span.SetAttributes(semconv.ErrorTypeKey.String(kind))
			span.SetStatus(codes.Error, "")
		}
	}
	span.End()
}

// errorType is the error.type of a result: the code of a JSON-RPC error, else
// the outcome's name; empty for what is no error.
func errorType(result auditlog.Result, code int32) string {
	switch result {
	case auditlog.Success, auditlog.InputRequired:
		return ""
	case auditlog.RPCError:
		if code != 0 {
			return strconv.Itoa(int(code))
		}
	}
	return string(result)
}

// errorCode is the code of a JSON-RPC error; 0 if it has none that is a number
// of this size.
func errorCode(m *mcp.Message, body []byte) int32 {
	code, err := strconv.ParseInt(string(m.ErrorCode.Of(body)), 10, 32)
	if err != nil {
		return 0
	}
	return int32(code)
}
