package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

func quote(t *testing.T, s string) string {
	t.Helper()
	q, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(q)
}

func TestRequestsArriveByteForByte(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	arguments := []string{
		`{"n":9007199254740993}`,
		`{"n":-0,"f":1e400,"g":1.10,"h":1E+2}`,
		`{"u":"\u00e9","v":"é","w":"\/"}`,
		`{"b":1,"a":2,"":{}}`,
		"{ \"x\" :\t[ ] ,\r\n \"y\" : null }",
		`{"password":"the record hides it, the wire does not"}`,
	}
	for _, a := range arguments {
		for _, body := range []string{call("9007199254740993", "echo", a), "\n  " + call(`"\u0041"`, "echo", a) + " \r\n"} {
			caddy.Post(t, body)
			bodies := u.Bodies()
			if got := string(bodies[len(bodies)-1]); got != body {
				t.Errorf("sent     %q\nreceived %q", body, got)
			}
		}
	}
	for _, h := range u.Headers() {
		if h.Get("Accept") != "application/json, text/event-stream" || h.Get("Content-Type") != "application/json" {
			t.Errorf("headers arrived changed: %v", h)
		}
	}
	caddy.Stop(t)
	log := caddy.Records(t)
	for _, r := range log {
		if strings.Contains(r.Line, "the record hides it") {
			t.Errorf("the log keeps a password: %s", r.Line)
		}
	}
	harness.VerifyClean(t, caddy.Log)
}

func TestAnswersReturnByteForByte(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	const head = `{"jsonrpc":"2.0","id":7,"result":`
	const event = "event: message\ndata: "
	cases := []struct{ name, kind, bytes, outcome string }{
		{"numbers", "", head + `{"n":9007199254740993,"z":-0,"h":1e400,"f":1e3}}`, "success"},
		{"escapes", "", head + `{"u":"\u00e9\/","content":[]}}`, "success"},
		{"duplicate keys", "", head + `{"a":1,"a":2}}`, "success"},
		{"key order and whitespace", "", "\r\n { \"result\" : {\"b\":1,\"a\":2} , \"id\":7,\"jsonrpc\":\"2.0\" }\n", "success"},
		{"error", "", `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"no \u00e9","data":[1.0]}}`, "rpc_error"},
		{"secret", "", head + `{"structuredContent":{"password":"on the wire"}}}`, "success"},
		{"type with parameters", "Application/JSON ; charset=utf-8", head + `{}}`, "success"},
		{"events", "text/event-stream", ": comment\nretry: 10\n\n" + event + head + "{}}\n\n", "success"},
		{"events with CRLF", "text/event-stream", "id: 1\r\nevent: message\r\ndata: " + head + "{}}\r\n\r\n", "success"},
		{"events in parts", "text/event-stream", "data: " + head + "\ndata: {\"a\":1}}\n\n", "success"},
		{"priming event", "text/event-stream", "id: 0\ndata:\n\n" + event + head + "{}}\n\n: bye\n", "success"},
		{"last event unterminated", "text/event-stream", event + head + "{}}", "success"},
		{"no JSON", "text/plain", "busy", "malformed_upstream_response"},
		{"half JSON", "", head + `{"a":`, "malformed_upstream_response"},
		{"other id", "", `{"jsonrpc":"2.0","id":8,"result":{}}`, "upstream_error"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			answer := caddy.Post(t, call("7", "raw", `{"type":`+quote(t, c.kind)+`,"bytes":`+quote(t, c.bytes)+`,"marker":`+quote(t, "<"+c.name+">")+`}`))
			if answer.Body != c.bytes {
				t.Errorf("answered %q\nreceived %q", c.bytes, answer.Body)
			}
			o := caddy.Operation(t, c.name, with("<"+c.name+">"))
			if o.Outcome.Outcome != c.outcome {
				t.Errorf("outcome %q, want %q: %s", o.Outcome.Outcome, c.outcome, o.Outcome.Line)
			}
		})
	}
	caddy.Stop(t)
	for _, r := range caddy.Records(t) {
		if r.Kind == "outcome" && strings.Contains(r.Line, "on the wire") {
			t.Errorf("the log keeps a password: %s", r.Line)
		}
	}
	harness.VerifyClean(t, caddy.Log)
}

// open sends a request and returns its answer as a stream.
func open(t *testing.T, r *http.Request) *bufio.Reader {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("the answer is no stream but %s: %s", kind, body)
	}
	return bufio.NewReader(resp.Body)
}

// event reads the data of the next event.
func event(t *testing.T, stream *bufio.Reader) string {
	t.Helper()
	for {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return strings.TrimSpace(data)
		}
	}
}

// STR-1.
func TestFirstEventArrivesWhenTheServerSendsIt(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	var delays []time.Duration
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		flushed := make(chan time.Time, 1)
		go func() {
			<-u.Entered(key)
			flushed <- time.Now()
		}()
		stream := open(t, caddy.NewRequest(t, call("7", "hold", `{"key":"`+key+`","sse":true}`)))
		if got := event(t, stream); !strings.Contains(got, "notifications/progress") {
			t.Errorf("first event %s", got)
		}
		arrived := time.Now()
		delays = append(delays, max(0, arrived.Sub(<-flushed)))
		u.Release(key)
		if got := event(t, stream); !strings.Contains(got, `"id":7`) {
			t.Errorf("second event %s", got)
		}
	}
	// The middle one: a machine that is busy for a moment proves nothing.
	slices.Sort(delays)
	if delays[2] > 200*time.Millisecond {
		t.Errorf("the first event arrives %s after it was sent", delays[2])
	}
}

func TestClientThatLeavesIsRecorded(t *testing.T) {
	for _, c := range []struct{ revision, outcome string }{{legacy, "client_disconnect"}, {modern, "cancelled"}} {
		t.Run(c.revision, func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			body, header := call("7", "hold", `{"key":"leave","sse":true}`), []string{"MCP-Protocol-Version", c.revision}
			if c.revision == modern {
				body, header = modernCall("7", "hold", `{"key":"leave","sse":true}`)
			}
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			event(t, open(t, caddy.NewRequest(t, body, header...).WithContext(ctx)))
			leave()
			harness.Within(t, 2*time.Second, "the server sees that the client has gone", u.Left("leave"))
			o := caddy.Operation(t, "the call", with("leave"))
			if o.Outcome.Outcome != c.outcome {
				t.Errorf("outcome %q, want %q: %s", o.Outcome.Outcome, c.outcome, o.Outcome.Line)
			}
			caddy.Stop(t)
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

func TestServerThatBreaksOffIsRecorded(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})

	stream := open(t, caddy.NewRequest(t, call("7", "echo", `{"m":"broken stream","sse":true,"abort":true}`)))
	event(t, stream)
	if rest, err := io.ReadAll(stream); err == nil {
		t.Errorf("the client sees no error, but the end after %q", rest)
	}
	for marker, body := range map[string]string{
		"broken stream": "",
		"broken body":   call("8", "raw", `{"bytes":"{\"jsonrpc\":","abort":true,"m":"broken body"}`),
	} {
		if body != "" {
			send(caddy.NewRequest(t, body))
		}
		o := caddy.Operation(t, marker, with(marker))
		if o.Outcome.Outcome != "upstream_error" {
			t.Errorf("%s: outcome %q, want upstream_error: %s", marker, o.Outcome.Outcome, o.Outcome.Line)
		}
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

func TestServerThatIsNotThereIsRecorded(t *testing.T) {
	caddy := harness.StartCaddy(t, harness.Site{Upstream: harness.FreeAddress(t)})
	if answer := caddy.Post(t, call("7", "echo", `{"m":"nobody"}`)); answer.Status != http.StatusBadGateway {
		t.Errorf("status %d, want 502", answer.Status)
	}
	if o := caddy.Operation(t, "the call", with("nobody")); o.Outcome.Outcome != "upstream_error" {
		t.Errorf("outcome %q, want upstream_error", o.Outcome.Outcome)
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}
