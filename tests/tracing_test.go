package tests

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/collector"
	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

const tracerName = "github.com/caddy-mcp-audit/mcp-audit/caddymodule"

// startTraced is a Caddy whose tracing goes to a collector.
func startTraced(t *testing.T, u *upstream.Server, c *collector.Collector) *harness.Caddy {
	return harness.StartCaddy(t, harness.Site{
		Upstream: u.Address,
		Handler:  denyDelete,
		Routes:   "tracing",
		Global:   "metrics {\notlp\n}",
	},
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+c.Address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRIC_EXPORT_INTERVAL=200")
}

// operationSpan waits for the one span of an operation.
func operationSpan(t *testing.T, c *collector.Collector, id string) collector.Span {
	t.Helper()
	var found []collector.Span
	harness.Eventually(t, "the span of request "+id, func() bool {
		found = nil
		for _, s := range c.Spans() {
			if s.Scope == tracerName && s.Attribute("jsonrpc.request.id") == id {
				found = append(found, s)
			}
		}
		return len(found) > 0
	})
	if len(found) != 1 {
		t.Fatalf("request %s has %d spans", id, len(found))
	}
	return found[0]
}

// caddySpan waits for a span of Caddy's own, by its id.
func caddySpan(t *testing.T, c *collector.Collector, id string) collector.Span {
	t.Helper()
	var found collector.Span
	harness.Eventually(t, "Caddy's span "+id, func() bool {
		for _, s := range c.Spans() {
			if s.Scope != tracerName && s.SpanID().String() == id {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// TEL-1
func TestEachOperationIsASpanAtACollector(t *testing.T) {
	c := collector.Start(t)
	u := upstream.Start(t)
	caddy := startTraced(t, u, c)
	const (
		httpTrace = "0af7651916cd43dd8448eb211c80319c"
		metaTrace = "1bf7651916cd43dd8448eb211c80319d"
		metaSpan  = "c7ad6b7169203332"
		secret    = "hunter2-in-the-arguments"
	)
	caddy.Post(t, call("1", "echo", `{"m":"`+secret+`"}`), "Traceparent", "00-"+httpTrace+"-b7ad6b7169203331-01")
	caddy.Post(t, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"m":"x"},"_meta":{"traceparent":"00-`+metaTrace+`-`+metaSpan+`-01"}}}`)
	caddy.Post(t, call("3", "delete_file", `{"path":"`+secret+`"}`))
	caddy.Post(t, call("4", "raw", `{"bytes":"{\"jsonrpc\":\"2.0\",\"id\":4,\"error\":{\"code\":-32055,\"message\":\"no\"}}"}`))
	caddy.Post(t, `{"jsonrpc":"2.0","id":5,"method":"resources/read","params":{"uri":"notes://`+secret+`"}}`)

	first := operationSpan(t, c, "1")
	if first.Name() != "tools/call echo" || first.TraceID().String() != httpTrace {
		t.Errorf("span %q of trace %s", first.Name(), first.TraceID())
	}
	outer := caddySpan(t, c, first.ParentSpanID().String())
	if outer.ParentSpanID().String() != "b7ad6b7169203331" {
		t.Errorf("Caddy's span continues %s", outer.ParentSpanID())
	}
	for name, want := range map[string]string{
		"mcp.method.name":          "tools/call",
		"gen_ai.operation.name":    "execute_tool",
		"gen_ai.tool.name":         "echo",
		"network.transport":        "tcp",
		"network.protocol.name":    "http",
		"mcp_audit.server_id":      "rig",
		"mcp_audit.outcome":        "success",
		"error.type":               "",
		"rpc.response.status_code": "",
	} {
		if got := first.Attribute(name); got != want {
			t.Errorf("attribute %s is %q, not %q", name, got, want)
		}
	}
	if first.Attribute("mcp.protocol.version") == "" || !strings.HasPrefix(first.Schema, "https://opentelemetry.io/schemas/") {
		t.Errorf("protocol version %q, schema %q", first.Attribute("mcp.protocol.version"), first.Schema)
	}
	operation := caddy.Operation(t, "call 1", func(r harness.Record) bool { return r.OperationID == first.Attribute("mcp_audit.operation_id") })
	if !strings.Contains(operation.Intent.Line, httpTrace) {
		t.Errorf("the record has no trace: %s", operation.Intent.Line)
	}
	if got, want := u.Headers()[0].Get("Traceparent"), "00-"+httpTrace+"-"+first.SpanID().String()+"-01"; got != want {
		t.Errorf("the server was sent the parent %s, not %s", got, want)
	}

	second := operationSpan(t, c, "2")
	if second.TraceID().String() != metaTrace || second.ParentSpanID().String() != metaSpan {
		t.Errorf("the span of a message with a trace context is in %s under %s", second.TraceID(), second.ParentSpanID())
	}
	if second.Links().Len() != 1 {
		t.Fatalf("%d links", second.Links().Len())
	}
	caddySpan(t, c, second.Links().At(0).SpanID().String())

	denied := operationSpan(t, c, "3")
	if denied.Attribute("error.type") != "denied" || denied.Attribute("mcp_audit.policy.rule_id") != "NO-DELETE" || denied.Status().Code().String() != "Error" {
		t.Errorf("denied: %v, %s", denied.Attributes().AsRaw(), denied.Status().Code())
	}
	failed := operationSpan(t, c, "4")
	if failed.Attribute("rpc.response.status_code") != "-32055" || failed.Attribute("error.type") != "-32055" || failed.Status().Code().String() != "Error" {
		t.Errorf("failed: %v, %s", failed.Attributes().AsRaw(), failed.Status().Code())
	}
	operationSpan(t, c, "5")
	caddy.Post(t, `{"jsonrpc":"2.0","id":6,"method":"prompts/get","params":{"name":"greeting"}}`)
	operationSpan(t, c, "6")
	documented, seen := documentedAttributes(t), make(map[string]bool)
	for _, s := range c.Spans() {
		if s.Scope == tracerName {
			for name := range s.Attributes().All() {
				seen[name] = true
			}
		}
	}
	if !maps.Equal(documented, seen) {
		t.Errorf("docs/tracing.md has the attributes\n%q, the spans\n%q", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(seen)))
	}
	for _, s := range c.Spans() {
		for name, value := range s.Attributes().All() {
			if strings.Contains(value.AsString(), secret) {
				t.Errorf("attribute %s of %s has an argument", name, s.Name())
			}
		}
		if strings.Contains(s.Name(), secret) {
			t.Errorf("the name of span %s has an argument", s.Name())
		}
	}
	harness.Eventually(t, "metrics at the collector", func() bool {
		names := c.MetricNames()
		return names["mcp_audit_sink_up"] && (names["mcp_audit_entries_total"] || names["mcp_audit_entries"])
	})
}

// documentedAttributes are those of the reference page.
func documentedAttributes(t *testing.T) map[string]bool {
	page, err := os.ReadFile("../docs/tracing.md")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+(?:\\.[a-z_]+)+)` \\|").FindAllStringSubmatch(string(page), -1) {
		if !strings.HasPrefix(row[1], "otel.") { // keys of another system, further down
			names[row[1]] = true
		}
	}
	return names
}
