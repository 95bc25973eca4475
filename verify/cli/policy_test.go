package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// pastLog writes a log of calls that were decided by an earlier policy.
func pastLog(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.jsonl")
	log := openLog(t, path)
	alice := &auditlog.Principal{Subject: "alice", Issuer: "https://i.example/", Roles: []string{"operator"}, Source: "configured"}
	record := func(change func(*auditlog.Message), params auditlog.Payload, out auditlog.Outcome) {
		m := auditlog.Message{
			Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ServerID: "files", ClientID: "desktop",
			RequestID: "1", RequestIDType: "number", Principal: alice, Policy: &auditlog.Policy{Decision: "allow", RuleID: "OLD", Digest: "x"},
		}
		change(&m)
		op, err := log.Begin(t.Context(), auditlog.Intent{Message: m, Params: params, Request: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		if err := op.End(t.Context(), out); err != nil {
			t.Fatal(err)
		}
	}
	tool := func(name string) func(*auditlog.Message) {
		return func(m *auditlog.Message) { m.ToolName, m.MCPName = name, name }
	}
	ok := auditlog.Outcome{Result: auditlog.Success}
	payload := func(text string) auditlog.Payload { return auditlog.Payload{Received: []byte(text)} }

	record(func(m *auditlog.Message) { m.Method = "tools/list" }, auditlog.Payload{},
		auditlog.Outcome{Result: auditlog.Success, Answer: payload(`{"tools":[{"name":"wipe","annotations":{"destructiveHint":true}}]}`)}) // 2 3
	record(tool("write_file"), payload(`{"name":"write_file","arguments":{"path":"/srv/a"}}`), ok)                     // 4 5
	record(tool("write_file"), payload(`{"name":"write_file","arguments":{"path":"/etc/a"}}`), ok)                     // 6 7
	record(tool("wipe"), payload(`{"name":"wipe","arguments":{}}`), ok)                                                // 8 9
	record(tool("pay"), payload(`{"name":"pay","arguments":{"$n":9007199254740993,"$$x":1}}`), ok)                     // 10 11
	record(tool("write_file"), auditlog.Payload{Received: []byte(`{"name":"write_file","arguments":{"path":"/etc"}}`), // 12 13
		Redacted: []byte(`{"name":"write_file","arguments":{"path":"[REDACTED]"}}`), RedactionOn: true}, ok)
	record(tool("write_file"), auditlog.Payload{Received: []byte(`{"name":"write_file","arguments":{"path":"/etc"}}`), Limit: 5}, ok) // 14 15
	record(tool("ask"), payload(`{"name":"ask","arguments":{}}`), auditlog.Outcome{Result: auditlog.InputRequired,                    // 16 17
		Answer: payload(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"url":"https://evil.example/"}}}}`)})
	record(tool("write_file"), payload(`{"name":"write_file","arguments":{"path":"/etc/t"},"task":{}}`), // 18 19
		auditlog.Outcome{Result: auditlog.Success, TaskID: "T1", Answer: payload(`{"task":{"taskId":"T1"}}`)})
	record(func(m *auditlog.Message) { m.Method, m.TaskID = "tasks/result", "T1" }, payload(`{"taskId":"T1"}`), ok) // 20 21
	record(func(m *auditlog.Message) { tool("write_file")(m); m.ServerID = "other" }, payload(`{"name":"write_file"}`), ok)
	_, err := log.Event(t.Context(), auditlog.Event{Result: auditlog.Denied, Params: payload(`{"name":"read_file","arguments":{}}`), Request: []byte("{}"), // 24
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ToolName: "read_file", MCPName: "read_file",
			ServerID: "files", ClientID: "desktop", Policy: &auditlog.Policy{Decision: "deny", RuleID: "OLD-NO", Reason: "was not allowed"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = log.Event(t.Context(), auditlog.Event{Result: auditlog.Denied, // 25: refused before the policy
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ServerID: "files", Reason: "header_mismatch"}})
	if err != nil {
		t.Fatal(err)
	}
	closeLog(t, log)
	return path
}

const newPolicy = `{"apps":{"http":{"servers":{"srv0":{"routes":[
 {"handle":[{"handler":"mcp_audit","server_id":"other"}]},
 {"handle":[{"handler":"subroute","routes":[{"handle":[{"handler":"mcp_audit","server_id":"files","policy":{"rules":[
  {"id":"WIPE","action":"deny","tools":["*"],"when":"has(tool.annotations.destructiveHint) && tool.annotations.destructiveHint"},
  {"id":"PAY","action":"deny","tools":["pay"],"when":"args[\"$n\"] == 9007199254740993 && args[\"$$x\"] == 1","reason":"too much"},
  {"id":"PATH","action":"deny","tools":["write_file"],"when":"!args.path.startsWith(\"/srv/\")","reason":"outside /srv"},
  {"id":"EVIL","action":"deny","url_hosts":["evil.example"]},
  {"id":"OPS","action":"allow","roles":["operator"]}
 ]}}]}]}]}]}}}}}`

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "caddy.json")
	write(t, path, []byte(text))
	return path
}

func TestReplayListsWhatAPolicyWouldChange(t *testing.T) {
	clean(t)
	log, config := pastLog(t), configFile(t, newPolicy)
	stdout, stderr, code := command(t, "policy", "replay", config, log, "--server", "files")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	changed := ""
	for _, line := range strings.Split(stdout, "\n") {
		if line != "" && line[0] != ' ' && !strings.Contains(line, " judged") && strings.Contains(line, "tools/call") || strings.Contains(line, " tasks/") {
			changed += strings.Fields(line)[0] + " "
		}
	}
	if changed != "6 8 10 12 17 18 20 24 " {
		t.Errorf("changed %q:\n%s", changed, stdout)
	}
	for _, want := range []string{
		"now deny by PATH: outside /srv", "now deny by PAY: too much", "now deny by WIPE", "now deny by EVIL, because of elicitation/create",
		"was deny by OLD-NO: was not allowed\n    now allow by default",
		"12 messages judged: 4 as recorded (4 of them by another rule), 7 would now be denied, 1 would now be allowed",
		"1 have redacted values", "1 have params that were not kept in full", "1 are of other servers",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	stdout, _, code = command(t, "policy", "replay", config, log, "--handler", "2", "--json", "--exit-code")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if code != 1 || len(lines) != 9 || !strings.Contains(lines[0], `"was":"allow","was_rule":"OLD","now":"deny","now_rule":"PATH","reason":"outside /srv"}`) ||
		lines[8] != `{"judged":12,"same":4,"other_rule":4,"now_denied":7,"now_allowed":1,"redacted":1,"unknown_params":1,"other_servers":1}` {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

func TestCheckExplainsADecision(t *testing.T) {
	clean(t)
	log, config := pastLog(t), configFile(t, newPolicy)
	for _, c := range []struct {
		record string
		want   []string
	}{
		{"6", []string{"recorded  allow by OLD\n", "decision  deny by PATH: outside /srv\n", "rule      deny  WIPE: the condition is false: has(",
			"rule      deny  PAY: tool \"write_file\" does not match pay\n", "rule      deny  PATH: matches\n"}},
		{"4", []string{"decision  allow by OPS\n", "rule      deny  EVIL: there is no url_host to match evil.example\n", "rule      allow OPS: matches\n"}},
		{"8", []string{"decision  deny by WIPE\n"}},
		{"12", []string{"note      the record has [REDACTED]"}},
		{"14", []string{"note      the params were not kept", "PATH: depends on what is unknown, so it is skipped", "decision  allow by OPS"}},
		{"17", []string{"decision  deny by EVIL\n"}},
		{"20", []string{"decision  deny by PATH"}},
		{"24", []string{"recorded  deny by OLD-NO: was not allowed\n", "decision  allow by default\n", "default   allow\n", "there is no role to match operator"}},
		{"5", []string{"none: no policy judges this record"}},
	} {
		stdout, stderr, code := command(t, "policy", "check", config, "--record", c.record, "--server", "files", log)
		for _, want := range c.want {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: exit %d, no %q in\n%s%s", c.record, code, want, stdout, stderr)
			}
		}
	}
}

func TestPolicyCommandsRefuseWhatTheyCannotRead(t *testing.T) {
	clean(t)
	log := pastLog(t)
	for _, c := range []struct {
		config, want string
		args         []string
		code         int
	}{
		{`{"a":1,"a":2}`, "no strict JSON (dup_key)", nil, 1},
		{`{"apps":{}}`, "has no mcp_audit handler; give Caddy's JSON", nil, 1},
		{newPolicy, "has several mcp_audit handlers; choose one with --server or --handler", nil, 2},
		{newPolicy, "no handler of", []string{"--server", "none"}, 2},
		{`{"handler":"mcp_audit","policy":{"rules":[{"id":"A","action":"deny","tool":["x"]}]}}`, `unknown field "tool"`, nil, 1},
		{`{"handler":"mcp_audit","policy":{"rules":[{"id":"A","action":"deny","when":"1"}]}}`, `rule "A": the condition is a int`, nil, 1},
		{`{"handler":"mcp_audit","policy":{"default":"maybe"}}`, `unknown value "maybe"`, nil, 1},
	} {
		_, stderr, code := command(t, append([]string{"policy", "replay", configFile(t, c.config), log}, c.args...)...)
		if code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%.40s: exit %d, %s, want %q", c.config, code, stderr, c.want)
		}
	}
	if _, stderr, code := command(t, "policy", "check", configFile(t, newPolicy), "--server", "files", log); code == 0 || !strings.Contains(stderr, "--record is missing") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, stderr, code := command(t, "policy", "check", configFile(t, newPolicy), "--server", "files", "--record", "999", log); code == 0 || !strings.Contains(stderr, "no record of") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, stderr, code := command(t, "policy", "nonsense"); code == 0 || !strings.Contains(stderr, "nonsense") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}
