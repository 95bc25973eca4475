package caddymodule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const echoCall = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"m":"hi","password":"hunter2"}}}`

func TestCallHasAnIntentBeforeItIsForwardedAndAnOutcomeAfter(t *testing.T) {
	var r *rig
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if got := r.records(); len(got) != 1 || got[0].str("kind") != "intent" {
			t.Errorf("when the server was called the log held:\n%s", show(got))
		}
		answerJSON(w, req, `{"content":[],"token":"t0p"}`)
	})
	r = start(t, up, "", "")
	status, answer := r.post(echoCall)
	if status != 200 || answer != `{"jsonrpc":"2.0","id":7,"result":{"content":[],"token":"t0p"}}` {
		t.Fatalf("answer %d %s", status, answer)
	}
	got := r.await(2)
	intent, outcome := got[0], got[1]
	for name, want := range map[string]string{
		"method": "tools/call", "tool_name": "echo", "mcp_name": "echo", "request_id": "7", "request_id_type": "number",
		"direction": "client→server", "transport": "http", "server_id": "test", "client_id": "anonymous",
		"protocol_version": "2025-03-26",
	} {
		if intent.str(name) != want {
			t.Errorf("intent %s = %q, want %q", name, intent.str(name), want)
		}
	}
	if outcome.str("outcome") != "success" || outcome.str("direction") != "server→client" ||
		outcome.str("audit_operation_id") != intent.str("audit_operation_id") {
		t.Errorf("outcome: %v", outcome)
	}
	if text := show(got); strings.Contains(text, "hunter2") || strings.Contains(text, "t0p") || !strings.Contains(text, "[REDACTED]") {
		t.Errorf("records are not redacted:\n%s", text)
	}
	if up.received()[0] != echoCall {
		t.Errorf("the server received %s", up.received()[0])
	}
	r.verify()
}

func TestAmbiguousMessagesNeverReachTheServer(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	call := func(params string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
	}
	cases := []struct {
		name, body string
		headers    []string
		status     int
		code       string
	}{
		{name: "case variant after", body: call(`{"name":"delete_file","Name":"echo"}`)},
		{name: "case variant before", body: call(`{"Name":"delete_file","name":"echo"}`)},
		{name: "duplicate name", body: call(`{"name":"echo","name":"delete_file"}`)},
		{name: "escaped duplicate", body: call(`{"name":"echo","\u006eame":"delete_file"}`)},
		{name: "long s", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"param` + "\u017f" + `":{"name":"b"}}`},
		{name: "METHOD beside method", body: `{"jsonrpc":"2.0","id":1,"method":"tools/list","METHOD":"tools/call"}`},
		{name: "trailing text", body: echoCall + " xyz", code: "-32700"},
		{name: "second message", body: echoCall + echoCall, code: "-32700"},
		{name: "byte order mark", body: "\ufeff" + echoCall, code: "-32700"},
		{name: "NaN", body: call(`{"name":"echo","arguments":{"x":NaN}}`), code: "-32700"},
		{name: "invalid UTF-8", body: call("{\"name\":\"a\xff\"}"), code: "-32700"},
		{name: "no id", body: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}`},
		{name: "id true", body: `{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"echo"}}`},
		{name: "method and result", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"},"result":{}}`},
		{name: "jsonrpc missing", body: `{"id":1,"method":"ping"}`},
		{name: "batch of a later revision", body: "[" + echoCall + "]", headers: []string{"MCP-Protocol-Version", "2025-06-18"}},
		{name: "empty body", body: "", code: "-32700"},
		{name: "other charset", body: echoCall, headers: []string{"Content-Type", "", "Content-Type", "application/json; charset=utf-16le"}, status: 415},
		{name: "gzip", body: echoCall, headers: []string{"Content-Encoding", "gzip"}, status: 415},
		{name: "text", body: echoCall, headers: []string{"Content-Type", "", "Content-Type", "text/plain"}, status: 415},
		{name: "foreign origin", body: echoCall, headers: []string{"Origin", "http://evil.example"}, status: 403},
		{name: "null origin", body: echoCall, headers: []string{"Origin", "null"}, status: 403},
		{name: "upgrade", body: echoCall, headers: []string{"Connection", "Upgrade", "Upgrade", "websocket"}, status: 501},
		{name: "connection names a header", body: echoCall, headers: []string{"Connection", "close, Mcp-Name"}},
	}
	for i, c := range cases {
		status, answer := r.post(c.body, c.headers...)
		if c.status == 0 {
			c.status = 400
		}
		if c.code == "" {
			c.code = "-32600"
		}
		if status != c.status {
			t.Errorf("%s: status %d, want %d: %s", c.name, status, c.status, answer)
		}
		if c.status == 400 && !strings.Contains(answer, `"code":`+c.code) {
			t.Errorf("%s: answer %s, want code %s", c.name, answer, c.code)
		}
		got := r.await(i + 1)
		last := got[i]
		if last.str("kind") != "event" || last.str("outcome") != "denied" || last.str("reason") == "" {
			t.Errorf("%s: record %v", c.name, last)
		}
	}
	if got := up.received(); len(got) != 0 {
		t.Errorf("the server received %q", got)
	}
	r.verify()
}

func TestBytesGoOnUnchanged(t *testing.T) {
	answer := "{ \"result\" : {\"n\":9007199254740993,\"z\":-0,\"big\":1e400,\"u\":\"\\u00e9\",\"d\":1,\"d\":2,\"k\":{\"b\":1,\"a\":2}},\n\t\"id\":\"x\", \"jsonrpc\":\"2.0\" }\r\n"
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	})
	r := start(t, up, "", "")
	body := "\t{\"method\" : \"tools/call\", \"id\":\"x\",\"jsonrpc\":\"2.0\",\"params\":{\"arguments\":{\"n\":9007199254740993,\"z\":-0,\"big\":1e400,\"u\":\"\\u00e9\\/\",\"k\":{\"b\":1,\"a\":2}},\"name\":\"echo\"}} \n"
	status, got := r.post(body)
	if status != 200 || got != answer {
		t.Errorf("answer %d:\n%q\nwant\n%q", status, got, answer)
	}
	if up.received()[0] != body {
		t.Errorf("the server received\n%q\nwant\n%q", up.received()[0], body)
	}
	r.await(2)
	r.verify()
}

func TestDenialIsAJSONRPCErrorWithTheExactID(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, `policy {
		rule DEL-1 deny {
			method tools/call
			tool delete_file
			reason "no deletions"
		}
	}`, "")
	for i, id := range []string{`7`, `"7"`, `9007199254740993`} {
		status, answer := r.post(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"delete_file"}}`)
		var parsed struct {
			ID    json.RawMessage `json:"id"`
			Error struct {
				Code    int               `json:"code"`
				Message string            `json:"message"`
				Data    map[string]string `json:"data"`
			} `json:"error"`
		}
		if err := json.Unmarshal([]byte(answer), &parsed); err != nil {
			t.Fatal(err)
		}
		rec := r.await(i + 1)[i]
		if status != 200 || string(parsed.ID) != id || parsed.Error.Code != -32030 || parsed.Error.Data["audit_id"] != rec.str("audit_operation_id") {
			t.Errorf("id %s: %d %s", id, status, answer)
		}
		if strings.Contains(answer, "DEL-1") || strings.Contains(answer, "no deletions") {
			t.Errorf("the answer reveals the rule: %s", answer)
		}
		policy, _ := rec["policy"].(map[string]any)
		if rec.str("outcome") != "denied" || policy["rule_id"] != "DEL-1" || policy["decision"] != "deny" {
			t.Errorf("record %v", rec)
		}
	}
	modern := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	_, answer := r.post(modern, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "delete_file")
	if !strings.Contains(answer, `"code":-31030`) {
		t.Errorf("modern denial: %s", answer)
	}
	if status, _ := r.post(echoCall); status != 200 || len(up.received()) != 1 {
		t.Errorf("an allowed call: %d, the server received %q", status, up.received())
	}
	r.await(6)
	r.verify()
}

func TestStreamIsNotDelayedAndServerRequestsAreOperations(t *testing.T) {
	release := make(chan struct{})
	answered := make(chan string, 1)
	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var m struct {
			Method string `json:"method"`
		}
		body := readBody(t, req)
		_ = json.Unmarshal([]byte(body), &m)
		if m.Method == "" {
			answered <- body
			w.WriteHeader(http.StatusAccepted)
			return
		}
		send := sse(w)
		send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		send(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":"really?"}}`)
		<-release
		send(`{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
	})
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, echoCall, "Mcp-Session-Id", "s1")
	defer resp.Body.Close()
	stream := newReader(resp.Body)
	nextEvent(t, stream)
	if !strings.Contains(nextEvent(t, stream), "elicitation/create") {
		t.Fatal("no server request")
	}
	// The same id as the client's: another operation.
	r.post(`{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`, "Mcp-Session-Id", "s1")
	if got := <-answered; got != `{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}` {
		t.Errorf("the server received the answer %s", got)
	}
	close(release)
	if !strings.Contains(nextEvent(t, stream), `"result"`) {
		t.Error("no result")
	}
	got := r.await(4)
	want := []string{"intent client→server", "intent server→client", "outcome client→server", "outcome server→client"}
	for i, rec := range got {
		if rec.str("kind")+" "+rec.str("direction") != want[i] {
			t.Errorf("record %d: %v, want %s", i, rec, want[i])
		}
	}
	if got[1]["parent_seq"] == nil || got[3].str("outcome") != "success" {
		t.Errorf("records:\n%s", show(got))
	}
	counts, _ := got[3]["counts"].(map[string]any)
	if counts["progress"] != 1.0 {
		t.Errorf("progress is not counted: %v", got[3])
	}
	r.verify()
}

func TestDisconnectsAndAbortsAreRecordedWithTheirCause(t *testing.T) {
	gone := make(chan struct{}, 4)
	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := readBody(t, req)
		send := sse(w)
		send(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`)
		if strings.Contains(body, "abort") {
			panic(http.ErrAbortHandler)
		}
		<-req.Context().Done()
		gone <- struct{}{}
	})
	r := start(t, up, "", "")
	modern := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	cases := []struct {
		name, body string
		headers    []string
		leave      bool
		want       string
	}{
		{"legacy client leaves", echoCall, nil, true, "client_disconnect"},
		{"modern client leaves", modern, []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "slow"}, true, "cancelled"},
		{"server aborts", strings.Replace(echoCall, "echo", "abort", 1), nil, false, "upstream_error"},
	}
	n := 0
	for _, c := range cases {
		ctx, cancel := context.WithCancel(context.Background())
		resp := r.send(ctx, http.MethodPost, c.body, c.headers...)
		stream := newReader(resp.Body)
		nextEvent(t, stream)
		if c.leave {
			cancel()
			<-gone
		}
		n += 3 // intent, event, outcome
		got := r.await(n)
		if last := got[n-1]; last.str("outcome") != c.want || last.str("reason") == "" {
			t.Errorf("%s: %v, want %s", c.name, last, c.want)
		}
		resp.Body.Close()
		cancel()
	}
	r.verify()
}

func TestUnreachableServerIsAnUpstreamError(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	up.Close()
	if status, _ := r.post(echoCall); status != http.StatusBadGateway {
		t.Errorf("status %d", status)
	}
	if got := r.await(2)[1]; got.str("outcome") != "upstream_error" || got["http_status"] != 502.0 {
		t.Errorf("outcome %v", got)
	}
	r.verify()
}

func TestCredentialsStopHere(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		ok(w, r)
	})
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, echoCall, "Authorization", "Bearer s3cr3t-credential", "Cookie", "c=d",
		"Authorization", "Mcp-Shim capability", "Mcp-Custom", "kept")
	resp.Body.Close()
	up.mu.Lock()
	head := up.heads[0]
	up.mu.Unlock()
	for _, name := range []string{"Authorization", "Cookie"} {
		if head.Get(name) != "" {
			t.Errorf("%s went on", name)
		}
	}
	if head.Get("Mcp-Custom") != "kept" || head.Get("Accept-Encoding") != "identity" || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("headers %v, %v", head, resp.Header)
	}
	if strings.Contains(show(r.await(2)), "s3cr3t") {
		t.Error("the credential is in the log")
	}
}

func TestEveryOtherExchangeHasARecord(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			ok(w, r)
			return
		}
		w.WriteHeader(http.StatusMethodNotAllowed)
	})
	r := start(t, up, "", "")
	for i, method := range []string{http.MethodGet, http.MethodDelete, http.MethodOptions} {
		resp := r.send(context.Background(), method, "")
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
		if got := r.await(i + 1)[i]; got.str("kind") != "event" || got.str("reason") != "http "+method {
			t.Errorf("%s: %v", method, got)
		}
	}
	r.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if got := r.await(4)[3]; got.str("method") != "notifications/initialized" {
		t.Errorf("notification: %v", got)
	}
	r.verify()
}

func TestObserveForwardsWhatItWouldRefuse(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "mode observe\npolicy {\ndefault deny\n}", "")
	ambiguous := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","Name":"x"}}`
	r.post(ambiguous)
	r.await(2) // the answer's record may come after the next call's
	r.post(echoCall)
	if got := up.received(); len(got) != 2 || got[0] != ambiguous || got[1] != echoCall {
		t.Errorf("the server received %q", got)
	}
	// The ambiguous message is an event, so its answer closes no operation.
	got := r.await(4)
	for i, want := range []string{"fold_variant", "fold_variant", "denied"} {
		if list, _ := got[i]["anomaly"].([]any); len(list) == 0 || list[0] != want {
			t.Errorf("record %d: %v, want anomaly %s", i, got[i], want)
		}
	}
	if got[3].str("outcome") != "success" {
		t.Errorf("outcome %v", got[3])
	}
	r.verify()
}

func TestParallelCallsLeaveNoGap(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	const clients, calls = 16, 16
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range calls {
				status, _ := r.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, c*1000+i))
				if status != 200 {
					t.Errorf("status %d", status)
				}
			}
		})
	}
	wg.Wait()
	r.await(2 * clients * calls)
	report := r.verify()
	if report.Kinds["intent"] != clients*calls || report.Kinds["outcome"] != clients*calls {
		t.Errorf("kinds %v", report.Kinds)
	}
}

func TestRefusalFloodIsJoined(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "refusals 5/s", "")
	// Whether a second passes in between does not matter: each second keeps 5.
	const sent = 60
	for range sent {
		r.post("nonsense")
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		total := 0
		for _, rec := range r.records() {
			n, joined := rec["count"].(float64)
			if !joined {
				n = 1
			}
			total += int(n)
		}
		if total == sent {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the records stand for %d refusals, want %d", total, sent)
		}
		time.Sleep(10 * time.Millisecond) // the joined event comes with the clock
	}
	if n := len(r.records()); n >= sent {
		t.Errorf("%d records", n)
	}
	r.verify()
}

func TestInitializeTellsTheSessionItOpenedAndItsVersion(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", "minted-1")
		answerJSON(w, r, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`)
	})
	r := start(t, up, "", "")
	r.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"2"}}}`)
	r.post(echoCall, "Mcp-Session-Id", "minted-1")
	// The next call may be recorded before the outcome of initialize.
	got := r.await(4)
	find := func(kind, method string) record {
		for _, rec := range got {
			if rec.str("kind") == kind && rec.str("method") == method {
				return rec
			}
		}
		t.Fatalf("no %s of %s:\n%s", kind, method, show(got))
		return nil
	}
	if intent := find("intent", "initialize"); intent.str("session") != "" || intent.str("protocol_version") != "2025-11-25" || intent["client_info"] == nil {
		t.Errorf("intent of initialize: %v", intent)
	}
	session, next := find("outcome", "initialize").str("session"), find("intent", "tools/call")
	if len(session) != 22 || next.str("session") != session || next.str("protocol_version") != "2025-06-18" {
		t.Errorf("the session is not told:\n%s", show(got))
	}
	if strings.Contains(show(got), "minted-1") {
		t.Error("the session id is in the log in clear")
	}
	r.verify()
}

func TestStateOfTheLogIsServed(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	admin, metrics := freePort(t), freePort(t)
	text := strings.Replace(r.caddyfile("", ""), "admin off", fmt.Sprintf("admin 127.0.0.1:%d", admin), 1) +
		fmt.Sprintf("http://:%d {\n\tbind 127.0.0.1\n\tmetrics /metrics\n}\n", metrics)
	for range 2 { // a second load has a registry of its own
		if err := r.load(text); err != nil {
			t.Fatal(err)
		}
	}
	for url, want := range map[string]string{
		fmt.Sprintf("http://127.0.0.1:%d/mcp_audit/status", admin): `"healthy":true`,
		fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics):        `mcp_audit_sink_up{log="default"} 1`,
	} {
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(body), want) {
			t.Errorf("%s: %d, no %s in %.2000s", url, resp.StatusCode, want, body)
		}
	}
	resp, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/mcp_audit/checkpoint", admin), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || !strings.Contains(string(body), "/i0\\n") {
		t.Errorf("checkpoint: %d %s", resp.StatusCode, body)
	}
}

func TestBodyThatBreaksOffIsNoAnswer(t *testing.T) {
	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = readBody(t, req)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":7,"resu`))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, echoCall)
	_, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err == nil {
		t.Error("the client got a whole body")
	}
	if got := r.await(2)[1]; got.str("outcome") != "upstream_error" {
		t.Errorf("outcome %v", got)
	}
	r.verify()
}

func TestServerRequestOnAnOlderStreamHasTheSessionsVersion(t *testing.T) {
	ask := make(chan struct{})
	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			send := sse(w)
			send("")
			<-ask
			send(`{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{}}`)
			<-req.Context().Done()
			return
		}
		if body := readBody(t, req); !strings.Contains(body, "method") {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25"}}`))
	})
	r := start(t, up, "", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodGet, "", "Mcp-Session-Id", "s1")
	defer stream.Body.Close()
	r.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, "Mcp-Session-Id", "s1")
	close(ask)
	for events := newReader(stream.Body); !strings.Contains(nextEvent(t, events), "elicitation"); {
	}
	r.post(`{"jsonrpc":"2.0","id":"e1","result":{"action":"decline"}}`, "Mcp-Session-Id", "s1")
	for _, rec := range r.await(5) {
		if rec.str("method") == "elicitation/create" && rec.str("protocol_version") != "2025-11-25" {
			t.Errorf("record %v", rec)
		}
	}
	cancel()
	r.verify()
}

func TestOnlyPostMayCarryABody(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for i, method := range []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS", "QUERY", "SECRET-METHOD"} {
		resp := r.send(context.Background(), method, echoCall)
		resp.Body.Close()
		if resp.StatusCode != 400 && resp.StatusCode != 405 {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
		if got := r.await(i + 1)[i]; got.str("outcome") != "denied" || got.str("reason") == "" {
			t.Errorf("%s: %v", method, got)
		}
	}
	if got := up.received(); len(got) != 0 {
		t.Errorf("the server received %q", got)
	}
	r.verify()
}

func TestAnswerOnTheStreamOfTheOldTransportClosesItsCall(t *testing.T) {
	called := make(chan string)
	up := newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			called <- readBody(t, req)
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write([]byte("Accepted"))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "event: endpoint\ndata: /mcp?sessionId=s1\n\n")
		_ = http.NewResponseController(w).Flush()
		<-called
		sse(w)(`{"jsonrpc":"2.0","id":7,"result":{"content":[]}}`)
		<-req.Context().Done()
	})
	r := start(t, up, "", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodGet, "")
	defer stream.Body.Close()
	events := newReader(stream.Body)
	nextEvent(t, events)
	req, err := http.NewRequest(http.MethodPost, r.url()+"?sessionId=s1", strings.NewReader(echoCall))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	nextEvent(t, events)
	if got := r.await(3)[2]; got.str("outcome") != "success" || resp.StatusCode != http.StatusAccepted {
		t.Errorf("%d, %v", resp.StatusCode, got)
	}
	cancel()
	r.verify()
}

func TestOnlyATraceContextIsRecordedAsOne(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.post(echoCall, "Traceparent", valid)
	r.await(2)
	r.post(echoCall, "Traceparent", "hunter2-hunter2-hunter2-hunter2-hunter2-hunter2-hunter2")
	got := r.await(4)
	for _, rec := range got {
		if tp := rec.str("traceparent"); tp != "" && tp != valid {
			t.Errorf("record %v", rec)
		}
	}
	if got[0].str("traceparent") != valid {
		t.Errorf("intent %v", got[0])
	}
	r.verify()
}

func TestOptionsDoWhatTheySay(t *testing.T) {
	const deny = "policy {\nrule DEL-1 deny {\ntool echo\nreason kept\n}\n}\n"
	modern := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "other"}
	modernCall := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	for _, c := range []struct {
		name, options, body string
		headers             []string
		status              int
		answer              string // a part of it
		record              string // a part of the first record's or the outcome's text
		forwarded           string // a header that the server sees, as "Name: value"
	}{
		{name: "explain", options: deny + "explain", status: 200, answer: `"rule":"DEL-1","reason":"kept"`, record: `"decision":"deny"`},
		{name: "headers enforce", body: modernCall, headers: modern, status: 400, answer: "-32020", record: `Mcp-Name is \"other\", the body says \"echo\"`},
		{name: "headers record", options: "headers record", body: modernCall, headers: modern, status: 200, record: `"anomaly":["header_mismatch"]`},
		{name: "headers off", options: "headers off", body: modernCall, headers: modern, status: 200, record: `"protocol_version":"2026-07-28"`},
		{name: "capture", options: "capture 8B", status: 200, record: `"result":{"$trunc":`},
		{name: "principal", options: "principal {\nsubject ci\nroles builder\n}", status: 200, record: `"principal":{"roles":["builder"],"source":"configured","subject":"ci"}`},
		{name: "client_id", options: "client_id runner", status: 200, record: `"client_id":"runner"`},
		{name: "identity", options: "identity {http.request.header.X-Operator-Says}", headers: []string{"X-Operator-Says", "alice"}, status: 200, record: `"source":"{http.request.header.X-Operator-Says}","subject":"alice"`},
		{name: "forward_headers", options: "forward_headers Authorization", headers: []string{"Authorization", "Bearer x"}, status: 200, record: `"success"`, forwarded: "Authorization: Bearer x"},
		{name: "origins", options: "origins https://app.example.com", headers: []string{"Origin", "https://app.example.com"}, status: 200, record: `"success"`},
		{name: "max_body", options: "max_body 64B", status: 413, answer: "-32600", record: `"reason":"max_body"`},
		{name: "redact off", options: "redact off", status: 200, record: `"password":"hunter2"`},
		{name: "redact keys", options: "redact {\nkeys +m -password\n}", status: 200, record: `"arguments":{"m":"[REDACTED]","password":"hunter2"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { answerJSON(w, r, `{"content":[]}`) })
			r := start(t, up, c.options, "")
			if c.body == "" {
				c.body = echoCall
			}
			status, answer := r.post(c.body, c.headers...)
			if status != c.status || !strings.Contains(answer, c.answer) {
				t.Errorf("%d %s, want %d %s", status, answer, c.status, c.answer)
			}
			records := 2
			if len(up.received()) == 0 {
				records = 1
			}
			if text := show(r.await(records)); !strings.Contains(text, c.record) {
				t.Errorf("no %s in\n%s", c.record, text)
			}
			if name, value, ok := strings.Cut(c.forwarded, ": "); ok && up.heads[0].Get(name) != value {
				t.Errorf("the server saw %s: %q", name, up.heads[0].Get(name))
			}
			r.verify()
		})
	}
}
