package caddymodule_test

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule"
)

// toolServer answers as the called tool's name says.
func toolServer(t *testing.T) *upstream {
	return newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		body := readBody(t, req)
		if !strings.Contains(body, `"id"`) {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		answer := `"result":{"content":[]}`
		switch {
		case strings.Contains(body, `"tools/list"`):
			answer = `"result":{"tools":[{"name":"listed","inputSchema":{"type":"object"}}]}`
		case strings.Contains(body, `"name":"failing"`):
			answer = `"result":{"content":[],"isError":true}`
		case strings.Contains(body, `"name":"missing"`), strings.Contains(body, `"name":"bogus`), strings.Contains(body, `bogus/`):
			answer = `"error":{"code":-32602,"message":"unknown"}`
		}
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,%s}`, answer)
	})
}

func callOf(tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q}}`, tool)
}

// scrape returns the product's series and their values, and the text they were
// read from.
func (r *rig) scrape() (map[string]float64, string) {
	r.t.Helper()
	resp := get(r.t, strings.TrimSuffix(r.url(), "/mcp")+"/metrics")
	defer resp.Body.Close()
	values := make(map[string]float64)
	var text strings.Builder
	for line := range strings.Lines(readAll(r.t, resp)) {
		if !strings.Contains(line, "mcp_audit_") {
			continue
		}
		text.WriteString(line)
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if !found {
			if name, value, found = strings.Cut(strings.TrimSpace(line), " "); !found {
				continue
			}
		} else {
			name += "}"
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = v
		}
	}
	return values, text.String()
}

// awaitSeries scrapes until a series has a value: operations end after their
// answers.
func (r *rig) awaitSeries(name string, want float64) {
	r.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		values, text := r.scrape()
		if values[name] == want {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s is %v, not %v, in\n%s", name, values[name], want, text)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestEachOperationIsCountedOnceByItsStatus(t *testing.T) {
	r := start(t, toolServer(t), "policy {\n\trule NO deny {\n\t\ttool denied\n\t}\n}\nmax_body 1000", "")
	r.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, tool := range []string{"listed", "listed", "failing", "missing", "denied"} {
		r.post(callOf(tool))
	}
	r.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	r.post(callOf("listed") + "{}")
	r.post(callOf(strings.Repeat("x", 2000)))
	labels := func(method, status string) string {
		return fmt.Sprintf(`mcp_audit_entries_total{direction="client_to_server",method=%q,status=%q,transport="http"}`, method, status)
	}
	calls := func(tool, status string) string {
		return fmt.Sprintf(`mcp_audit_tool_calls_total{status=%q,tool_name=%q,transport="http"}`, status, tool)
	}
	for series, want := range map[string]float64{
		labels("tools/list", "ok"):                                        1,
		labels("tools/call", "ok"):                                        2,
		labels("tools/call", "tool_error"):                                1,
		labels("tools/call", "rpc_error"):                                 1,
		labels("tools/call", "denied"):                                    1,
		labels("other", "denied"):                                         2, // the one that is no JSON, and the one that is too large
		calls("listed", "ok"):                                             2,
		calls("other", "tool_error"):                                      1,
		calls("other", "rpc_error"):                                       1,
		calls("other", "denied"):                                          1,
		`mcp_audit_policy_decisions_total{action="deny"}`:                 1,
		`mcp_audit_policy_decisions_total{action="allow"}`:                6,
		`mcp_audit_http_refusals_total{reason="body_too_large"}`:          1,
		`mcp_audit_operation_duration_seconds_count{method="tools/list"}`: 1,
		`mcp_audit_open_operations{log="default"}`:                        0,
	} {
		r.awaitSeries(series, want)
	}
	values, _ := r.scrape()
	sum := 0.0
	for name, v := range values {
		if strings.HasPrefix(name, "mcp_audit_entries_total{") {
			sum += v
		}
	}
	if sum != 8 {
		t.Errorf("8 operations and refusals count as %v", sum)
	}
	if values["mcp_audit_async_batches_total"] == 0 || values[`mcp_audit_storage_writes_total{backend="jsonl",mode="async",status="ok"}`] == 0 {
		t.Error("the batches were not counted")
	}
}

func TestClientsCannotMakeSeries(t *testing.T) {
	r := start(t, toolServer(t), "refusals off", "")
	r.post(callOf("listed"))
	r.awaitSeries(`mcp_audit_tool_calls_total{status="ok",tool_name="listed",transport="http"}`, 1)
	r.post(callOf("bogus"))
	r.post(`{"jsonrpc":"2.0","id":1,"method":"bogus/method"}`)
	r.awaitSeries(`mcp_audit_entries_total{direction="client_to_server",method="other",status="rpc_error",transport="http"}`, 1)
	r.awaitSeries(`mcp_audit_tool_calls_total{status="rpc_error",tool_name="other",transport="http"}`, 1)
	before, _ := r.scrape()
	const n = 500
	for i := range n {
		r.post(callOf(fmt.Sprintf("bogus%d", i)))
		r.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"bogus/%d"}`, i))
	}
	r.awaitSeries(`mcp_audit_tool_calls_total{status="rpc_error",tool_name="other",transport="http"}`, n+1)
	after, _ := r.scrape()
	for name := range after {
		if _, had := before[name]; !had && !strings.Contains(name, `{log="`) {
			t.Errorf("a new series %s", name)
		}
	}
}

func TestToolLabelsCanBeTurnedOff(t *testing.T) {
	r := start(t, toolServer(t), "tool_labels off", "")
	r.post(callOf("listed"))
	r.awaitSeries(`mcp_audit_tool_calls_total{status="ok",tool_name="other",transport="http"}`, 1)
}

func TestCountersSurviveReloads(t *testing.T) {
	r := start(t, toolServer(t), "", "")
	name := `mcp_audit_tool_calls_total{status="ok",tool_name="listed",transport="http"}`
	for i := range 3 {
		r.post(callOf("listed"))
		r.awaitSeries(name, float64(i+1))
		if err := r.load(r.caddyfile(fmt.Sprintf("max_body %d", 1000+i), "")); err != nil {
			t.Fatal(err)
		}
		r.awaitSeries(name, float64(i+1))
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	r := start(t, toolServer(t), "", "")
	r.post(callOf("listed"))
	r.awaitSeries(`mcp_audit_tool_calls_total{status="ok",tool_name="listed",transport="http"}`, 1)
	_, text := r.scrape()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// TestMetricsReferenceIsComplete compares docs/metrics.md with what a registry
// is given.
func TestMetricsReferenceIsComplete(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `(mcp_audit_\\w+)` \\| \\w+ \\| ([\\w, ]*)\\|").FindAllStringSubmatch(string(page), -1) {
		labels := strings.FieldsFunc(row[2], func(c rune) bool { return c == ',' || c == ' ' })
		slices.Sort(labels)
		documented[row[1]] = strings.Join(labels, " ")
	}
	have := describedMetrics(t)
	if !maps.Equal(documented, have) {
		for _, name := range slices.Sorted(maps.Keys(documented)) {
			if labels, ok := have[name]; !ok || labels != documented[name] {
				t.Errorf("docs/metrics.md has %s with %q, the program %q", name, documented[name], labels)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if _, ok := documented[name]; !ok {
				t.Errorf("docs/metrics.md lacks %s with %q", name, have[name])
			}
		}
	}
}

func describedMetrics(t *testing.T) map[string]string {
	shape := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([^}]*)\}`)
	all := make(map[string]string)
	for _, d := range caddymodule.Descriptions() {
		parts := shape.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("not understood: %s", d)
		}
		labels := strings.Split(parts[2], ",")
		slices.Sort(labels)
		all[parts[1]] = strings.Join(labels, " ")
	}
	return all
}

func readAll(t *testing.T, resp *http.Response) string {
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
