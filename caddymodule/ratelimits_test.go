package caddymodule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// hashOfPW is the hash of the password "pw".
const hashOfPW = "$2a$04$fAnKYSg0KhP4Cz8LCc2CEuP6Qcf81ZT5z5jlkcxSgoARYFYY2xUzW"

// rateAnswer is what a client makes of an answer.
type rateAnswer struct {
	ID    json.RawMessage `json:"id"`
	Error struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    struct {
			AuditID      string `json:"audit_id"`
			RetryAfterMs int    `json:"retryAfterMs"`
			Limit        string `json:"limit"`
		} `json:"data"`
	} `json:"error"`
}

func parseRate(t *testing.T, text string) (a rateAnswer) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return a
}

// limited are the records of requests over a limit.
func limited(records []record) (out []record) {
	for _, rec := range records {
		if rec.str("outcome") == "rate_limited" {
			out = append(out, rec)
		}
	}
	return out
}

func modernEcho(id string) (body string, headers []string) {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		[]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo"}
}

func TestCallOverItsLimitIsRefusedWithTheExactID(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "rate_limit 2/1h by client_id tool_name", "")
	for i := range 2 {
		if _, answer := r.post(element(fmt.Sprint(i), "echo")); strings.Contains(answer, "error") {
			t.Fatal(answer)
		}
	}
	for _, id := range []string{`7`, `"7"`, `9007199254740993`} {
		status, text := r.post(element(id, "echo"))
		answer := parseRate(t, text)
		if status != 200 || string(answer.ID) != id || answer.Error.Code != -32029 || answer.Error.Message != "rate limit exceeded" {
			t.Errorf("id %s: %d %s", id, status, text)
		}
		if ms := answer.Error.Data.RetryAfterMs; ms < 1 || ms > 30*60*1000 || answer.Error.Data.Limit != "" {
			t.Errorf("data of %s", text)
		}
		recs := limited(r.records())
		rec := recs[len(recs)-1]
		if rec.str("kind") != "event" || rec.str("audit_operation_id") != answer.Error.Data.AuditID ||
			rec.str("reason") != "rate_limit: 2/1h by client_id tool_name" || rec["policy"] != nil && rec["policy"].(map[string]any)["decision"] == "deny" {
			t.Errorf("record %v", rec)
		}
		if params, _ := rec["params"].(map[string]any); params["name"] != "echo" {
			t.Errorf("the record does not keep the params: %v", rec)
		}
	}
	body, headers := modernEcho("8")
	if _, text := r.post(body, headers...); parseRate(t, text).Error.Code != -31029 {
		t.Errorf("2026-07-28: %s", text)
	}
	for _, other := range []string{element("9", "read"), `{"jsonrpc":"2.0","id":9,"method":"tools/list"}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`} {
		if _, text := r.post(other); strings.Contains(text, "error") {
			t.Errorf("%s: %s", other, text)
		}
	}
	// Nothing that a client may say of itself is part of the key.
	for _, header := range []string{
		"X-Forwarded-For", "X-Real-Ip", "X-Client-Id", "Client-Id", "X-Forwarded-User", "Remote-User", "Authorization",
		"Mcp-Session-Id", "User-Agent", "Forwarded", "Cookie", "Traceparent",
	} {
		if _, text := r.post(element("10", "echo"), header, "198.51.100.7"); parseRate(t, text).Error.Code != -32029 {
			t.Errorf("with %s: %s", header, text)
		}
	}
	if got := len(up.received()); got != 5 {
		t.Errorf("the server got %d messages, want 5", got)
	}
	r.verify()
}

func TestEachElementOfABatchTakesItsToken(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":2,"result":{}}]`)
	})
	r := start(t, up, "rate_limit 2/1h by client_id tool_name", "")
	batch := "[" + element("1", "echo") + "," + element("2", "echo") + "," + element(`"3"`, "echo") + "]"
	status, text := r.post(batch, "MCP-Protocol-Version", "2025-03-26")
	var answers []rateAnswer
	if err := json.Unmarshal([]byte(text), &answers); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	codes := make(map[string]int)
	for _, a := range answers {
		codes[string(a.ID)] = a.Error.Code
	}
	if status != 200 || len(codes) != 3 || codes["1"] != 0 || codes["2"] != 0 || codes[`"3"`] != -32029 {
		t.Errorf("%d %s", status, text)
	}
	if got := up.received(); len(got) != 1 || strings.Contains(got[0], `"3"`) {
		t.Errorf("the server got %q", got)
	}
	if got := limited(r.await(5)); len(got) != 1 || got[0].str("request_id") != "3" {
		t.Errorf("records %v", got)
	}
}

func TestNotificationOverItsLimitStopsWithTheStatusOfHTTP(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, `rate_limit 1/1h by client_id {
		methods notifications/*
	}`, "")
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
	if status, _ := r.post(progress); status != http.StatusAccepted {
		t.Fatalf("status %d", status)
	}
	resp := r.send(context.Background(), http.MethodPost, progress)
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	if got := limited(r.await(2)); len(got) != 1 || len(up.received()) != 1 {
		t.Errorf("%d records, the server got %d", len(got), len(up.received()))
	}
}

func TestDeniedCallTakesNoToken(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, denyDelete+"\nrate_limit 1/1h by client_id", "")
	for range 3 {
		if _, text := r.post(element("1", "delete_file")); parseRate(t, text).Error.Code != -32030 {
			t.Fatal(text)
		}
	}
	if _, text := r.post(element("2", "echo")); strings.Contains(text, "error") {
		t.Errorf("the denied calls took the token: %s", text)
	}
	// And one that is denied is denied, whatever the limits say.
	if _, text := r.post(element("3", "delete_file")); parseRate(t, text).Error.Code != -32030 {
		t.Error(text)
	}
}

func TestObserveRecordsWhatIsOverALimit(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, `mode observe
	rate_limit 1/1h by client_id {
		name calls
	}`, "")
	for range 3 {
		if _, text := r.post(element("1", "echo")); strings.Contains(text, "error") {
			t.Fatal(text)
		}
	}
	noted := 0
	for _, rec := range r.await(6) {
		if rec.str("kind") != "intent" {
			continue
		}
		if list, _ := rec["anomaly"].([]any); len(list) == 1 && list[0] == "rate_limited" && rec.str("reason") == "rate_limit: calls" {
			noted++
		}
	}
	if noted != 2 || len(up.received()) != 3 {
		t.Errorf("%d intents say it, the server got %d", noted, len(up.received()))
	}
}

func TestLimitGoesOnOverAReload(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for _, step := range []struct {
		limit string
		left  int
	}{
		{"2/1h by client_id", 2},
		{"2/1h by client_id", 0},
		{"3/1h by client_id", 1},
		{"1/2h by client_id", 0},
		{"5/2h by client_id", 2},
	} {
		r.move()
		if err := r.load(r.caddyfile("rate_limit "+step.limit, "")); err != nil {
			t.Fatal(err)
		}
		left := 0
		for parseRate(t, second(r.post(element("1", "echo")))).Error.Code == 0 {
			left++
		}
		if left != step.left {
			t.Errorf("after the change to %s %d calls pass, want %d", step.limit, left, step.left)
		}
	}
}

func second(_ int, text string) string { return text }

func TestCallersHaveTheirOwnBuckets(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.move()
	const hash = hashOfPW
	route := strings.Replace(r.caddyfile("rate_limit 1/1h by subject", ""), "mcp_audit {\n\t\tserver_id", "basic_auth {\n\t\talice "+hash+"\n\t\tbob "+hash+"\n\t}\n\tmcp_audit {\n\t\tserver_id", 1)
	if err := r.load(route); err != nil {
		t.Fatal(err)
	}
	passes := func(user string) bool {
		ctx := context.Background()
		resp := do(t, func() *http.Request {
			req := r.request(ctx, http.MethodPost, element("1", "echo"), nil)
			req.SetBasicAuth(user, "pw")
			return req
		})
		defer resp.Body.Close()
		var a rateAnswer
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			t.Fatal(resp.Status, err)
		}
		return a.Error.Code == 0
	}
	if !passes("alice") || passes("alice") || !passes("bob") || passes("bob") {
		t.Error("alice and bob are not counted apart")
	}
}

func TestSessionCountsOnceItIsTheCallers(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("X-Test-Mint"); id != "" {
			w.Header().Set("Mcp-Session-Id", id)
		}
		ok(w, r)
	})
	r := start(t, up, "rate_limit 1/1h by session", "")
	initialize := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	for _, id := range []string{"s1", "s2"} {
		r.post(initialize, "X-Test-Mint", id)
	}
	over := func(id string) bool {
		_, text := r.post(element("1", "echo"), "Mcp-Session-Id", id)
		return strings.Contains(text, "-32029")
	}
	if over("s1") || !over("s1") || over("s2") || !over("s2") {
		t.Error("sessions are not counted apart")
	}
	// An id that nobody has minted is the client's own text.
	if over("made-up-1") || !over("made-up-2") {
		t.Error("a made-up session has a bucket of its own")
	}
}

func TestLimitReachesTheStreamOfTheOldTransport(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		sse(w)
		fmt.Fprint(w, "event: endpoint\ndata: /mcp?sessionId=abc\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	r := start(t, up, "rate_limit 1/1h by client_id", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodGet, "")
	defer stream.Body.Close()
	events := newReader(stream.Body)
	nextEvent(t, events)
	for range 2 {
		req := r.request(ctx, http.MethodPost, element(`"x"`, "echo"), nil)
		req.URL.RawQuery = "sessionId=abc"
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	if got := nextEvent(t, events); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":"x","error":{"code":-32029`) || !strings.Contains(got, `"retryAfterMs":`) {
		t.Errorf("the stream carries %s", got)
	}
	cancel()
	r.verify()
}

func TestExplainNamesTheLimit(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, `explain
	rate_limit 1/1h by client_id {
		name calls
	}`, "")
	r.post(element("1", "echo"))
	if _, text := r.post(element("2", "echo")); parseRate(t, text).Error.Data.Limit != "calls" {
		t.Error(text)
	}
}

func TestImpossibleLimitsFailTheLoadWithTheirLine(t *testing.T) {
	for _, c := range []struct{ limit, say string }{
		{"rate_limit", "takes a rate"},
		{"rate_limit 60/1m client_id", "takes a rate"},
		{"rate_limit 60 by client_id", "is no rate"},
		{"rate_limit 0/1m by client_id", "not a number from 1"},
		{"rate_limit -5/1m by client_id", "not a number from 1"},
		{"rate_limit 60/0s by client_id", "not a time from"},
		{"rate_limit 60/m by client_id", "write 1m"},
		{"rate_limit 99999999999999999999/1m by client_id", "not a number from 1"},
		{"rate_limit 1/1m by client", "client_id"},
		{"rate_limit 1/1m by client_id client_id", "twice"},
		{"rate_limit 1/1m by client_id {\nburst 0\n}", "burst"},
		{"rate_limit 1/30d by client_id {\nburst 1000\n}", "smaller burst"},
		{"rate_limit 1/1m by client_id {\nmethods tool/call\n}", "is it tools/call"},
		{"rate_limit 1/1m by client_id {\nmetods tools/call\n}", "methods"},
		{"rate_limit 1/1m by tool_name {\nmethods ping\n}", "only tools/call"},
		{"rate_limit 1/1m by client_id\nrate_limit 1/1m by client_id", "keep one"},
	} {
		text := ":80 {\n\tmcp_audit {\n\t\t" + c.limit + "\n\t}\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err == nil || !strings.Contains(err.Error(), c.say) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v, want %q and the line", c.limit, err, c.say)
		}
	}
}

func TestRoutesThatShareBucketsMustAgree(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	other := func(limit, server, second string) string {
		return strings.Replace(r.caddyfile(limit, ""), "\tmcp_audit {\n\t\tserver_id", "\tmcp_audit /other {\n\t\tserver_id "+server+"\n\t\t"+second+"\n\t}\n\tmcp_audit {\n\t\tserver_id", 1)
	}
	for _, c := range []struct {
		name, first, server, second string
		fails                       bool
	}{
		{"same server, other rate", "rate_limit 1/1m by client_id", "test", "rate_limit 2/1m by client_id", true},
		{"same server, same rate", "rate_limit 1/1m by client_id", "test", "rate_limit 1/1m by client_id", false},
		{"another server", "rate_limit 1/1m by client_id", "else", "rate_limit 2/1m by client_id", false},
		{"one name", "rate_limit 1/1m by client_id {\nname n\n}", "else", "rate_limit 2/1m by client_id {\nname n\n}", true},
		{"other names", "rate_limit 1/1m by client_id {\nname n\n}", "test", "rate_limit 2/1m by client_id {\nname m\n}", false},
	} {
		if err := r.load(other(c.first, c.server, c.second)); (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
