package caddymodule_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestKeepaliveFillsTheSilenceBetweenEvents(t *testing.T) {
	const first, second = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n"
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		sse(w)
		flush := http.NewResponseController(w).Flush
		for _, part := range []string{"", first, second[:10], second[10:]} {
			_, _ = io.WriteString(w, part)
			_ = flush()
			time.Sleep(1500 * time.Millisecond) // the silence is what is tested
		}
	})
	t.Run("also in an answer of a stated length", func(t *testing.T) {
		const whole = first + second
		up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			_, _ = io.WriteString(w, first)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(1500 * time.Millisecond) // the silence is what is tested
			_, _ = io.WriteString(w, second)
		})
		r := start(t, up, "keepalive 1s", "")
		if _, body := r.post(echoCall); body != first+":\n\n"+second {
			t.Errorf("got %q", body)
		}
		r.await(3)
		r.verify()
	})
	for _, c := range []struct {
		option string
		want   string
	}{
		{"", first + second},
		{"keepalive 1s", ":\n\n" + first + ":\n\n" + second + ":\n\n"},
	} {
		r := start(t, up, c.option, "")
		resp := r.send(context.Background(), http.MethodPost, echoCall)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != c.want {
			t.Errorf("%q: got %q, want %q (%v)", c.option, body, c.want, err)
		}
		if resp.Header.Get("Content-Length") != "" {
			t.Error("a stream has a Content-Length")
		}
		r.await(3)
		r.verify()
	}
}

func TestResumedStreamIsRecordedOnce(t *testing.T) {
	event := func(id int, data string) string { return fmt.Sprintf("id: %d\ndata: %s\n\n", id, data) }
	log := func(n int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":%d}}`, n)
	}
	var resumedAt atomic.Value
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Mcp-Session-Id") == "":
			w.Header().Set("Mcp-Session-Id", "s")
			answerJSON(w, r, `{"protocolVersion":"2025-11-25"}`)
		case r.Method == http.MethodPost:
			sse(w)
			_, _ = io.WriteString(w, event(1, log(1))+event(2, log(2)))
		default:
			resumedAt.Store(r.Header.Get("Last-Event-ID"))
			sse(w)
			// One that the client has already, and another under the same id.
			_, _ = io.WriteString(w, event(2, log(2))+event(2, log(3))+event(3, `{"jsonrpc":"2.0","id":7,"result":{}}`))
		}
	})
	r := start(t, up, "", "")
	r.post(initialize)
	r.post(echoCall, "Mcp-Session-Id", "s")
	r.await(2 + 1 + 2)
	// The stream ended, its call is open: the answer may come on another.
	resp := r.send(context.Background(), http.MethodGet, "", "Mcp-Session-Id", "s", "Last-Event-ID", "2")
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if after := resumedAt.Load(); after != "2" || !strings.Contains(string(body), event(2, log(2))) {
		t.Errorf("resumed after %v with %q", after, body)
	}
	got := r.await(2 + 1 + 2 + 1 + 1 + 1)
	if call := outcomeOf(t, got, "tools/call"); call.str("outcome") != "success" {
		t.Errorf("record %v", call)
	}
	for _, n := range []string{`"data":1`, `"data":2`, `"data":3`} {
		if count := strings.Count(show(got), n); count != 1 {
			t.Errorf("%s stands %d times in the log", n, count)
		}
	}
	r.verify()
}

func TestForeignEndpointIsReportedAndBlocked(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sse(w)
		endpoint := "https://elsewhere.example/message?sessionId=x"
		if strings.Contains(r.URL.RawQuery, "own") {
			endpoint = "http://" + r.Host + "/message?sessionId=x"
		}
		fmt.Fprintf(w, "event: endpoint\ndata: %s\n\n", endpoint)
	})
	for _, c := range []struct {
		name, option, query string
		anomaly, passes     bool
	}{
		{"reported", "", "", true, true},
		{"blocked", "block_foreign_endpoint", "", true, false},
		{"observed", "block_foreign_endpoint\nmode observe", "", true, true},
		{"own", "block_foreign_endpoint", "?own", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, up, c.option, "")
			resp, err := client.Get(r.url() + c.query)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if passes := strings.Contains(string(body), "/message"); passes != c.passes {
				t.Errorf("the client received %q", body)
			}
			records := 1
			if c.anomaly {
				records = 2
			}
			last := r.await(records)[records-1]
			if got := strings.Contains(fmt.Sprint(last["anomaly"]), "foreign_endpoint"); got != c.anomaly {
				t.Errorf("record %v", last)
			}
			if denied := last.str("outcome") == "denied"; denied == c.passes {
				t.Errorf("record %v", last)
			}
			r.verify()
		})
	}
}

func TestDenialReachesTheStreamOfTheOldTransport(t *testing.T) {
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
	r := start(t, up, denyDelete, "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodGet, "")
	defer stream.Body.Close()
	events := newReader(stream.Body)
	if got := nextEvent(t, events); got != "/mcp?sessionId=abc" {
		t.Fatal(got)
	}
	post := func(body string) int {
		t.Helper()
		req := r.request(ctx, http.MethodPost, body, nil)
		req.URL.RawQuery = "sessionId=abc"
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, c := range []struct {
		body string
		ids  []string
	}{
		{element(`"x"`, "delete_file"), []string{`"x"`}},
		{"[" + element("1", "delete_file") + "," + element("2", "delete_file") + "]", []string{"1", "2"}},
	} {
		if status := post(c.body); status != http.StatusAccepted {
			t.Errorf("status %d", status)
		}
		for _, id := range c.ids {
			if got := nextEvent(t, events); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32030`) {
				t.Errorf("the stream carries %s", got)
			}
		}
	}
	if got := up.received(); len(got) != 1 {
		t.Errorf("the server received %q", got)
	}
	cancel()
	r.verify()
}

func TestEncodedStreamIsReadInStep(t *testing.T) {
	var encoded bytes.Buffer
	zip := gzip.NewWriter(&encoded)
	parts := []string{}
	for _, event := range []string{
		"data: {\"jsonrpc\":\"2.0\",\"id\":\"e1\",\"method\":\"elicitation/create\",\"params\":{}}\n\n",
		"data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\n",
	} {
		encoded.Reset()
		_, _ = io.WriteString(zip, event)
		_ = zip.Flush()
		parts = append(parts, encoded.String())
	}
	next := make(chan struct{})
	send := func(second string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			sse(w)
			_, _ = io.WriteString(w, parts[0])
			_ = http.NewResponseController(w).Flush()
			<-next
			_, _ = io.WriteString(w, second)
		}
	}
	t.Run("a request has its record before the client has it", func(t *testing.T) {
		up := newUpstream(t, send(parts[1]))
		r := start(t, up, "", "")
		resp := r.send(context.Background(), http.MethodPost, echoCall, "Accept-Encoding", "gzip")
		defer resp.Body.Close()
		first := make([]byte, len(parts[0]))
		if _, err := io.ReadFull(resp.Body, first); err != nil {
			t.Fatal(err)
		}
		if got := r.records(); len(got) != 2 || got[1].str("method") != "elicitation/create" {
			t.Errorf("records when the client has the request:\n%s", show(got))
		}
		next <- struct{}{}
		rest, err := io.ReadAll(resp.Body)
		if err != nil || string(rest) != parts[1] {
			t.Errorf("the rest is %q (%v)", rest, err)
		}
		r.await(3)
	})
	t.Run("what cannot be decoded does not go on", func(t *testing.T) {
		up := newUpstream(t, send("no gzip at all"))
		r := start(t, up, "", "")
		resp := r.send(context.Background(), http.MethodPost, echoCall, "Accept-Encoding", "gzip")
		defer resp.Body.Close()
		next <- struct{}{}
		if body, _ := io.ReadAll(resp.Body); strings.Contains(string(body), "no gzip") {
			t.Errorf("the client received %q", body)
		}
		got := r.await(4)
		if last := show(got); !strings.Contains(last, "malformed_upstream_response") || !strings.Contains(last, "cannot be decoded") {
			t.Errorf("records:\n%s", last)
		}
	})
}

func TestPermissionForEveryOriginIsNarrowed(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		ok(w, r)
	})
	r := start(t, up, "origins https://app.example.com", "")
	resp := r.send(context.Background(), http.MethodOptions, "", "Content-Type", "",
		"Origin", "https://app.example.com", "Access-Control-Request-Method", "POST")
	resp.Body.Close()
	if got := resp.Header; got.Get("Access-Control-Allow-Origin") != "https://app.example.com" ||
		got.Get("Access-Control-Allow-Credentials") != "" || got.Get("Vary") != "Origin" {
		t.Errorf("header %v", got)
	}
	r.verify()
}

func TestMirroredParametersAreCompared(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		answerJSON(w, r, `{"resultType":"complete","tools":[{"name":"query","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}}]}`)
	})
	r := start(t, up, "", "")
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	modern := []string{"MCP-Protocol-Version", "2026-07-28"}
	call := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"query","arguments":{"region":"eu"},` + meta + `}}`
	post := func(region ...string) (int, string) {
		headers := append(modern, "Mcp-Method", "tools/call", "Mcp-Name", "query")
		for _, v := range region {
			headers = append(headers, "Mcp-Param-Region", v)
		}
		return r.post(call, headers...)
	}
	if status, answer := post("us"); status != 200 {
		t.Errorf("before a list was seen: %d %s", status, answer)
	}
	if status, _ := r.post(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`,
		append(modern, "Mcp-Method", "tools/list")...); status != 200 {
		t.Fatal(status)
	}
	r.await(4)
	for _, c := range []struct {
		name   string
		values []string
		status int
		code   string
	}{
		{"equal", []string{"eu"}, 200, ""},
		{"other", []string{"us"}, 400, "-32020"},
		{"absent", nil, 200, ""},
		{"twice", []string{"eu", "eu"}, 400, "-32600"},
		{"bad sentinel", []string{"=?base64?*?="}, 400, "-32020"},
	} {
		status, answer := post(c.values...)
		if status != c.status || c.code != "" && !strings.Contains(answer, `"id":7,"error":{"code":`+c.code) {
			t.Errorf("%s: %d %s", c.name, status, answer)
		}
	}
	if text := show(r.await(4 + 2*2 + 3)); strings.Contains(text, `is "us"`) {
		t.Errorf("a mirrored argument stands in a record:\n%s", text)
	}
}

func TestTaskIDsAreRecordedAsKeyedHashes(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		answerJSON(w, r, `{"task":{"taskId":"secret-task-1","status":"working"}}`)
	})
	r := start(t, up, "", "")
	r.post(echoCall)
	r.post(`{"jsonrpc":"2.0","id":8,"method":"tasks/get","params":{"taskId":"secret-task-1"}}`)
	got := r.await(4)
	if text := show(got); strings.Contains(text, "secret-task-1") {
		t.Errorf("a task id stands in a record:\n%s", text)
	}
	call, get := outcomeOf(t, got, "tools/call").str("task"), outcomeOf(t, got, "tasks/get").str("task")
	if call == "" || call != get {
		t.Errorf("the task of the call is %q, that of tasks/get %q", call, get)
	}
}

func TestProgressIsCountedByItsToken(t *testing.T) {
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}`
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Mcp-Session-Id") == "":
			w.Header().Set("Mcp-Session-Id", "s")
			answerJSON(w, r, `{"protocolVersion":"2025-11-25"}`)
		case r.Method == http.MethodPost:
			sse(w)
			// Without a length, the client is at its end when the progress is counted.
			_ = http.NewResponseController(w).Flush()
			fmt.Fprintf(w, "id: 1\ndata: %s\n\n", progress)
		default:
			sse(w)
			fmt.Fprintf(w, "id: 2\ndata: %s\n\nid: 3\ndata: %s\n\n", strings.Replace(progress, ":1}", ":2}", 1), `{"jsonrpc":"2.0","id":7,"result":{}}`)
		}
	})
	r := start(t, up, "", "")
	r.post(initialize)
	r.post(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":"t"}}}`, "Mcp-Session-Id", "s")
	resp := r.send(context.Background(), http.MethodGet, "", "Mcp-Session-Id", "s", "Last-Event-ID", "1")
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if got := outcomeOf(t, r.await(5), "tools/call"); fmt.Sprint(got["counts"]) != "map[progress:2]" {
		t.Errorf("record %v", got)
	}
}

func TestOnlyWhatMayBeRepeatedIsRetriedAsOneOperation(t *testing.T) {
	var failures atomic.Int32
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			// Caddy's health check.
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if failures.Add(-1) >= 0 {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				conn.Close()
			}
			return
		}
		ok(w, r)
	}
	up, second := newUpstream(t, answer), newUpstream(t, answer)
	posted := func() []string {
		return slices.DeleteFunc(append(up.received(), second.received()...), func(body string) bool { return body == "" })
	}
	r := start(t, up, "", "")
	example, err := os.ReadFile("../examples/retries.caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	_, proxy, found := strings.Cut(string(example), "reverse_proxy 127.0.0.1:8080 127.0.0.1:8081 {")
	if !found {
		t.Fatal("the example has no reverse_proxy")
	}
	proxy, _, _ = strings.Cut(proxy, "\n\t\t}\n")
	if err := r.load(strings.Replace(r.caddyfile("", ""), "reverse_proxy "+up.host(), "reverse_proxy "+up.host()+" "+second.host()+" {"+proxy+"\n}", 1)); err != nil {
		t.Fatal(err)
	}
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for i, c := range []struct {
		body     string
		status   int
		received int
		counts   string
	}{
		{list, 200, 2, "map[attempts:2]"},
		{echoCall, 502, 1, "<nil>"},
	} {
		failures.Store(1)
		before := len(posted())
		if status, answer := r.post(c.body); status != c.status {
			t.Errorf("%s: status %d: %s", c.body, status, answer)
		}
		got := slices.DeleteFunc(posted(), func(body string) bool { return body != c.body })
		if len(got) != c.received || len(posted()) != before+c.received {
			t.Errorf("the servers received %q", posted())
		}
		if got := outcomeOf(t, r.await(2*i + 2)[2*i:], ""); fmt.Sprint(got["counts"]) != c.counts {
			t.Errorf("record %v", got)
		}
	}
}

func TestCallOfTheOldTransportEndsWithItsStream(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		sse(w)
		fmt.Fprint(w, "event: endpoint\ndata: /mcp?session_id=abc\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	r := start(t, up, "", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodGet, "")
	defer stream.Body.Close()
	nextEvent(t, newReader(stream.Body))
	req := r.request(ctx, http.MethodPost, echoCall, nil)
	req.URL.RawQuery = "session_id=abc"
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := r.await(2); got[1].str("kind") != "intent" {
		t.Fatalf("records:\n%s", show(got))
	}
	cancel()
	if got := outcomeOf(t, r.await(3), "tools/call"); got.str("outcome") != "client_disconnect" {
		t.Errorf("record %v", got)
	}
	r.verify()
}
