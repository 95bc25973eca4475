package tests

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// denyDelete is the policy of the acceptance rig, with every refusal recorded.
const denyDelete = `
server_id rig
refusals off
max_body 64KiB
policy {
	rule NO-DELETE deny {
		method tools/call
		tool delete_file
		reason "files stay"
	}
}`

// PLC-1, the bad input of the strict scan, and a batch where there are none.
func TestAmbiguousMessagesNeverReachTheServerAndAreRecordedOnce(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})
	params := func(p string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":` + p + `}`
	}
	whole := call("7", "echo", `{"m":"x"}`)
	cases := []struct {
		name, body string
		code       int
	}{
		{"case variant after", params(`{"name":"delete_file","Name":"echo"}`), -32600},
		{"case variant before", params(`{"Name":"delete_file","name":"echo"}`), -32600},
		{"case variant alone", params(`{"NAME":"delete_file"}`), -32600},
		{"fold variant", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"},"param` + "\u017f" + `":{"name":"delete_file"}}`, -32600},
		{"escaped duplicate", params(`{"name":"echo","\u006eame":"delete_file"}`), -32600},
		{"duplicate name", params(`{"name":"echo","name":"delete_file"}`), -32600},
		{"duplicate params", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"},"params":{"name":"delete_file"}}`, -32600},
		{"duplicate method", `{"jsonrpc":"2.0","id":7,"method":"tools/list","method":"tools/call","params":{"name":"delete_file"}}`, -32600},
		{"case variant of method", `{"jsonrpc":"2.0","id":7,"method":"tools/list","METHOD":"tools/call","params":{"name":"delete_file"}}`, -32600},
		{"duplicate argument", params(`{"name":"read_file","arguments":{"path":"/a","path":"/b"}}`), -32600},
		{"trailing message", whole + call("8", "delete_file", `{}`), -32700},
		{"trailing text", whole + " then some", -32700},
		{"byte order mark", "\xef\xbb\xbf" + whole, -32700},
		{"NaN", params(`{"name":"echo","arguments":{"x":NaN}}`), -32700},
		{"invalid UTF-8", params("{\"name\":\"echo\",\"arguments\":{\"m\":\"\xff\"}}"), -32700},
		{"unpaired surrogate", params(`{"name":"echo","arguments":{"m":"\ud800"}}`), -32700},
		{"too deep", params(`{"name":"echo","arguments":{"m":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}}`), -32700},
		{"request and response at once", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo"},"result":{}}`, -32600},
		{"no jsonrpc member", `{"id":7,"method":"tools/call","params":{"name":"echo"}}`, -32600},
		{"request method without id", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"delete_file"}}`, -32600},
		{"null id", strings.Replace(whole, `"id":7`, `"id":null`, 1), -32600},
		{"fractional id", strings.Replace(whole, `"id":7`, `"id":1.5`, 1), -32600},
		{"batch", "[" + whole + "," + call("8", "delete_file", `{}`) + "]", -32600},
		{"empty body", "", -32700},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			reached, recorded := u.Count(), len(traffic(caddy.Records(t)))
			answer := caddy.Post(t, c.body, "MCP-Protocol-Version", "2025-06-18")
			if answer.Status != http.StatusBadRequest || !strings.Contains(answer.Body, fmt.Sprintf(`"code":%d`, c.code)) {
				t.Errorf("answer %d %s, want 400 and code %d", answer.Status, answer.Body, c.code)
			}
			if u.Count() != reached {
				t.Error("it reached the server")
			}
			after := traffic(caddy.Records(t))
			want := 1
			if c.name == "batch" { // one record per element
				want = 2
			}
			if len(after) != recorded+want {
				t.Fatalf("%d records, want %d", len(after)-recorded, want)
			}
			for _, r := range after[recorded:] {
				if r.Kind != "event" || r.Outcome != "denied" || r.Reason == "" {
					t.Errorf("the record does not say what happened: %s", r.Line)
				}
			}
		})
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

func TestPolicyDenialsCarryTheExactID(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})
	for i, id := range []string{"7", `"7"`, "9007199254740993", `"\u00e9"`, "-1"} {
		marker := fmt.Sprintf("denied-%d", i)
		wantRPCError(t, caddy.Post(t, call(id, "delete_file", `{"path":"`+marker+`"}`)), id, -32030)
		body, header := modernCall(id, "delete_file", `{"path":"`+marker+`"}`)
		wantRPCError(t, caddy.Post(t, body, header...), id, -31030)
		if u.Received(marker) {
			t.Errorf("the call with id %s reached the server", id)
		}
		denied := harness.Select(caddy.Records(t), with(marker))
		if len(denied) != 2 {
			t.Fatalf("%d records of two denials with id %s", len(denied), id)
		}
		for _, r := range denied {
			if r.Kind != "event" || r.Outcome != "denied" || r.Policy["rule_id"] != "NO-DELETE" || r.Tool != "delete_file" {
				t.Errorf("the record does not say what was denied and why: %s", r.Line)
			}
		}
	}
	if answer := caddy.Post(t, call("1", "read_file", `{"path":"allowed"}`)); !strings.Contains(answer.Body, "read_file of allowed") {
		t.Errorf("an allowed call: %+v", answer)
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

// LOG-4: over a mixed run the exchanges in the log equal the requests sent.
func TestEveryRequestOfAMixedRunIsRecorded(t *testing.T) {
	const total = 1000
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})

	kinds := []struct {
		name    string
		request func(id int) *http.Request
		status  int
		kind    string // of its first record
		outcome string
	}{
		{"allowed", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "echo", fmt.Sprintf(`{"m":"mixed-%d."}`, id)))
		}, 200, "intent", "success"},
		{"tool error", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "fail", fmt.Sprintf(`{"m":"mixed-%d."}`, id)))
		}, 200, "intent", "tool_error"},
		{"denied", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "delete_file", fmt.Sprintf(`{"m":"mixed-%d."}`, id)))
		}, 200, "event", "denied"},
		{"malformed", func(id int) *http.Request {
			return caddy.NewRequest(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"mixed-%d.":`, id, id))
		}, 400, "event", "denied"},
		{"oversized", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "echo", fmt.Sprintf(`{"m":"mixed-%d.%s"}`, id, strings.Repeat("x", 70_000))))
		}, 413, "event", "denied"},
		{"bad origin", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "echo", fmt.Sprintf(`{"m":"mixed-%d."}`, id)), "Origin", "http://evil.example")
		}, 403, "event", "denied"},
		{"wrong type", func(id int) *http.Request {
			return caddy.NewRequest(t, call(fmt.Sprint(id), "echo", fmt.Sprintf(`{"m":"mixed-%d."}`, id)), "Content-Type", "text/plain")
		}, 415, "event", "denied"},
	}

	var wg sync.WaitGroup
	jobs := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range jobs {
				kind := kinds[i%len(kinds)]
				resp, err := http.DefaultClient.Do(kind.request(i))
				if err != nil {
					t.Errorf("request %d, %s: %v", i, kind.name, err)
					continue
				}
				resp.Body.Close()
				if resp.StatusCode != kind.status {
					t.Errorf("request %d, %s: status %d, want %d", i, kind.name, resp.StatusCode, kind.status)
				}
			}
		})
	}
	for i := range total {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	caddy.Stop(t)

	records := caddy.Records(t)
	harness.CheckChain(t, records)
	harness.Operations(t, records)
	first := harness.Select(records, func(r harness.Record) bool { return r.Kind == "intent" || r.Kind == "event" })
	if len(first) != total {
		t.Errorf("%d requests were sent, the log has %d exchanges", total, len(first))
	}
	counts := make(map[string]int)
	for _, r := range records {
		if r.Outcome != "" {
			counts[r.Kind+" "+r.Outcome]++
		}
		if r.Outcome == "denied" && r.Reason == "" && r.Policy["rule_id"] == nil {
			t.Errorf("a refusal has neither reason nor rule: %s", r.Line)
		}
	}
	want := make(map[string]int)
	for i := range total {
		kind := kinds[i%len(kinds)]
		if kind.kind == "intent" {
			want["outcome "+kind.outcome]++
		} else {
			want["event "+kind.outcome]++
		}
	}
	for name, n := range want {
		if counts[name] != n {
			t.Errorf("%s: %d records, want %d", name, counts[name], n)
		}
	}
	if allowed := want["outcome success"] + want["outcome tool_error"]; u.Count() != allowed {
		t.Errorf("the server received %d requests, %d were allowed", u.Count(), allowed)
	}
	harness.VerifyClean(t, caddy.Log)
}
