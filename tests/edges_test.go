package tests

import (
	"bytes"
	"compress/zlib"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// A body may have white space around its message, and a field's value more
// than the one space that belongs to the field. It is a part of what was sent.
func TestWhiteSpaceAroundAMessageIsHashedWithIt(t *testing.T) {
	message := func(id string) string { return `{"jsonrpc":"2.0","id":"` + id + `","result":{}}` }
	cases := []struct{ marker, request, kind, body, answer string }{
		{"request.", "\r\n \t" + call(`"request."`, "echo", `{}`) + "\n ", "application/json", message("request."), message("request.")},
		{"answer.", call(`"answer."`, "echo", `{}`), "application/json", " \r\n" + message("answer.") + "\n\t", " \r\n" + message("answer.") + "\n\t"},
		{"event.", call(`"event."`, "echo", `{}`), "text/event-stream", "data:  " + message("event.") + "\t\ndata:\n\n", " " + message("event.") + "\t\n"},
	}
	known := make(map[string]reply)
	for _, c := range cases {
		known[c.request] = reply{c.kind, c.body}
	}
	u := upstream.Script(t, replies(known))
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for _, c := range cases {
		if answer := caddy.Post(t, c.request); answer.Body != c.body {
			t.Errorf("%s\nanswered %q\nreceived %q", c.marker, c.body, answer.Body)
		}
	}
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	for _, c := range cases {
		log.call(t, c.marker, c.request, c.answer, "success")
	}
}

// An event that is too large to be read is vouched for all the same.
func TestEventTooLargeToReadIsHashed(t *testing.T) {
	answer := `{"jsonrpc":"2.0","id":"large.","result":{"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcdef", 20<<20/16) + `"}]}}`
	request := call(`"large."`, "echo", `{}`)
	u := upstream.Script(t, replies(map[string]reply{request: {"text/event-stream", asEvent(answer)}}))
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	if got := caddy.Post(t, request); got.Body != asEvent(answer) {
		t.Errorf("%d bytes, %d were sent", len(got.Body), len(answer))
	}
	caddy.Stop(t)
	readVouched(t, caddy.Log).call(t, `"large."`, request, answer, "success")
}

// An event that is too large to be read and never ends is no answer.
func TestEventTooLargeToReadThatBreaksOffIsNoAnswer(t *testing.T) {
	u := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		asStream(w)
		upstream.Push(w, `data: {"jsonrpc":"2.0","id":7,"result":"`+strings.Repeat("0123456789abcdef", 20<<20/16))
		panic(http.ErrAbortHandler)
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	send(caddy.NewRequest(t, call("7", "echo", `{}`)))
	if o := caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "echo" }); o.Outcome.Outcome != "upstream_error" {
		t.Errorf("outcome %q, want upstream_error: %s", o.Outcome.Outcome, o.Outcome.Line)
	}
}

// STR-5, when it is the client's connection that is cut.
func TestStreamWhoseClientLostItsConnectionIsResumed(t *testing.T) {
	const session = "session-of-the-stream"
	third := "id: 3\n" + asEvent(result("7"))
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		asStream(w)
		if r.Method == http.MethodGet {
			upstream.Push(w, third)
			return
		}
		upstream.Push(w, "id: 1\n"+asEvent(logMessage("one")))
		upstream.Push(w, "id: 2\n"+asEvent(logMessage("two")))
		<-r.Context().Done()
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	header := []string{"Mcp-Session-Id", session, "MCP-Protocol-Version", legacy}
	ctx, lose := context.WithTimeout(t.Context(), harness.Patience)
	defer lose()
	stream := open(t, caddy.NewRequest(t, call("7", "echo", `{}`), header...).WithContext(ctx))
	event(t, stream)
	event(t, stream)
	lose()
	if answer := caddy.Do(t, get(t, caddy, append(header, "Last-Event-ID", "2")...)); answer.Body != third {
		t.Errorf("resumed with %+v", answer)
	}
	caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "echo" })
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	if o := log.calls[0].Outcome; o.Outcome != "success" {
		t.Errorf("outcome %q: %s", o.Outcome, o.Line)
	}
	for _, r := range traffic(log.records) {
		if anomaly := r.Wire(t).Anomaly; len(anomaly) > 0 {
			t.Errorf("an anomaly: %s", r.Line)
		}
	}
}

// The coding deflate is a zlib stream (RFC 9110 section 8.4.1.2).
func TestDeflateIsReadAsItIsDefined(t *testing.T) {
	for _, kind := range []string{"application/json", "text/event-stream"} {
		t.Run(kind, func(t *testing.T) {
			var sent bytes.Buffer
			z := zlib.NewWriter(&sent)
			body := result("7")
			if kind == "text/event-stream" {
				body = asEvent(result("7"))
			}
			io.WriteString(z, body)
			z.Close()
			u := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
				w.Header().Set("Content-Type", kind)
				w.Header().Set("Content-Encoding", "deflate")
				w.Write(sent.Bytes())
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			resp, err := http.DefaultClient.Do(caddy.NewRequest(t, call("7", "echo", `{"m":"deflate."}`), "Accept-Encoding", "deflate"))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != sent.String() {
				t.Errorf("received %q, %v", got, err)
			}
			caddy.Stop(t)
			readVouched(t, caddy.Log).call(t, "deflate.", call("7", "echo", `{"m":"deflate."}`), result("7"), "success")
		})
	}
}

// A stream that is cut because it cannot be decoded is no success.
func TestStreamThatIsCutAsUndecodableIsNoSuccess(t *testing.T) {
	u := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		asStream(w)
		w.Header().Set("Content-Encoding", "gzip")
		out := codings[0].encode(w)
		io.WriteString(out, "data: ")
		zeros := bytes.Repeat([]byte("0"), 1<<20)
		for range 128 {
			out.Write(zeros)
		}
		out.Close()
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	resp, err := http.DefaultClient.Do(caddy.NewRequest(t, call("7", "echo", `{}`), "Accept-Encoding", "gzip"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("%d bytes and no error", len(got))
	}
	o := caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "echo" })
	if o.Outcome.Outcome == "success" {
		t.Errorf("outcome %q: %s", o.Outcome.Outcome, o.Outcome.Line)
	}
}

// What is not whole does not go on, and it is the client's fault, not the
// log's: it is recorded, and the log stays up.
func TestBodyThatIsNotWholeIsRefusedAndRecorded(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	body := call("7", "echo", `{"m":"broken"}`)
	cases := []struct{ name, raw string }{
		{"a body that breaks off", "Content-Length: 1000\r\n\r\n" + body},
		{"chunks without their end", "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(body), body)},
		{"a chunk of no length", "Transfer-Encoding: chunked\r\n\r\nxyz\r\n" + body},
	}
	for i, c := range cases {
		if answer := rawExchange(t, caddy.Listen, postHead+c.raw, true); strings.Contains(answer, "200 OK") {
			t.Errorf("%s: answered by %q", c.name, answer)
		}
		if status, state := caddy.AdminGet(t, "/mcp_audit/status"); status != http.StatusOK {
			t.Errorf("%s: the state of the log is %d %s", c.name, status, state)
		}
		harness.Eventually(t, c.name+" is recorded", func() bool { return len(traffic(caddy.Records(t))) == i+1 })
	}
	if u.Count() > 0 {
		t.Errorf("the server received %q", u.Bodies())
	}
	for _, r := range traffic(caddy.Records(t)) {
		if r.Kind != "event" || r.Outcome != "denied" || r.Reason != "body_unreadable" {
			t.Errorf("the record does not say what happened: %s", r.Line)
		}
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}
