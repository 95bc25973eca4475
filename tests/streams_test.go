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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	progress, answer := asEvent(logMessage("before")), asEvent(result("ID"))
	head, rest, _ := strings.Cut(strings.ReplaceAll(answer, "\n", "\r\n"), "\n")
	crlf := head + "\n" + rest
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
		{name: "kept alive between CR and LF", option: "keepalive 2s", before: head, after: "\n" + rest},
		{name: "kept alive between the CR and LF of a blank line", option: "keepalive 2s", before: crlf[:len(crlf)-1], after: "\n" + progress},
		{name: "kept alive under a content coding", option: "keepalive 2s", before: progress, after: answer, encoding: "gzip"},
	}
	for i := range cases { // the answer carries the call's id
		cases[i].before = strings.ReplaceAll(cases[i].before, "ID", strconv.Itoa(i))
		cases[i].after = strings.ReplaceAll(cases[i].after, "ID", strconv.Itoa(i))
	}
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		i, _ := strconv.Atoi(string(body[strings.Index(string(body), `"m":`)+4 : len(body)-3]))
		c := cases[i]
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
	caddies := make(map[string]*harness.Caddy)
	for _, option := range []string{"", "keepalive 2s"} {
		caddies[option] = harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: option})
	}
	// All are silent at the same time.
	type received struct {
		header http.Header
		length int64
		body   []byte
		err    error
	}
	answers := make([]received, len(cases))
	ctx, late := context.WithTimeout(t.Context(), idle+harness.Patience)
	defer late()
	var wg sync.WaitGroup
	for i, c := range cases {
		request := caddies[c.option].NewRequest(t, call(strconv.Itoa(i), "echo", fmt.Sprintf(`{"m":%d}`, i))).WithContext(ctx)
		request.Header.Set("Accept-Encoding", "identity")
		wg.Go(func() {
			a := &answers[i]
			resp, err := http.DefaultClient.Do(request)
			if err != nil {
				a.err = err
				return
			}
			defer resp.Body.Close()
			a.header, a.length = resp.Header, resp.ContentLength
			body := io.Reader(resp.Body)
			if c.encoding == "gzip" {
				if body, a.err = gzip.NewReader(body); a.err != nil {
					return
				}
			}
			a.body, a.err = io.ReadAll(body)
		})
	}
	wg.Wait()
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := answers[i]
			if a.err != nil {
				t.Fatalf("the stream breaks off: %v", a.err)
			}
			got, want := string(a.body), c.before+c.after
			if c.option == "" && got != want {
				t.Errorf("the server's bytes alone: %q, want %q", got, want)
			}
			if strings.Join(dispatched(got), "|") != strings.Join(dispatched(want), "|") {
				t.Errorf("read as %q, written %q: %q", dispatched(got), dispatched(want), got)
			}
			comments := strings.Count("\n"+got, "\n:")
			if strings.Contains(got, "ping") || c.keptAlive && comments == 0 {
				t.Errorf("%d comments: %q", comments, got)
			}
			if h := a.header; a.length >= 0 || h.Get("Content-Length") != "" || h.Get("X-Server") != "as sent" ||
				h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-cache" {
				t.Errorf("headers %v", h)
			}
			o := caddies[c.option].Operation(t, "the call", func(r harness.Record) bool { return r.RequestID != nil && *r.RequestID == strconv.Itoa(i) })
			if o.Outcome.Outcome != "success" {
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
	first := "id: 7/1\n" + asEvent(logMessage("event-one."))
	second := "id: " + last + "\n" + asEvent(logMessage("event-two."))
	third := "id: 7/3\n" + asEvent(result("7"))
	breaksOff := func(*http.Request) { panic(http.ErrAbortHandler) }
	cases := []struct {
		name    string
		ends    func(r *http.Request) // what the server does after the second event
		resumed string                // what it sends then
	}{
		{"the server breaks off", breaksOff, third},
		{"the server ends the stream", func(*http.Request) {}, third},
		{"the server sends again what was seen", breaksOff, second + third},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				asStream(w)
				if r.Method == http.MethodGet {
					upstream.Push(w, c.resumed)
					return
				}
				upstream.Push(w, "id: 7/0\ndata:\n\n")
				upstream.Push(w, first)
				upstream.Push(w, second)
				c.ends(r)
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			stream := open(t, patient(t, caddy.NewRequest(t, call("7", "echo", `{}`), "Mcp-Session-Id", session, "MCP-Protocol-Version", legacy)))
			for _, want := range []string{logMessage("event-one."), logMessage("event-two.")} {
				if got := event(t, stream); got != want {
					t.Errorf("event %q, want %q", got, want)
				}
			}
			if rest, _ := io.ReadAll(stream); string(rest) != "\n" {
				t.Errorf("the stream goes on with %q", rest)
			}
			answer := caddy.Do(t, get(t, caddy, "Mcp-Session-Id", session, "MCP-Protocol-Version", legacy, "Last-Event-ID", last))
			if answer.Status != http.StatusOK || answer.Body != c.resumed {
				t.Errorf("resumed with %d %q, want %q", answer.Status, answer.Body, c.resumed)
			}
			arrived := u.Requests()
			if got := arrived[len(arrived)-1].Header["Last-Event-Id"]; len(got) != 1 || got[0] != last {
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

// bare is a request without a message.
func bare(t *testing.T, caddy *harness.Caddy, method string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, caddy.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return patient(t, r)
}

func get(t *testing.T, caddy *harness.Caddy, header ...string) *http.Request {
	t.Helper()
	return bare(t, caddy, http.MethodGet, header...)
}

// REV-2: a server that has forgotten a session says so by 404, and its client
// begins a new one.
func TestForgottenSessionIsTheServers404(t *testing.T) {
	const rpc = `{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}`
	for name, text := range map[string]string{"no body": "", "text": "no such session\n", "an error": rpc} {
		t.Run(name, func(t *testing.T) {
			sessions := 0
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.Contains(string(body), `"initialize"`):
					sessions++
					w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", sessions))
					io.WriteString(w, `{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"u","version":"1"}}}`)
				case r.Header.Get("Mcp-Session-Id") == "session-2":
					io.WriteString(w, result("8"))
				default:
					w.WriteHeader(http.StatusNotFound)
					io.WriteString(w, text)
				}
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			begin := func() []string {
				return []string{"Mcp-Session-Id", caddy.Post(t, harness.Initialize).Header.Get("Mcp-Session-Id"), "MCP-Protocol-Version", legacy}
			}
			header := begin()
			for what, answer := range map[string]harness.Answer{
				"a call":         caddy.Post(t, call("7", "echo", `{"m":"forgotten."}`), header...),
				"a notification": caddy.Post(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header...),
				"the stream":     caddy.Do(t, get(t, caddy, header...)),
				"the end":        caddy.Do(t, bare(t, caddy, http.MethodDelete, header...)),
			} {
				if answer.Status != http.StatusNotFound || answer.Body != text {
					t.Errorf("%s: %d %q, want 404 %q", what, answer.Status, answer.Body, text)
				}
			}
			if answer := caddy.Post(t, call("8", "echo", `{"m":"again."}`), begin()...); answer.Body != result("8") {
				t.Errorf("in the new session: %+v", answer)
			}
			o := caddy.Operation(t, "the call", with("forgotten.")).Outcome
			if o.HTTPStatus != http.StatusNotFound || o.Outcome != "upstream_error" && o.Outcome != "rpc_error" {
				t.Errorf("the record does not say 404: %s", o.Line)
			}
			caddy.Stop(t)
			harness.Operations(t, caddy.Records(t))
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

// REV-4.
func TestHeadersThatContradictTheBodyAreRefused(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})
	cases := []struct {
		name, header, value string   // "" takes the header off
		both                []string // what the record tells
	}{
		{"another tool", "Mcp-Name", "echo", []string{"header_mismatch", "echo", "delete_file"}},
		{"another method", "Mcp-Method", "tools/list", []string{"header_mismatch", "tools/list", "tools/call"}},
		{"another revision", "MCP-Protocol-Version", legacy, []string{"header_mismatch", legacy, modern}},
		{"no tool", "Mcp-Name", "", []string{"header_missing", "Mcp-Name", "delete_file"}},
		{"no method", "Mcp-Method", "", []string{"header_missing", "Mcp-Method", "tools/call"}},
		{"no revision", "MCP-Protocol-Version", "", []string{"header_missing", "Mcp-Protocol-Version", modern}},
	}
	for i, c := range cases {
		for _, id := range []string{"7", `"7"`, "9007199254740993"} {
			marker := fmt.Sprintf("mismatch-%d-%s.", i, strings.Trim(id, `"`)+map[bool]string{true: "s"}[id[0] == '"'])
			body, header := modernCall(id, "delete_file", `{"path":"`+marker+`"}`)
			request := caddy.NewRequest(t, body, header...)
			if request.Header.Set(c.header, c.value); c.value == "" {
				request.Header.Del(c.header)
			}
			answer := caddy.Do(t, request)
			if answer.Status != http.StatusBadRequest || !strings.Contains(answer.Body, `"code":-32020`) || !strings.Contains(answer.Body, `"id":`+id+`,`) {
				t.Errorf("%s: %d %s, want 400, code -32020 and id %s", c.name, answer.Status, answer.Body, id)
			}
			if u.Received(marker) {
				t.Errorf("%s: it reached the server", c.name)
			}
			found := harness.Select(caddy.Records(t), with(marker))
			if len(found) != 1 || found[0].Kind != "event" || found[0].Outcome != "denied" {
				t.Errorf("%s: %d records: %v", c.name, len(found), found)
				continue
			}
			for _, part := range c.both {
				if !strings.Contains(found[0].Reason, part) {
					t.Errorf("%s: the reason %q lacks %s", c.name, found[0].Reason, part)
				}
			}
		}
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

// REV-5: clients of both eras at one route.
func TestBothErasShareARoute(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for range 2 { // each after the other
		session := caddy.Post(t, harness.Initialize).Header.Get("Mcp-Session-Id")
		if session == "" {
			t.Fatal("no session begins")
		}
		for _, header := range [][]string{
			{"Mcp-Session-Id", session, "MCP-Protocol-Version", legacy},
			{"Mcp-Session-Id", session}, // as revisions before 2025-06-18
		} {
			caddy.Post(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, header...)
			if answer := caddy.Post(t, call("7", "echo", `{"m":"legacy"}`), header...); answer.Status != http.StatusOK {
				t.Errorf("legacy: %+v", answer)
			}
			caddy.Do(t, get(t, caddy, header...))
		}
		caddy.Do(t, bare(t, caddy, http.MethodDelete, "Mcp-Session-Id", session, "MCP-Protocol-Version", legacy))

		body, header := modernCall("7", "echo", `{"m":"modern"}`)
		if answer := caddy.Post(t, body, header...); answer.Status != http.StatusOK || answer.Header.Get("Mcp-Session-Id") != "" {
			t.Errorf("modern: %+v", answer)
		}
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			answer := caddy.Do(t, bare(t, caddy, method, "MCP-Protocol-Version", modern))
			if answer.Status != http.StatusMethodNotAllowed || answer.Header.Get("Allow") != "POST" {
				t.Errorf("modern %s: %d %v, want the server's 405", method, answer.Status, answer.Header)
			}
		}
	}
	caddy.Stop(t)
	eras := make(map[string]int)
	for _, r := range traffic(caddy.Records(t)) {
		eras[r.Revision]++
		if era := map[bool]string{true: modern, false: legacy}[strings.Contains(r.Line, `"modern"`)]; r.Kind == "intent" && r.Revision != era {
			t.Errorf("protocol_version %q, want %q: %s", r.Revision, era, r.Line)
		}
	}
	// Twice: for legacy, initialize and two calls with their outcomes, two
	// notifications, two GETs, one DELETE; for modern, a call and its outcome,
	// a GET, a DELETE.
	if len(eras) != 2 || eras[legacy] != 22 || eras[modern] != 8 {
		t.Errorf("records by protocol version: %v", eras)
	}
	harness.VerifyClean(t, caddy.Log)
}

// REV-3: sessions that nobody ends take little memory, and none once their time
// is over.
func TestAbandonedSessionsAreForgotten(t *testing.T) {
	const sessions = 2000
	server := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", abandoned.Add(1)))
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: server.Address, Global: "metrics", Handler: "session_ttl 10s"})
	gauge := func() string {
		_, text := caddy.AdminGet(t, "/metrics")
		_, rest, _ := strings.Cut(text, "\nmcp_audit_sessions{log=\"default\"} ")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	open := func() {
		t.Helper()
		a := caddy.Post(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","clientInfo":{"name":"a client","version":"1"},"capabilities":{}}}`)
		if a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	// The heap, not the process: what the runtime keeps free is no session's.
	heap := func() int {
		t.Helper()
		_, text := caddy.AdminGet(t, "/debug/pprof/heap?gc=1&debug=1")
		m := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%.200s", text)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 200 {
		open()
	}
	before := heap()
	for range sessions {
		open()
	}
	if grown := heap() - before; grown > sessions*20<<10 {
		t.Errorf("a session takes %d bytes", grown/sessions)
	} else {
		t.Logf("a session takes %d bytes", grown/sessions)
	}
	harness.Eventually(t, "all sessions are forgotten", func() bool { return gauge() == "0" })
}

var abandoned atomic.Int64
