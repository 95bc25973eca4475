package tests

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// LOG-1.
func TestKillDuringACallLeavesItsIntentAndTheNextStartClosesIt(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: "client_id desk-7"})
	caddy.Post(t, call("1", "echo", `{"m":"before"}`))

	before := time.Now()
	request := caddy.NewRequest(t, call("2", "hold", `{"key":"crash"}`))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		send(request)
	}()
	harness.Within(t, harness.Patience, "the call reaches the server", u.Entered("crash"))
	caddy.Kill()
	harness.Within(t, harness.Patience, "the client sees the end", ended)

	intents := harness.Select(caddy.Records(t), func(r harness.Record) bool {
		return r.Kind == "intent" && r.Tool == "hold"
	})
	if len(intents) != 1 {
		t.Fatalf("%d intents of the call survive the kill, want 1", len(intents))
	}
	intent := intents[0]
	if intent.Digest == "" || intent.Client != "desk-7" || intent.Timestamp.Before(before.Add(-time.Second)) || !strings.Contains(string(intent.Params), "crash") {
		t.Errorf("the intent does not say who, what and when: %s", intent.Line)
	}
	if report := harness.VerifyLog(t, caddy.Log); report.Exit != 0 {
		t.Errorf("verify before the restart: %s", report)
	}

	caddy.Start(t)
	o := caddy.Operation(t, "the interrupted call", func(r harness.Record) bool { return r.Tool == "hold" })
	if o.Outcome.Outcome != "unknown" {
		t.Errorf("after the restart the call is closed as %q, want unknown", o.Outcome.Outcome)
	}
	if answer := caddy.Post(t, call("3", "echo", `{"m":"after"}`)); !strings.Contains(answer.Body, "after") {
		t.Errorf("the next call: %+v", answer)
	}
	caddy.Stop(t)
	records := caddy.Records(t)
	harness.CheckChain(t, records)
	harness.Operations(t, records)
	harness.VerifyClean(t, caddy.Log, "outcome_unknown")
}

// LOG-5, in miniature; MCP_AUDIT_LONG=1 makes the call last 65 s, longer than
// every default time limit on the way.
func TestLongCallHasOneIntentAndOneOutcome(t *testing.T) {
	seconds := "2"
	if long() {
		seconds = "65"
	}
	want, err := time.ParseDuration(seconds + "s")
	if err != nil {
		t.Fatal(err)
	}
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	if answer := caddy.Post(t, call("1", "slow", `{"s":`+seconds+`}`)); !strings.Contains(answer.Body, "done") {
		t.Fatalf("the answer: %+v", answer)
	}
	caddy.Stop(t)
	operations := harness.Operations(t, caddy.Records(t))
	if len(operations) != 1 || operations[0].Outcome.Outcome != "success" {
		t.Fatalf("operations %+v", operations)
	}
	got := time.Duration(*operations[0].Outcome.Duration) * time.Millisecond
	if got < want || got > want+time.Second {
		t.Errorf("the record says %s, the call lasted %s", got, want)
	}
	harness.VerifyClean(t, caddy.Log)
}
