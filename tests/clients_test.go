package tests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// everythingSteps use what server-everything offers: a plain call, an error,
// progress, an elicitation, sampling, roots, a call that is taken back and a
// result of 1 MB.
func everythingSteps() []harness.Step {
	return []harness.Step{
		{List: true},
		{Call: "echo", Arguments: map[string]any{"message": "hello"}},
		{Call: "get-sum", Arguments: map[string]any{"a": "no number"}},
		{Call: "trigger-long-running-operation", Arguments: map[string]any{"duration": 0.2, "steps": 4}, Progress: true},
		{Call: "trigger-elicitation-request"},
		{Call: "trigger-sampling-request", Arguments: map[string]any{"prompt": "say something", "maxTokens": 50}},
		{Call: "get-roots-list"},
		{Call: "trigger-long-running-operation", Arguments: map[string]any{"duration": 30, "steps": 30}, Cancel: true},
		{Call: "echo", Arguments: map[string]any{"message": "words and "}, Repeat: 100_000},
	}
}

func checkEverything(t *testing.T, report harness.ClientReport) {
	t.Helper()
	if len(report.Steps) != len(everythingSteps()) {
		t.Fatalf("the client made %d steps of %d", len(report.Steps), len(everythingSteps()))
	}
	for i, step := range report.Steps {
		if (step.Error != nil) != everythingSteps()[i].Cancel {
			t.Errorf("step %d: %+v %.200s", i, step.Error, step.Text)
		}
	}
	if tools := report.Steps[0].Tools; !slices.Contains(tools, "echo") || len(tools) < 10 {
		t.Errorf("tools: %q", tools)
	}
	if got := report.Steps[1]; got.Text != "Echo: hello" || got.IsError {
		t.Errorf("echo: %+v", got)
	}
	if got := report.Steps[2]; !got.IsError {
		t.Errorf("a call with a bad argument: %+v", got)
	}
	if got := report.Steps[3]; got.Progress == 0 || !strings.Contains(got.Text, "completed") {
		t.Errorf("the call with progress: %+v", got)
	}
	if got := report.Steps[4]; !strings.Contains(got.Text, "Ada") {
		t.Errorf("the call that asks the user: %+v", got)
	}
	if got := report.Steps[5]; !strings.Contains(got.Text, "sampled words") {
		t.Errorf("the call that samples: %+v", got)
	}
	if got := report.Steps[6]; !strings.Contains(got.Text, "file:///home/me/notes") {
		t.Errorf("the call that asks for roots: %+v", got)
	}
	if got := report.Steps[8]; got.Text != "Echo: "+strings.Repeat("words and ", 100_000) {
		t.Errorf("the large result has %d bytes", len(got.Text))
	}
}

// checkEverythingLog checks what the log says of the steps.
func checkEverythingLog(t *testing.T, log, transport string) {
	t.Helper()
	records := harness.Closed(t, log)
	harness.CheckChain(t, records)
	outcomes := make(map[string]string)
	for _, o := range harness.Operations(t, records) {
		name := strings.TrimSpace(o.Intent.Direction + " " + o.Intent.Method + " " + o.Intent.Tool)
		if strings.Contains(string(o.Intent.Params), `"duration":30`) {
			name += ", taken back"
		}
		outcomes[name] = o.Outcome.Outcome
		if o.Intent.Transport != transport {
			t.Errorf("%s has transport %q, want %q", name, o.Intent.Transport, transport)
		}
		if o.Intent.Revision == "" && o.Intent.Method != "initialize" {
			t.Errorf("%s has no protocol version", name)
		}
	}
	want := map[string]string{
		"client→server initialize":                                            "success",
		"client→server tools/list":                                            "success",
		"client→server tools/call echo":                                       "success",
		"client→server tools/call get-sum":                                    "tool_error",
		"client→server tools/call trigger-long-running-operation":             "success",
		"client→server tools/call trigger-elicitation-request":                "success",
		"server→client elicitation/create":                                    "success",
		"server→client sampling/createMessage":                                "success",
		"server→client roots/list":                                            "success",
		"client→server tools/call trigger-long-running-operation, taken back": "cancelled",
	}
	for name, outcome := range want {
		if outcomes[name] != outcome {
			t.Errorf("%s: outcome %q, want %q", name, outcomes[name], outcome)
		}
	}
	harness.VerifyClean(t, log)
}

func TestRealClientsUseAServerOverHTTP(t *testing.T) {
	dir := harness.TempDir(t)
	upstream := harness.StartEverything(t, dir)
	for _, client := range harness.Clients() {
		t.Run(client.Name, func(t *testing.T) {
			caddy := harness.StartCaddy(t, harness.Site{Upstream: upstream})
			report := client.Run(t, dir, harness.Plan{
				Target: harness.Target{URL: caddy.URL},
				Steps:  everythingSteps(),
				Answer: map[string]any{"name": "Ada"},
			})
			checkEverything(t, report)
			caddy.Stop(t)
			checkEverythingLog(t, caddy.Log, "http")
		})
	}
}

func TestRealClientsUseAServerOnStdioThroughTheShim(t *testing.T) {
	for _, client := range harness.Clients() {
		t.Run(client.Name, func(t *testing.T) {
			dir := harness.TempDir(t)
			report := client.Run(t, dir, harness.Plan{
				Target: shimTarget(t, dir, harness.Find(t).Server("everything", "stdio")...),
				Steps:  everythingSteps(),
				Answer: map[string]any{"name": "Ada"},
			})
			checkEverything(t, report)
			checkEverythingLog(t, harness.ShimLog(dir), "stdio")
		})
	}
}

// shimTarget is the one line that a desktop user changes.
func shimTarget(t *testing.T, dir string, child ...string) harness.Target {
	return harness.Target{
		Command: harness.Find(t).Shim,
		Args:    append([]string{"--"}, child...),
		Env:     []string{"MCP_AUDIT_DIR=" + harness.AuditDir(dir)},
	}
}

func TestRealClientsReadFilesThroughTheShim(t *testing.T) {
	for _, client := range harness.Clients() {
		t.Run(client.Name, func(t *testing.T) {
			dir := harness.TempDir(t)
			folder, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			note := filepath.Join(folder, "note.txt")
			if err := os.WriteFile(note, []byte("buy milk"), 0o600); err != nil {
				t.Fatal(err)
			}
			report := client.Run(t, dir, harness.Plan{
				Target: shimTarget(t, dir, harness.Filesystem(t, folder)...),
				Steps: []harness.Step{
					{List: true},
					{Call: "read_text_file", Arguments: map[string]any{"path": note}},
					{Call: "read_text_file", Arguments: map[string]any{"path": "/etc/passwd"}},
				},
			})
			if report.Server != "secure-filesystem-server" || len(report.Steps) != 3 {
				t.Fatalf("report %+v", report)
			}
			if !slices.Contains(report.Steps[0].Tools, "read_text_file") {
				t.Errorf("tools: %q", report.Steps[0].Tools)
			}
			if report.Steps[1].Text != "buy milk" {
				t.Errorf("the file: %+v", report.Steps[1])
			}
			if !report.Steps[2].IsError {
				t.Errorf("a file outside the folder: %+v", report.Steps[2])
			}
			log := harness.ShimLog(dir)
			var calls []string
			for _, o := range harness.Operations(t, harness.Closed(t, log)) {
				if o.Intent.Method == "tools/call" {
					calls = append(calls, o.Outcome.Outcome)
				}
				if o.Intent.Server != "filesystem" || o.Intent.Client != "local" {
					t.Errorf("%s is of server %q and client %q, want filesystem and local", o.Intent.Method, o.Intent.Server, o.Intent.Client)
				}
			}
			if !slices.Equal(calls, []string{"success", "tool_error"}) {
				t.Errorf("calls in the log: %q", calls)
			}
			harness.VerifyClean(t, log)
		})
	}
}

// The newest revision has no handshake and asks the user by a result that
// needs input, not by a request of the server.
func TestModernClientsUseAServerWithoutSessions(t *testing.T) {
	for _, client := range harness.Clients()[1:] {
		t.Run(client.Name, func(t *testing.T) {
			dir := harness.TempDir(t)
			upstream := harness.StartNotes(t, dir, "-stateless")
			caddy := harness.StartCaddy(t, harness.Site{Upstream: upstream})
			report := client.Run(t, dir, harness.Plan{
				Target: harness.Target{URL: caddy.URL},
				Steps: []harness.Step{
					{List: true},
					{Call: "echo", Arguments: map[string]any{"message": "hello"}},
					{Call: "read_file", Arguments: map[string]any{"path": "missing"}},
					{Call: "slow", Arguments: map[string]any{"seconds": 0.1}, Progress: true},
					{Call: "elicit"},
				},
				Answer: map[string]any{"title": "todo"},
			})
			if report.Revision != modern {
				t.Errorf("the client negotiated %s", report.Revision)
			}
			for i, step := range report.Steps {
				if step.Error != nil {
					t.Errorf("step %d: %+v", i, *step.Error)
				}
			}
			if got := report.Steps[4].Text; got != "added todo" {
				t.Errorf("the call that asks the user: %q", got)
			}
			if report.Steps[3].Progress == 0 {
				t.Error("no progress arrived")
			}
			caddy.Stop(t)
			var outcomes []string
			for _, o := range harness.Operations(t, caddy.Records(t)) {
				if o.Intent.Method == "tools/call" {
					outcomes = append(outcomes, o.Intent.Tool+" "+o.Outcome.Outcome)
				}
			}
			want := []string{"echo success", "read_file tool_error", "slow success", "elicit input_required", "elicit success"}
			if !slices.Equal(outcomes, want) {
				t.Errorf("calls in the log %q, want %q", outcomes, want)
			}
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

// Other servers on standard input and output: one that keeps a file, and one on
// the Go SDK.
func TestRealClientsUseOtherServersThroughTheShim(t *testing.T) {
	programs := harness.Find(t)
	for _, server := range []struct {
		name    string
		command []string
		steps   []harness.Step
		want    string
	}{
		{"server-memory", programs.Server("memory"), []harness.Step{
			{List: true},
			{Call: "create_entities", Arguments: map[string]any{"entities": []any{map[string]any{"name": "Ada", "entityType": "person", "observations": []any{"writes programs"}}}}},
			{Call: "read_graph"},
		}, "writes programs"},
		{"a server on the Go SDK", []string{filepath.Join(filepath.Dir(programs.Shim), "notes-server")}, []harness.Step{
			{List: true},
			{Call: "add_note", Arguments: map[string]any{"name": "todo", "text": "writes programs"}},
			{Call: "echo", Arguments: map[string]any{"message": "writes programs"}},
		}, "writes programs"},
	} {
		for _, client := range harness.Clients() {
			t.Run(server.name+", "+client.Name, func(t *testing.T) {
				dir := harness.TempDir(t)
				target := shimTarget(t, dir, server.command...)
				target.Env = append(target.Env, "MEMORY_FILE_PATH="+filepath.Join(dir, "memory.json"))
				report := client.Run(t, dir, harness.Plan{Target: target, Steps: server.steps})
				if len(report.Steps) != 3 || len(report.Steps[0].Tools) < 5 {
					t.Fatalf("%+v", report)
				}
				for i, step := range report.Steps {
					if step.Error != nil || step.IsError {
						t.Errorf("step %d: %+v %s", i, step.Error, step.Text)
					}
				}
				if last := report.Steps[2]; !strings.Contains(last.Text, server.want) {
					t.Errorf("%s", last.Text)
				}
				harness.VerifyClean(t, harness.ShimLog(dir))
			})
		}
	}
}
