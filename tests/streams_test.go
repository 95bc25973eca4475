package tests

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// asStream begins an event stream.
func asStream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
}

// wait ends with the caller's patience, so that a test that failed leaves no
// handler behind.
func wait(r *http.Request, event <-chan struct{}) {
	select {
	case <-event:
	case <-r.Context().Done():
	}
}

// patient bounds how long a request may take.
func patient(t *testing.T, r *http.Request) *http.Request {
	ctx, cancel := context.WithTimeout(r.Context(), harness.Patience)
	t.Cleanup(cancel)
	return r.WithContext(ctx)
}

// logMessage is a notification that is recorded, unlike progress, which is
// only counted.
func logMessage(data string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + data + `"}}`
}

func result(id string) string { return `{"jsonrpc":"2.0","id":` + id + `,"result":{"content":[]}}` }

// STR-1.
func TestFirstEventIsNotDelayedByAnyOption(t *testing.T) {
	const rounds = 5
	for name, options := range map[string]string{
		"defaults":       "",
		"no redaction":   "redact off",
		"more redaction": "redact {\nkeys +m +data fragment:cont\n}",
		"a policy":       denyDelete,
		"observe":        "mode observe",
	} {
		t.Run(name, func(t *testing.T) {
			flushed := make(chan time.Time, 1)
			seen := make(chan struct{})
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				asStream(w)
				upstream.Push(w, asEvent(logMessage("first")))
				flushed <- time.Now()
				wait(r, seen) // the result is late by as much as the client wants
				upstream.Push(w, asEvent(result("7")))
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: options})
			for _, era := range []string{legacy, modern} {
				var delays []time.Duration
				for range rounds {
					body, header := call("7", "echo", `{"m":"x"}`), []string{"MCP-Protocol-Version", legacy}
					if era == modern {
						body, header = modernCall("7", "echo", `{"m":"x"}`)
					}
					stream := open(t, patient(t, caddy.NewRequest(t, body, header...)))
					if got := event(t, stream); got != logMessage("first") {
						t.Errorf("first event %s", got)
					}
					delays = append(delays, max(0, time.Since(<-flushed)))
					seen <- struct{}{}
					if got := event(t, stream); got != result("7") {
						t.Errorf("second event %s", got)
					}
				}
				// The middle one: a machine that is busy for a moment proves nothing.
				slices.Sort(delays)
				if delays[rounds/2] > 200*time.Millisecond {
					t.Errorf("%s: the first event arrives %s after it was sent", era, delays[rounds/2])
				}
			}
		})
	}
}

// STR-2.
func TestServersRequestInsideACallsStream(t *testing.T) {
	const (
		elicitation = `{"method":"elicitation/create","jsonrpc":"2.0","params":{"message":"which \u00e9?","requestedSchema":{"type":"object","properties":{}}},"id":"e1"}`
		reply       = `{"result":{"action":"accept","content":{"n":1.0}} ,"id":"e1","jsonrpc":"2.0"}`
	)
	for _, session := range []string{"", "session-of-the-call"} {
		t.Run("session "+session, func(t *testing.T) {
			answered := make(chan struct{})
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
				if string(body) == reply {
					w.WriteHeader(http.StatusAccepted)
					close(answered) // a second time would be a panic, and an error at the client
					return
				}
				asStream(w)
				upstream.Push(w, asEvent(elicitation))
				wait(r, answered)
				upstream.Push(w, asEvent(result("7")))
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			header := []string{"MCP-Protocol-Version", legacy}
			if session != "" {
				header = append(header, "Mcp-Session-Id", session)
			}
			request := call("7", "ask", `{}`)
			stream := open(t, patient(t, caddy.NewRequest(t, request, header...)))
			if got := event(t, stream); got != elicitation {
				t.Fatalf("the first event is %s", got)
			}
			if answer := caddy.Post(t, reply, header...); answer.Status != http.StatusAccepted || answer.Body != "" {
				t.Errorf("the answer is answered by %d %s", answer.Status, answer.Body)
			}
			if got := event(t, stream); got != result("7") {
				t.Errorf("the second event is %s", got)
			}
			if got := u.With(`"action"`); len(got) != 1 || string(got[0].Body) != reply {
				t.Errorf("the answer reached the server %d times", len(got))
			}
			caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "ask" })
			caddy.Stop(t)

			log := readVouched(t, caddy.Log)
			if len(log.calls) != 2 {
				t.Fatalf("%d operations, want the call and the server's request", len(log.calls))
			}
			outer, inner := log.calls[0], log.calls[1]
			parent := inner.Intent.Wire(t).ParentSeq
			if inner.Intent.Method != "elicitation/create" || inner.Intent.Direction != "server→client" || parent == nil || *parent != outer.Intent.Seal.Seq {
				t.Errorf("the server's request is not recorded within the call: %s", inner.Intent.Line)
			}
			if inner.Outcome.Direction != "client→server" || inner.Outcome.Outcome != "success" {
				t.Errorf("the client's answer is not recorded: %s", inner.Outcome.Line)
			}
			if inner.Outcome.Seal.Seq > outer.Outcome.Seal.Seq {
				t.Error("the call is recorded as answered before the server had the client's answer")
			}
			log.hashes.CheckRequest(t, outer.Intent, []byte(request))
			log.hashes.CheckRequest(t, inner.Intent, []byte(elicitation))
			log.hashes.CheckResponse(t, inner.Outcome, []byte(reply))
			log.hashes.CheckResponse(t, outer.Outcome, []byte(result("7")))
		})
	}
}

// STR-3. The time is longer than any time-out of the programs in between is
// set to in this configuration; MCP_AUDIT_LONG=1 outlasts their defaults.
func TestIdleStreamLives(t *testing.T) {
	idle := 10 * time.Second
	if long() {
		idle = 90 * time.Second
	}
	progress, answer := asEvent(logMessage("before")), asEvent(result("7"))
	crlf := strings.ReplaceAll(answer, "\n", "\r\n")
	cases := []struct {
		name, option  string
		before, after string // the silence
		encoding      string
		keptAlive     bool
	}{
		{name: "between events", before: progress, after: answer},
		{name: "before the first event", after: answer},
		{name: "kept alive between events", option: "keepalive 2s", before: progress, after: answer, keptAlive: true},
		{name: "kept alive before the first event", option: "keepalive 2s", after: answer, keptAlive: true},
		// A comment at one of these places would change a message.
		{name: "kept alive within a line", option: "keepalive 2s", before: answer[:30], after: answer[30:]},
		{name: "kept alive between lines", option: "keepalive 2s", before: "event: message\n", after: strings.TrimPrefix(answer, "event: message\n")},
		{name: "kept alive between CR and LF", option: "keepalive 2s", before: crlf[:strings.Index(crlf, "\n")], after: crlf[strings.Index(crlf, "\n"):]},
		{name: "kept alive between the CR and LF of a blank line", option: "keepalive 2s", before: crlf[:len(crlf)-1], after: "\n" + progress},
		{name: "kept alive under a content coding", option: "keepalive 2s", before: progress, after: answer, encoding: "gzip"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				asStream(w)
				w.Header().Set("X-Server", "as sent")
				encoded := func(part string) string { return part }
				if c.encoding == "gzip" {
					w.Header().Set("Content-Encoding", "gzip")
					var buf bytes.Buffer
					z := gzip.NewWriter(&buf)
					encoded = func(part string) string {
						buf.Reset()
						io.WriteString(z, part)
						z.Flush()
						if part == c.after {
							z.Close()
						}
						return buf.String()
					}
				}
				upstream.Push(w, encoded(c.before))
				select {
				case <-time.After(idle): // the silence is what is tested
				case <-r.Context().Done():
					return
				}
				upstream.Push(w, encoded(c.after))
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: c.option})
			request := caddy.NewRequest(t, call("7", "echo", `{}`))
			request.Header.Set("Accept-Encoding", "identity")
			resp, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body := io.Reader(resp.Body)
			if c.encoding == "gzip" {
				if body, err = gzip.NewReader(body); err != nil {
					t.Fatal(err)
				}
			}
			got, err := io.ReadAll(body)
			if err != nil {
				t.Errorf("the stream breaks off: %v", err)
			}
			want := c.before + c.after
			if c.option == "" {
				if string(got) != want {
					t.Errorf("the server's bytes alone: %q, want %q", got, want)
				}
			} else {
				comments := strings.Count("\n"+string(got), "\n:")
				if strings.Join(dispatched(string(got)), "|") != strings.Join(dispatched(want), "|") {
					t.Errorf("read as %q, written %q: %q", dispatched(string(got)), dispatched(want), got)
				}
				if strings.Contains(string(got), "ping") || c.keptAlive && comments == 0 {
					t.Errorf("%d comments: %q", comments, got)
				}
			}
			if h := resp.Header; resp.ContentLength >= 0 || h.Get("Content-Length") != "" || h.Get("X-Server") != "as sent" ||
				h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-cache" {
				t.Errorf("headers %v", h)
			}
			if o := caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "echo" }); o.Outcome.Outcome != "success" {
				t.Errorf("outcome %q: %s", o.Outcome.Outcome, o.Outcome.Line)
			}
		})
	}
}

// dispatched are the data of a stream's events as WHATWG HTML section 9.2.6
// reads them.
func dispatched(stream string) (events []string) {
	stream = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	var data []string
	for line := range strings.SplitSeq(stream, "\n") {
		switch field, value, _ := strings.Cut(line, ":"); {
		case line == "" && data != nil:
			events, data = append(events, strings.Join(data, "\n")), nil
		case line != "" && field == "data":
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return events
}

// descriptors and goroutines of a running Caddy.
func descriptors(t *testing.T, caddy *harness.Caddy) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", caddy.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

func goroutines(t *testing.T, caddy *harness.Caddy) int {
	t.Helper()
	_, profile := caddy.AdminGet(t, "/debug/pprof/goroutine?debug=1")
	line, _, _ := strings.Cut(profile, "\n")
	n, err := strconv.Atoi(strings.TrimPrefix(line, "goroutine profile: total "))
	if err != nil {
		t.Fatalf("the profile begins with %q", line)
	}
	return n
}

// STR-4, modern: closing the stream takes the call back.
func TestClosedStreamTakesTheCallBack(t *testing.T) {
	const rounds = 50
	for _, begun := range []bool{true, false} {
		t.Run(fmt.Sprintf("after the first event %v", begun), func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			// A client of its own, whose idle connections can be closed.
			client := &http.Client{Transport: &http.Transport{}}
			take := func(key string, hold time.Duration) {
				body, header := modernCall("7", "hold", fmt.Sprintf(`{"key":%q,"sse":%v}`, key, begun))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if begun {
					resp, err := client.Do(caddy.NewRequest(t, body, header...).WithContext(ctx))
					if err != nil {
						t.Fatal(err)
					}
					defer resp.Body.Close()
					event(t, bufio.NewReader(resp.Body))
				} else {
					go func() {
						if resp, err := client.Do(caddy.NewRequest(t, body, header...).WithContext(ctx)); err == nil {
							resp.Body.Close()
						}
					}()
				}
				harness.Within(t, harness.Patience, "the call reaches the server", u.Entered(key))
				<-time.After(hold)
				leave()
				harness.Within(t, 2*time.Second, "the server sees that the client has gone", u.Left(key))
			}
			take("warm.", 0)
			caddy.Operation(t, "the first call", with("warm."))
			client.CloseIdleConnections()
			files, routines := descriptors(t, caddy), goroutines(t, caddy)

			take("second.", time.Second)
			for i := range rounds - 1 {
				take(fmt.Sprintf("round-%d.", i), 0)
			}
			caddy.Operation(t, "the last call", with(fmt.Sprintf("round-%d.", rounds-2)))
			client.CloseIdleConnections()
			harness.Eventually(t, fmt.Sprintf("%d descriptors as before", files), func() bool { return descriptors(t, caddy) <= files })
			harness.Eventually(t, fmt.Sprintf("%d goroutines as before", routines), func() bool { return goroutines(t, caddy) <= routines })
			caddy.Stop(t)

			operations := harness.Operations(t, caddy.Records(t))
			if len(operations) != rounds+1 {
				t.Errorf("%d calls are recorded, want %d", len(operations), rounds+1)
			}
			for _, o := range operations {
				if o.Outcome.Outcome != "cancelled" {
					t.Errorf("outcome %q, want cancelled: %s", o.Outcome.Outcome, o.Outcome.Line)
				}
				if d := o.Outcome.Duration; strings.Contains(o.Intent.Line, "second.") && (d == nil || *d < 900 || *d > 2500) {
					t.Errorf("a call of one second: %s", o.Outcome.Line)
				}
			}
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"taken back"}}`

// STR-4, legacy: the notification overtakes the call that it is about.
func TestCancellationReachesTheServerWhileTheCallRuns(t *testing.T) {
	for outcome, arguments := range map[string]string{
		"cancelled": `{"key":"run","sse":true,"abort":true}`, // the server gives up
		"success":   `{"key":"run","sse":true}`,              // it was too late
	} {
		t.Run(outcome, func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			stream := open(t, patient(t, caddy.NewRequest(t, call("7", "hold", arguments), "MCP-Protocol-Version", legacy)))
			event(t, stream)
			harness.Within(t, harness.Patience, "the call reaches the server", u.Entered("run"))
			if answer := caddy.Post(t, cancelled, "MCP-Protocol-Version", legacy); answer.Status != http.StatusAccepted {
				t.Errorf("the cancellation is answered by %d %s", answer.Status, answer.Body)
			}
			if bodies := u.Bodies(); string(bodies[len(bodies)-1]) != cancelled {
				t.Errorf("the server received %q", bodies)
			}
			// Only now does the call go on: it cannot have been waited for.
			u.Release("run")
			rest, err := io.ReadAll(stream)
			if outcome == "success" && (err != nil || !strings.Contains(string(rest), `"id":7`)) {
				t.Errorf("the stream ends with %q, %v", rest, err)
			}
			if o := caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "hold" }); o.Outcome.Outcome != outcome {
				t.Errorf("outcome %q, want %q: %s", o.Outcome.Outcome, outcome, o.Outcome.Line)
			}
			caddy.Stop(t)
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

func TestCancellationReachesTheChildWhileTheCallRuns(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			dir := harness.TempDir(t)
			shim, log := s.start(t, dir, mock(t, dir))
			shim.Initialize(t)
			shim.Send(t, call("7", "hold", `{"key":"for ever"}`))
			shim.Send(t, cancelled)
			harness.Eventually(t, "the cancellation reaches the child", func() bool {
				return strings.HasSuffix(string(read(t, recordOf(dir))), "\n"+cancelled+"\n")
			})
			// Others are served meanwhile.
			if answer := shim.Call(t, call("8", "echo", `{"m":"meanwhile"}`)); !strings.Contains(answer, "meanwhile") {
				t.Errorf("the next call: %s", answer)
			}
			shim.In.Close()
			shim.Rest(t)
			shim.Exit(t)
			path := log()
			for _, o := range harness.Operations(t, harness.ReadLog(t, path)) {
				if o.Intent.Tool == "hold" && o.Outcome.Outcome != "cancelled" {
					t.Errorf("outcome %q, want cancelled: %s", o.Outcome.Outcome, o.Outcome.Line)
				}
			}
			harness.VerifyClean(t, path)
		})
	}
}

// STR-5: a stream of a session that breaks is taken up by a GET, which brings
// the answer.
func TestBrokenStreamIsResumedWhereItBroke(t *testing.T) {
	const session = "session-of-the-stream"
	// Ids are opaque: any characters that a header may carry.
	const last = `7/2; "é" %32=`
	cases := []struct {
		name   string
		server func(r *http.Request) // what it does after the second event
		client bool                  // goes first
	}{
		{"the server breaks off", func(*http.Request) { panic(http.ErrAbortHandler) }, false},
		{"the server ends the stream", func(*http.Request) {}, false},
		{"the client loses the connection", func(r *http.Request) { <-r.Context().Done() }, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			third := "id: 7/3\n" + asEvent(result("7"))
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				asStream(w)
				if r.Method == http.MethodGet {
					upstream.Push(w, third)
					return
				}
				upstream.Push(w, "id: 7/0\ndata:\n\n")
				upstream.Push(w, "id: 7/1\n"+asEvent(logMessage("event-one.")))
				upstream.Push(w, "id: "+last+"\n"+asEvent(logMessage("event-two.")))
				c.server(r)
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			request := call("7", "echo", `{}`)
			ctx, lose := context.WithTimeout(t.Context(), harness.Patience)
			defer lose()
			stream := open(t, caddy.NewRequest(t, request, "Mcp-Session-Id", session, "MCP-Protocol-Version", legacy).WithContext(ctx))
			for _, want := range []string{logMessage("event-one."), logMessage("event-two.")} {
				if got := event(t, stream); got != want {
					t.Errorf("event %q, want %q", got, want)
				}
			}
			if !c.client {
				if rest, _ := io.ReadAll(stream); len(rest) > 0 {
					t.Errorf("the stream goes on with %q", rest)
				}
			}
			lose()

			get := caddy.NewRequest(t, "", "Mcp-Session-Id", session, "MCP-Protocol-Version", legacy, "Last-Event-ID", last)
			get.Method, get.Body, get.ContentLength = http.MethodGet, nil, 0
			get.Header.Del("Content-Type")
			answer := caddy.Do(t, get)
			if answer.Status != http.StatusOK || answer.Body != third {
				t.Errorf("resumed with %d %q, want %q", answer.Status, answer.Body, third)
			}
			resumed := u.Await(t, harness.Patience, "the GET", func(r upstream.Request) bool { return r.Method == http.MethodGet })
			if got := resumed.Header["Last-Event-Id"]; len(got) != 1 || got[0] != last {
				t.Errorf("Last-Event-ID arrived as %q, sent %q", got, last)
			}
			caddy.Operation(t, "the call", func(r harness.Record) bool { return r.Tool == "echo" })
			caddy.Stop(t)

			log := readVouched(t, caddy.Log)
			if len(log.calls) != 1 {
				t.Fatalf("%d operations, want one", len(log.calls))
			}
			log.event(t, "event-one.", "server→client", logMessage("event-one."))
			log.event(t, "event-two.", "server→client", logMessage("event-two."))
			if o := log.calls[0].Outcome; o.Outcome != "success" {
				t.Errorf("outcome %q: %s", o.Outcome, o.Line)
			} else {
				log.hashes.CheckResponse(t, o, []byte(result("7")))
			}
			for _, r := range traffic(log.records) {
				if anomaly := r.Wire(t).Anomaly; len(anomaly) > 0 {
					t.Errorf("an anomaly: %s", r.Line)
				}
			}
		})
	}
}
