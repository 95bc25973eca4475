package tests

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

func TestTwoProcessesShareOneLog(t *testing.T) {
	const calls = 256
	u := upstream.Start(t)
	first := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: "client_id first"})
	second := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Dir: first.Dir, Handler: "client_id second"})

	// All at once: each waits until every one of them has arrived.
	var wg sync.WaitGroup
	for i := range calls {
		caddy := []*harness.Caddy{first, second}[i%2]
		wg.Go(func() {
			answer := caddy.Post(t, call(fmt.Sprint(i), "hold", `{"key":"together","n":`+fmt.Sprint(i)+`}`))
			if !strings.Contains(answer.Body, "released") {
				t.Errorf("call %d: %+v", i, answer)
			}
		})
	}
	harness.Eventually(t, "all calls reach the server", func() bool { return u.Count() == calls })
	u.Release("together")
	wg.Wait()
	second.Stop(t)
	if answer := first.Post(t, call("0", "echo", `{"m":"alone"}`)); !strings.Contains(answer.Body, "alone") {
		t.Errorf("after the end of the second process: %+v", answer)
	}
	first.Stop(t)

	records := first.Records(t)
	harness.CheckChain(t, records)
	operations := harness.Operations(t, records)
	if len(operations) != calls+1 {
		t.Errorf("%d operations, want %d", len(operations), calls+1)
	}
	by := make(map[string]int)
	for _, o := range operations {
		by[o.Intent.Client]++
		if o.Outcome.Outcome != "success" {
			t.Errorf("outcome %q: %s", o.Outcome.Outcome, o.Outcome.Line)
		}
	}
	if by["first"] != calls/2+1 || by["second"] != calls/2 {
		t.Errorf("operations by process: %v", by)
	}
	if report := harness.VerifyClean(t, first.Log); report.Records != uint64(len(records)) {
		t.Errorf("verify counts %d records, the log has %d", report.Records, len(records))
	}
}

// A process that dies beside a living one is closed by whoever opens the log
// next, and the living one's calls are not.
func TestOnlyTheDeadProcessIsClosed(t *testing.T) {
	u := upstream.Start(t)
	living := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: "client_id living"})
	dying := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Dir: living.Dir, Handler: "client_id dying"})
	var wg sync.WaitGroup
	for _, caddy := range []*harness.Caddy{living, dying} {
		key := strings.TrimPrefix(caddy.Handler, "client_id ")
		request := caddy.NewRequest(t, call("1", "hold", `{"key":"`+key+`"}`))
		wg.Go(func() { send(request) })
		harness.Within(t, harness.Patience, "the call reaches the server", u.Entered(key))
	}
	dying.Kill()
	next := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Dir: living.Dir})
	o := next.Operation(t, "the dead process's call", func(r harness.Record) bool { return r.Client == "dying" })
	if o.Outcome.Outcome != "unknown" {
		t.Errorf("the dead process's call is closed as %q", o.Outcome.Outcome)
	}
	u.Release("living")
	wg.Wait()
	if o := next.Operation(t, "the living process's call", func(r harness.Record) bool { return r.Client == "living" }); o.Outcome.Outcome != "success" {
		t.Errorf("the living process's call is closed as %q", o.Outcome.Outcome)
	}
	next.Stop(t)
	living.Stop(t)
	records := living.Records(t)
	harness.CheckChain(t, records)
	harness.Operations(t, records)
	harness.VerifyClean(t, living.Log, "outcome_unknown")
}
