package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// auditedCalls leaves a log with three calls of echo, one of them with a
// secret, and a denied one.
func auditedCalls(t *testing.T) *harness.Caddy {
	t.Helper()
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})
	for _, m := range []string{"one", "two", "three"} {
		caddy.Post(t, call(`"`+m+`"`, "echo", `{"m":"`+m+`","password":"hunter2"}`))
	}
	caddy.Post(t, call("4", "delete_file", `{"path":"/srv/x"}`))
	caddy.Stop(t)
	return caddy
}

// tools is a client of `mcp-audit mcp`.
type tools struct {
	t       *testing.T
	session *mcp.ClientSession
}

func startTools(t *testing.T, dir string, logs ...string) tools {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: harness.CLI(t, dir, append([]string{"mcp"}, logs...)...)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return tools{t, session}
}

// call returns a tool's structured answer, and the text of its error.
func (s tools) call(name string, arguments map[string]any) (answer map[string]any, failure string) {
	s.t.Helper()
	result, err := s.session.CallTool(s.t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		s.t.Fatal(err)
	}
	if result.IsError {
		return nil, result.Content[0].(*mcp.TextContent).Text
	}
	raw, err := json.Marshal(result.StructuredContent)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		s.t.Fatal(err)
	}
	return answer, ""
}

func TestToolsOfTheLogHaveTheSchemasThatAgentsKnow(t *testing.T) {
	caddy := auditedCalls(t)
	s := startTools(t, caddy.Dir, caddy.Log)
	list, err := s.session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	schemas := make(map[string]string)
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		raw, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		schemas[tool.Name] = string(raw)
		if !tool.Annotations.ReadOnlyHint {
			t.Errorf("%s is not marked as reading only", tool.Name)
		}
	}
	slices.Sort(names)
	if want := []string{"audit_prove", "audit_search", "audit_status", "audit_tail", "audit_verify"}; !slices.Equal(names, want) {
		t.Errorf("tools %v", names)
	}
	var tail, verify struct {
		Properties map[string]struct{ Type string }
		Required   []string
	}
	for name, into := range map[string]any{"audit_tail": &tail, "audit_verify": &verify} {
		if err := json.Unmarshal([]byte(schemas[name]), into); err != nil {
			t.Fatal(err)
		}
	}
	if tail.Properties["count"].Type != "number" || len(tail.Required) != 0 {
		t.Errorf("audit_tail takes %s", schemas["audit_tail"])
	}
	if verify.Properties["logPath"].Type != "string" || !slices.Equal(verify.Required, []string{"logPath"}) {
		t.Errorf("audit_verify takes %s", schemas["audit_verify"])
	}
}

func TestToolsOfTheLogAnswerTruly(t *testing.T) {
	caddy := auditedCalls(t)
	s := startTools(t, caddy.Dir, caddy.Log)
	records := float64(len(caddy.Records(t)))

	status, _ := s.call("audit_status", nil)
	log := status["logs"].([]any)[0].(map[string]any)
	if log["chainIntegrity"] != "intact" || log["totalRecords"] != records || log["lastVerified"] == "" {
		t.Errorf("status %v", log)
	}
	tail, _ := s.call("audit_tail", map[string]any{"count": 2})
	entries := tail["entries"].([]any)
	if len(entries) != 2 || tail["omitted"].(float64) < 1 {
		t.Fatalf("tail %v", tail)
	}
	last := entries[1].(map[string]any)
	if last["outcome"] != "denied" || last["tool_name"] != "delete_file" || last["verified"] != true {
		t.Errorf("the newest entry is %v", last)
	}
	found, _ := s.call("audit_search", map[string]any{"tool": "echo", "outcome": "success", "limit": 200, "payloads": true})
	if n := len(found["entries"].([]any)); n != 3 {
		t.Errorf("%d calls of echo were found", n)
	}
	raw, _ := json.Marshal(found)
	if strings.Contains(string(raw), "hunter2") || !strings.Contains(string(raw), `"m":"two"`) {
		t.Errorf("payloads: %.500s", raw)
	}
	plain, _ := s.call("audit_search", map[string]any{"tool": "echo"})
	if raw, _ := json.Marshal(plain); strings.Contains(string(raw), `"m":"two"`) {
		t.Error("payloads were not asked for")
	}

	operation := found["entries"].([]any)[0].(map[string]any)["audit_operation_id"].(string)
	proof, failure := s.call("audit_prove", map[string]any{"operation": operation})
	if failure != "" {
		t.Fatal(failure)
	}
	dir := t.TempDir()
	for _, p := range proof["proofs"].([]any) {
		proven := p.(map[string]any)
		for name, text := range map[string]any{"r.json": proven["record"], "r.tlog-proof": proven["proof"]} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text.(string)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// The proof ends with its own newline.
		if err := os.WriteFile(filepath.Join(dir, "r.tlog-proof"), []byte(proven["proof"].(string)), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := harness.CLI(t, dir, "verify-proof", filepath.Join(dir, "r.json"), filepath.Join(dir, "r.tlog-proof"), "--pub", proof["publicKey"].(string))
		if out, stderr, code := harness.Run(t, cmd); code != 0 {
			t.Errorf("exit code %d\n%s%s", code, out, stderr)
		}
	}
	if n := len(proof["proofs"].([]any)); n != 2 {
		t.Errorf("%d records were proven", n)
	}
}

func TestToolsOfTheLogStayWithTheirLogs(t *testing.T) {
	caddy := auditedCalls(t)
	s := startTools(t, caddy.Dir, caddy.Log)
	other := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(other, []byte("not yours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for tool, arguments := range map[string]map[string]any{
		"audit_verify": {"logPath": other},
		"audit_tail":   {"logPath": other},
		"audit_search": {"logPath": "/etc/passwd"},
		"audit_prove":  {"logPath": other, "seq": 0},
	} {
		if _, failure := s.call(tool, arguments); !strings.Contains(failure, "was not given") {
			t.Errorf("%s: %q", tool, failure)
		}
	}
	for _, arguments := range []map[string]any{{"count": 201}, {"count": -1}} {
		if _, failure := s.call("audit_tail", arguments); !strings.Contains(failure, "out of bounds") {
			t.Errorf("%v: %q", arguments, failure)
		}
	}
	// What a caller sends is never taken for a flag.
	if _, failure := s.call("audit_prove", map[string]any{"operation": "--output=/tmp/x"}); failure == "" {
		t.Error("an operation that looks like a flag was accepted")
	}
}

func TestToolsOfTheLogSayWhereItWasTamperedWith(t *testing.T) {
	caddy := auditedCalls(t)
	lines := strings.SplitAfter(readText(t, caddy.Log), "\n")
	at := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"m":"two"`) })
	lines[at] = strings.Replace(lines[at], `"m":"two"`, `"m":"six"`, 1)
	if err := os.WriteFile(caddy.Log, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startTools(t, caddy.Dir, caddy.Log)
	report, _ := s.call("audit_verify", map[string]any{"logPath": caddy.Log})
	if report["chainIntegrity"] != "tampered with" || report["exitCode"] != float64(1) {
		t.Errorf("report %v", report)
	}
	first := report["brokenLinks"].([]any)[0].(map[string]any)
	if first["line"] != float64(at+1) {
		t.Errorf("the first finding is %v, not at line %d", first, at+1)
	}
	tail, _ := s.call("audit_tail", nil)
	for _, e := range tail["entries"].([]any) {
		entry := e.(map[string]any)
		if seq := int(entry["seq"].(float64)); entry["verified"] != (seq < at) {
			t.Errorf("entry %d is verified: %v; the edit is at %d", seq, entry["verified"], at)
		}
	}
	seen := inspect(t, caddy.Dir, []string{harness.Find(t).CLI, "mcp", caddy.Log},
		[]string{"--method", "tools/call", "--tool-name", "audit_verify", "--tool-arg", "logPath=" + caddy.Log})
	if seen.code != 0 || !strings.Contains(seen.stdout, "tampered with") {
		t.Errorf("the Inspector ends with %d and prints %.500s%.500s", seen.code, seen.stdout, seen.stderr)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
