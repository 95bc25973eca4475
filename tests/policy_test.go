package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

const noQuestions = `policy {
	rule NO-QUESTIONS deny {
		method elicitation/create
		reason "nobody is there to ask"
	}
	rule SUM deny {
		tool get-sum
		when ` + "`args.a > 5`" + `
	}
}`

// A tool of a real server that may not ask the user gets an error and says so;
// its call, its session and its stream go on.
func TestToolOfARealServerGoesOnWhenItsQuestionIsDenied(t *testing.T) {
	dir := harness.TempDir(t)
	upstream := harness.StartEverything(t, dir)
	for _, client := range harness.Clients() {
		t.Run(client.Name, func(t *testing.T) {
			caddy := harness.StartCaddy(t, harness.Site{Upstream: upstream, Handler: noQuestions})
			report := client.Run(t, dir, harness.Plan{
				Target: harness.Target{URL: caddy.URL},
				Steps: []harness.Step{
					{Call: "trigger-elicitation-request"},
					{Call: "get-sum", Arguments: map[string]any{"a": 2, "b": 3}},
					{Call: "get-sum", Arguments: map[string]any{"a": 7, "b": 3}},
					{Call: "echo", Arguments: map[string]any{"message": "hello"}},
				},
				Answer: map[string]any{"name": "Ada"},
			})
			if len(report.Steps) != 4 {
				t.Fatalf("%+v", report)
			}
			asked, sum, denied, echo := report.Steps[0], report.Steps[1], report.Steps[2], report.Steps[3]
			if strings.Contains(asked.Text, "Ada") || asked.Error != nil || !strings.Contains(asked.Text, "denied by policy") {
				t.Errorf("the call that asks: %+v %+v", asked, asked.Error)
			}
			if !strings.Contains(sum.Text, "5") || denied.Error == nil || denied.Error.Code != -32030 || echo.Text != "Echo: hello" {
				t.Errorf("the other calls: %+v %+v %+v", sum, denied, echo)
			}
			caddy.Stop(t)
			found := false
			for _, r := range caddy.Records(t) {
				if r.Method == "elicitation/create" {
					found = true
					if r.Kind != "event" || r.Outcome != "denied" || r.Policy["rule_id"] != "NO-QUESTIONS" {
						t.Errorf("%s", r.Line)
					}
				}
			}
			if !found {
				t.Error("the question has no record")
			}
			harness.VerifyClean(t, caddy.Log)
			replaySame(t, caddy)
		})
	}
}

// replaySame replays a log by the policy that it was decided by: nothing
// changes.
func replaySame(t *testing.T, caddy *harness.Caddy) {
	t.Helper()
	adapted, stderr, code := harness.Run(t, caddy.Adapt(t))
	if code != 0 {
		t.Fatal(stderr)
	}
	config := filepath.Join(t.TempDir(), "caddy.json")
	if err := os.WriteFile(config, []byte(adapted), 0o600); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, code := harness.Run(t, harness.CLI(t, t.TempDir(), "policy", "replay", config, caddy.Log, "--exit-code"))
	if code != 0 || !strings.Contains(stdout, "(0 of them by another rule), 0 would now be denied, 0 would now be allowed") || strings.HasPrefix(stdout, "0 messages") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

// In the newest revision the question is in the call's answer, which becomes an
// error.
func TestAnswerOfARealServerThatAsksWhatIsDeniedBecomesAnError(t *testing.T) {
	for _, client := range harness.Clients()[1:] {
		t.Run(client.Name, func(t *testing.T) {
			dir := harness.TempDir(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: harness.StartNotes(t, dir, "-stateless"), Handler: noQuestions})
			report := client.Run(t, dir, harness.Plan{
				Target: harness.Target{URL: caddy.URL},
				Steps:  []harness.Step{{Call: "elicit"}, {Call: "echo", Arguments: map[string]any{"message": "hello"}}},
				Answer: map[string]any{"title": "todo"},
			})
			if len(report.Steps) != 2 || report.Steps[0].Error == nil || report.Steps[0].Error.Code != -31030 || report.Steps[1].Error != nil {
				t.Fatalf("%+v", report)
			}
			caddy.Stop(t)
			replaySame(t, caddy)
			harness.VerifyClean(t, caddy.Log)
		})
	}
}
