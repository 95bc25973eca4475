package tests

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// twoCallers gives the route two callers, both with the password "pw".
const twoCallers = `basic_auth /mcp* {
	alice $2a$04$fAnKYSg0KhP4Cz8LCc2CEuP6Qcf81ZT5z5jlkcxSgoARYFYY2xUzW
	bob $2a$04$fAnKYSg0KhP4Cz8LCc2CEuP6Qcf81ZT5z5jlkcxSgoARYFYY2xUzW
}`

// echoLimit is the limit of PLC-7.
const echoLimit = `server_id rig
rate_limit 2/1m by subject tool_name`

// wantLimited checks a refusal by a rate limit; the code is that of the revision.
func wantLimited(t *testing.T, a harness.Answer, id string, code int) {
	t.Helper()
	wantRPCError(t, a, id, code)
	wantRetry(t, a.Body)
}

func wantRetry(t *testing.T, body string) {
	t.Helper()
	var answer struct {
		Error struct {
			Data struct {
				RetryAfterMs int `json:"retryAfterMs"`
			} `json:"data"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if ms := answer.Error.Data.RetryAfterMs; ms < 1 || ms > 30_000 {
		t.Errorf("a retry after %d ms, want up to half a minute: %s", ms, body)
	}
}

// PLC-7: two calls of echo a minute and caller.
func TestCallsOverTheirRateAreRefusedAndRecorded(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Routes: twoCallers, Handler: echoLimit})
	post := func(user, body string, header ...string) harness.Answer {
		t.Helper()
		r := caddy.NewRequest(t, body, header...)
		r.SetBasicAuth(user, "pw")
		return caddy.Do(t, r)
	}
	passes := func(a harness.Answer) {
		t.Helper()
		if a.Status != http.StatusOK || strings.Contains(a.Body, `"error"`) {
			t.Errorf("answer %d %s", a.Status, a.Body)
		}
	}
	echo := func(id string) string { return call(id, "echo", `{"m":"x"}`) }
	passes(post("alice", echo("1")))
	passes(post("alice", echo("2")))
	for _, id := range []string{"3", `"three"`, "9007199254740993"} {
		wantLimited(t, post("alice", echo(id)), id, -32029)
	}
	body, header := modernCall(`"m"`, "echo", `{"m":"x"}`)
	wantLimited(t, post("alice", body, header...), `"m"`, -31029)
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-User", "Remote-User", "Mcp-Session-Id", "X-Client-Id", "User-Agent"} {
		wantLimited(t, post("alice", echo("4"), name, "somebody-else"), "4", -32029)
	}
	reached := u.Count()
	passes(post("alice", call("5", "read_file", `{"path":"/srv/a"}`)))
	passes(post("alice", `{"jsonrpc":"2.0","id":6,"method":"tools/list"}`))
	passes(post("bob", echo("7")))
	if reached != 2 || u.Count() != 5 {
		t.Errorf("the server got %d and then %d requests, want 2 and 5", reached, u.Count())
	}
	// The state outlives a configuration.
	if refusal := caddy.Reload(t, func(s *harness.Site) { s.Handler = echoLimit + "\nexplain" }); refusal != "" {
		t.Fatal(refusal)
	}
	wantLimited(t, post("alice", echo("8")), "8", -32029)
	over := harness.Select(caddy.Records(t), func(r harness.Record) bool {
		return strings.Contains(r.Line, `"outcome":"rate_limited"`)
	})
	if len(over) != 11 {
		t.Errorf("%d records of refusals, want 11", len(over))
	}
	for _, r := range over {
		for _, part := range []string{`"reason":"rate_limit: 2/1m by subject tool_name"`, `"subject":"alice"`, `"tool_name":"echo"`, `"params":{`} {
			if !strings.Contains(r.Line, part) {
				t.Errorf("record %s lacks %s", r.Line, part)
			}
		}
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

// The same for a child on standard input and output behind a running Caddy.
func TestRateLimitHoldsForAShim(t *testing.T) {
	dir := harness.TempDir(t)
	caddy := harness.StartCaddy(t, harness.Site{
		Dir: dir, Proxy: "dynamic mcp_shim",
		Handler: "server_id managed\nprincipal {\nsubject me\n}\n" + "rate_limit 2/1m by subject tool_name",
	})
	shim := harness.StartShim(t, dir, append([]string{"--caddy", caddy.URL, "--"}, mock(t, dir)...)...)
	shim.Initialize(t)
	for range 2 {
		if answer := shim.Call(t, call("1", "echo", `{"m":"x"}`)); strings.Contains(answer, `"error"`) {
			t.Fatal(answer)
		}
	}
	answer := shim.Call(t, call(`"x"`, "echo", `{"m":"x"}`))
	if !strings.Contains(answer, `"id":"x"`) || !strings.Contains(answer, `"code":-32029`) {
		t.Errorf("answer %s", answer)
	}
	wantRetry(t, answer)
}
