package tests

import (
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// way is one way from a client to the audited route.
type way struct {
	name   string
	client *http.Client
	url    string
	proto  int // major version of HTTP
	zipped bool
}

// ways are a Caddy that serves one audited route over every version of HTTP,
// and also with `encode gzip` in front of the handler.
type ways struct {
	*harness.Caddy
	all    []way
	render func(handler string) string
}

// Stop ends Caddy without waiting for what idle clients might still want.
func (w ways) Stop(t *testing.T) {
	t.Helper()
	for _, way := range w.all {
		way.client.CloseIdleConnections()
	}
	w.Caddy.Stop(t)
}

func startWays(t *testing.T, u *upstream.Scripted, grace time.Duration) ways {
	t.Helper()
	secure, plain := harness.FreeAddress(t), harness.FreeAddress(t)
	_, port, err := net.SplitHostPort(secure)
	if err != nil {
		t.Fatal(err)
	}
	var w ways
	w.Caddy = harness.StartCaddyfile(t, harness.Site{Upstream: u.Address}, func(site harness.Site, admin string) string {
		w.render = func(handler string) string {
			// A path of the same route for gzip, so that all share one listener.
			routes := "bind 127.0.0.1\n" +
				"route /mcp/zipped* {\nencode gzip {\nminimum_length 1\n}\nmcp_audit {\n" + handler + "\n}\nreverse_proxy " + u.Address + "\n}\n" +
				"route /mcp* {\nmcp_audit {\n" + handler + "\n}\nreverse_proxy " + u.Address + " {\nstream_close_delay 5s\n}\n}\n"
			return "{\nadmin " + admin + "\nauto_https disable_redirects\nskip_install_trust\ngrace_period " + grace.String() + "\n" +
				"servers {\nprotocols h1 h2 h2c h3\n}\nmcp_audit {\nlog default {\noutput jsonl " + site.Log + "\n}\n}\n}\n" +
				"https://localhost:" + port + " {\ntls internal\n" + routes + "}\nhttp://" + plain + " {\n" + routes + "}\n"
		}
		return w.render("")
	})
	clients := w.Clients(t)
	harness.Eventually(t, "a certificate for localhost", func() bool {
		resp, err := clients["h1"].Get("https://localhost:" + port + "/")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	for _, name := range []string{"h1c", "h2c", "h1", "h2", "h3"} {
		base := "https://localhost:" + port + "/mcp"
		if strings.HasSuffix(name, "c") {
			base = "http://" + plain + "/mcp"
		}
		w.all = append(w.all,
			way{name, clients[name], base, int(name[1] - '0'), false},
			way{name + "-zipped", clients[name], base + "/zipped", int(name[1] - '0'), true})
	}
	return w
}

// request is a POST of an MCP message that takes this way.
func (w way) request(t *testing.T, body string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return patient(t, r)
}

// arriving is an answer as it arrives.
type arriving struct {
	*bufio.Reader
	status int
	zipped bool
}

// do sends a request and checks that it took this way.
func (w way) do(t *testing.T, r *http.Request) arriving {
	t.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.ProtoMajor != w.proto {
		t.Errorf("%s: the answer is of %s", w.name, resp.Proto)
	}
	return arriving{bufio.NewReader(resp.Body), resp.StatusCode, resp.Uncompressed}
}

func TestHostileMessagesPassOverEveryVersionOfHTTP(t *testing.T) {
	type exchange struct {
		pair
		marker string
		reply
		way int
	}
	var exchanges []exchange
	known := make(map[string]reply)
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) { replies(known)(w, r, body) })
	w := startWays(t, u, 10*time.Second)
	for n := range w.all {
		for i, p := range hostilePairs(t) {
			for _, kind := range []string{"application/json", "text/event-stream"} {
				marker := fmt.Sprintf("way-%d-%d-%s.", n, i, kind[:4])
				m := p.marked(marker)
				answer := reply{kind, m.answer}
				if kind == "text/event-stream" {
					if strings.Contains(m.answer, "\r") {
						continue
					}
					answer.body = asEvent(m.answer)
				}
				known[m.request] = answer
				exchanges = append(exchanges, exchange{m, marker, answer, n})
			}
		}
	}
	zipped := 0
	for _, e := range exchanges {
		way := w.all[e.way]
		resp := way.do(t, way.request(t, e.request))
		got, err := io.ReadAll(resp)
		if err != nil || resp.status != http.StatusOK || string(got) != e.body {
			t.Errorf("%s, %s: %d %v\nanswered %.300q\nreceived %.300q", way.name, e.name, resp.status, err, e.body, got)
		}
		if way.zipped && resp.zipped {
			zipped++
		}
	}
	if want := len(exchanges) / 2; zipped < want {
		t.Errorf("%d answers were zipped, want all %d", zipped, want)
	}
	w.Stop(t)
	log := readVouched(t, w.Log)
	for _, e := range exchanges {
		log.call(t, e.marker, e.request, e.answer, e.outcome())
	}
}

// Each event is written when the client has the one before it.
func TestStreamsPassEventByEventOverEveryVersionOfHTTP(t *testing.T) {
	const events = 20
	seen := make(chan struct{})
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		asStream(w)
		for i := range events {
			upstream.Push(w, asEvent(logMessage(strconv.Itoa(i))))
			wait(r, seen)
		}
		upstream.Push(w, asEvent(result("7")))
	})
	w := startWays(t, u, 10*time.Second)
	for _, way := range w.all {
		t.Run(way.name, func(t *testing.T) {
			stream := way.do(t, way.request(t, call("7", "echo", `{}`))).Reader
			for i := range events {
				if got := event(t, stream); got != logMessage(strconv.Itoa(i)) {
					t.Errorf("event %d is %s", i, got)
				}
				seen <- struct{}{}
			}
			if got := event(t, stream); got != result("7") {
				t.Errorf("the last event is %s", got)
			}
		})
	}
	w.Stop(t)
	for _, o := range harness.Operations(t, w.Records(t)) {
		if o.Outcome.Outcome != "success" {
			t.Errorf("outcome %q: %s", o.Outcome.Outcome, o.Outcome.Line)
		}
	}
	harness.VerifyClean(t, w.Log)
}

func TestClosedStreamTakesTheCallBackOverEveryVersionOfHTTP(t *testing.T) {
	gone := make(chan struct{})
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		asStream(w)
		upstream.Push(w, asEvent(logMessage("begun")))
		<-r.Context().Done()
		gone <- struct{}{}
	})
	w := startWays(t, u, 10*time.Second)
	for _, way := range w.all {
		t.Run(way.name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			body, header := modernCall("7", "echo", `{"m":"`+way.name+`."}`)
			event(t, way.do(t, way.request(t, body, header...).WithContext(ctx)).Reader)
			leave()
			select {
			case <-gone:
			case <-time.After(2 * time.Second):
				t.Fatal("the server does not see within 2s that the client has gone")
			}
			if o := w.Operation(t, "the call", with(`"`+way.name+`."`)); o.Outcome.Outcome != "cancelled" {
				t.Errorf("outcome %q: %s", o.Outcome.Outcome, o.Outcome.Line)
			}
		})
	}
	w.Stop(t)
	harness.VerifyClean(t, w.Log)
}

// Streams that are open while the configuration changes go on under the old
// one; new requests are judged by the new one.
func TestReloadLeavesStreamsOfEveryVersionOfHTTP(t *testing.T) {
	cases := []struct {
		name  string
		grace time.Duration
		past  bool // the streams outlast it
	}{
		{"within the grace period", 10 * time.Second, false},
		{"past the grace period", 500 * time.Millisecond, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			released := make(chan struct{})
			u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
				asStream(w)
				upstream.Push(w, asEvent(logMessage("before")))
				wait(r, released)
				upstream.Push(w, asEvent(logMessage("after")))
				upstream.Push(w, asEvent(result("7")))
			})
			w := startWays(t, u, c.grace)
			streams := make([]*bufio.Reader, len(w.all))
			for i, way := range w.all {
				streams[i] = way.do(t, way.request(t, call("7", "echo", `{"m":"`+way.name+`."}`))).Reader
				if got := event(t, streams[i]); got != logMessage("before") {
					t.Errorf("%s: the first event is %s", way.name, got)
				}
			}
			if refusal := w.Load(t, w.render(denyDelete)); refusal != "" {
				t.Fatalf("reload: %s", refusal)
			}
			for _, way := range w.all {
				answer, err := io.ReadAll(way.do(t, way.request(t, call("8", "delete_file", `{}`))))
				if err != nil || !strings.Contains(string(answer), "-32030") {
					t.Errorf("%s: a new request is answered by %s, %v", way.name, answer, err)
				}
			}
			if c.past {
				harness.Eventually(t, "the grace period is over", func() bool {
					return strings.Contains(w.Err.String(), "HTTP/3 server shutdown")
				})
			}
			close(released)
			for i, way := range w.all {
				t.Run(way.name, func(t *testing.T) {
					outcome := "success"
					if c.past && way.proto == 3 {
						// Caddy closes the connections of HTTP/3 then; no handler could
						// keep one. The call is recorded as what it is to the client.
						outcome = "client_disconnect"
						if rest, err := io.ReadAll(streams[i]); err == nil {
							t.Errorf("the stream ends without an error after %q", rest)
						}
					} else {
						for _, want := range []string{logMessage("after"), result("7")} {
							if got := event(t, streams[i]); got != want {
								t.Errorf("the stream goes on with %s, want %s", got, want)
							}
						}
						io.Copy(io.Discard, streams[i])
					}
					if o := w.Operation(t, "the call", with(`"`+way.name+`."`)); o.Outcome.Outcome != outcome {
						t.Errorf("outcome %q, want %q: %s", o.Outcome.Outcome, outcome, o.Outcome.Line)
					}
				})
			}
			w.Stop(t)
			harness.Operations(t, w.Records(t))
			harness.VerifyClean(t, w.Log)
		})
	}
}

// postHead begins a POST on a connection of its own.
const postHead = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"

// A body of unknown length, in pieces of one byte.
func TestBodiesOfUnknownLengthArriveWhole(t *testing.T) {
	u := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, result("7"))
	})
	w := startWays(t, u, 10*time.Second)
	check := func(t *testing.T, body string) {
		t.Helper()
		arrived := u.With(body)
		if len(arrived) != 1 || string(arrived[0].Body) != body {
			t.Fatalf("the server received %+v", arrived)
		}
		if r := arrived[0]; r.Length != int64(len(body)) || r.Header.Get("Trailer") != "" || r.Header.Get("X-Trailer") != "" {
			t.Errorf("it arrived with length %d and %v", r.Length, r.Header)
		}
	}
	for _, way := range w.all {
		t.Run(way.name, func(t *testing.T) {
			body := call("7", "echo", `{"m":"`+way.name+` é\u00e9","n":-0}`)
			request := way.request(t, "")
			pieces, write := io.Pipe()
			request.Body, request.ContentLength, request.GetBody = pieces, -1, nil
			go func() {
				for i := range len(body) {
					write.Write([]byte(body[i : i+1]))
				}
				write.Close()
			}()
			answer, err := io.ReadAll(way.do(t, request))
			if err != nil || string(answer) != result("7") {
				t.Errorf("answered by %q, %v", answer, err)
			}
			check(t, body)
		})
	}
	plain := strings.TrimSuffix(strings.TrimPrefix(w.all[0].url, "http://"), "/mcp")
	for name, raw := range map[string]func(body string) string{
		"chunks with extensions and a trailer": func(body string) string {
			out := postHead + "Trailer: X-Trailer\r\nTransfer-Encoding: chunked\r\n\r\n"
			for len(body) > 0 {
				n := min(len(body), 11)
				out += fmt.Sprintf("%04X;name=\"value;\"\r\n%s\r\n", n, body[:n])
				body = body[n:]
			}
			return out + "000\r\nX-Trailer: not for the server\r\n\r\n"
		},
		"a client that asks first": func(body string) string {
			return postHead + "Expect: 100-continue\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
		},
	} {
		t.Run(name, func(t *testing.T) {
			body := call("7", "echo", `{"m":"`+name+`"}`)
			answer := rawExchange(t, plain, raw(body), false)
			if !strings.HasSuffix(answer, result("7")) {
				t.Errorf("answered by %q", answer)
			}
			check(t, body)
		})
	}
	w.Stop(t)
	harness.Operations(t, w.Records(t))
	harness.VerifyClean(t, w.Log)
}

// rawExchange sends bytes on a connection and reads what is answered; cut says
// before that no more will come.
func rawExchange(t *testing.T, address, raw string, cut bool) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(harness.Patience))
	if _, err := io.WriteString(conn, raw); err != nil {
		t.Fatal(err)
	}
	if cut {
		conn.(*net.TCPConn).CloseWrite()
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("the answer breaks off: %v", err)
	}
	return string(answer)
}

// coder is a writer of a content coding.
type coder interface {
	io.WriteCloser
	Flush() error
}

var codings = []struct {
	name, header string
	encode       func(io.Writer) coder
}{
	{"gzip", "gzip", func(w io.Writer) coder { return gzip.NewWriter(w) }},
	{"x-gzip", "x-gzip", func(w io.Writer) coder { return gzip.NewWriter(w) }},
	{"gzip in capitals", "GZIP", func(w io.Writer) coder { return gzip.NewWriter(w) }},
	{"deflate", "deflate", func(w io.Writer) coder {
		z, _ := flate.NewWriter(w, flate.DefaultCompression)
		return z
	}},
	{"br", "br", func(w io.Writer) coder { return brotli.NewWriter(w) }},
	{"zstd", "zstd", func(w io.Writer) coder {
		z, _ := zstd.NewWriter(w, zstd.WithWindowSize(1<<20))
		return z
	}},
	{"identity", "identity", func(w io.Writer) coder { return plain{w} }},
}

// plain is no coding.
type plain struct{ io.Writer }

func (plain) Flush() error { return nil }
func (plain) Close() error { return nil }

// A server that ignores Accept-Encoding: identity.
func TestEncodedAnswersPassUnchangedAndAreRecordedDecoded(t *testing.T) {
	var sent bytes.Buffer // what the server wrote for the call under way
	u := upstream.Script(t, func(w http.ResponseWriter, r *http.Request, body []byte) {
		if got := r.Header["Accept-Encoding"]; len(got) != 1 || got[0] != "identity" {
			t.Errorf("Accept-Encoding arrived as %q", got)
		}
		for i, c := range codings {
			for _, kind := range []string{"json", "sse"} {
				id := fmt.Sprintf(`"coded-%d-%s."`, i, kind)
				if string(body) != call(id, "echo", `{}`) {
					continue
				}
				sent.Reset()
				out := c.encode(io.MultiWriter(w, &sent))
				w.Header().Set("Content-Encoding", c.header)
				if kind == "json" {
					w.Header().Set("Content-Type", "application/json")
					io.WriteString(out, result(id))
				} else {
					asStream(w)
					for range 3 {
						io.WriteString(out, asEvent(logMessage("coded")))
						out.Flush()
						http.NewResponseController(w).Flush()
					}
					io.WriteString(out, asEvent(result(id)))
				}
				out.Close()
			}
		}
	})
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for i, c := range codings {
		for _, kind := range []string{"json", "sse"} {
			t.Run(c.name+" "+kind, func(t *testing.T) {
				id := fmt.Sprintf(`"coded-%d-%s."`, i, kind)
				request := caddy.NewRequest(t, call(id, "echo", `{}`))
				request.Header.Set("Accept-Encoding", "gzip, br, zstd, deflate") // Go decodes only what it asked for
				answer := caddy.Do(t, patient(t, request))
				if answer.Status != http.StatusOK || answer.Body != sent.String() || answer.Header.Get("Content-Encoding") != c.header {
					t.Errorf("sent     %q\nreceived %d %q %v", sent.String(), answer.Status, answer.Body, answer.Header)
				}
			})
		}
	}
	caddy.Stop(t)
	log := readVouched(t, caddy.Log)
	for i, c := range codings {
		for _, kind := range []string{"json", "sse"} {
			t.Run("record of "+c.name+" "+kind, func(t *testing.T) {
				id := fmt.Sprintf(`"coded-%d-%s."`, i, kind)
				log.call(t, strings.Trim(id, `"`), call(id, "echo", `{}`), result(id), "success")
			})
		}
	}
	if got := harness.Select(log.records, func(r harness.Record) bool { return r.Method == "notifications/message" }); len(got) != 3*len(codings) {
		t.Errorf("%d notifications are recorded, want %d", len(got), 3*len(codings))
	}
}

// A small answer that is enormous once decoded costs the client what it weighs,
// and the product no more than a large message. One that came in one piece is
// with the client before it is read; a stream is read first, and what cannot be
// recorded is not forwarded unless the operator allows it.
func TestDecompressionBombIsBounded(t *testing.T) {
	const decoded = 256 << 20
	zeros := bytes.Repeat([]byte("0"), 1<<20)
	cases := []struct {
		name, coding, kind, start, log string
		passes                         bool
	}{
		{"gzip", "gzip", "application/json", `{"jsonrpc":"2.0","id":7,"result":`, "", true},
		{"br", "br", "application/json", `{"jsonrpc":"2.0","id":7,"result":`, "", true},
		{"zstd", "zstd", "application/json", `{"jsonrpc":"2.0","id":7,"result":`, "", true},
		{"stream", "gzip", "text/event-stream", "data: ", "", false},
		{"stream, on_failure allow", "gzip", "text/event-stream", "data: ", "on_failure allow", true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var buf bytes.Buffer
			var out coder
			for _, coding := range codings {
				if coding.name == c.coding {
					out = coding.encode(&buf)
				}
			}
			io.WriteString(out, c.start)
			for range decoded / len(zeros) {
				out.Write(zeros)
			}
			out.Close()
			bomb := buf.String()
			if len(bomb) > 1<<20 {
				t.Fatalf("no bomb: %d bytes", len(bomb))
			}
			u := upstream.Script(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
				if !strings.Contains(string(body), "bomb") {
					w.Header().Set("Content-Type", "application/json")
					io.WriteString(w, result("8"))
					return
				}
				w.Header().Set("Content-Type", c.kind)
				w.Header().Set("Content-Encoding", c.coding)
				io.WriteString(w, bomb)
			})
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, LogOptions: c.log})
			caddy.Post(t, call("8", "echo", `{"m":"before"}`))
			before := peak(t, caddy)
			request := caddy.NewRequest(t, call("7", "echo", `{"m":"bomb"}`))
			request.Header.Set("Accept-Encoding", c.coding)
			resp, err := http.DefaultClient.Do(patient(t, request))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if c.passes && (err != nil || string(got) != bomb) {
				t.Errorf("the client received %d bytes and %v, %d were sent", len(got), err, len(bomb))
			}
			if !c.passes && (err == nil || !strings.HasPrefix(bomb, string(got))) {
				t.Errorf("the client received %d bytes and %v, the stream was to be cut", len(got), err)
			}
			o := caddy.Operation(t, "the call", with(`"bomb"`))
			if grown := peak(t, caddy) - before; grown > decoded/2 {
				t.Errorf("memory grew by %d MiB for a message of %d MiB", grown>>20, decoded>>20)
			} else {
				t.Logf("%d KiB decode to %d MiB, memory grew by %d MiB, outcome %s %s", len(bomb)>>10, decoded>>20, grown>>20,
					o.Outcome.Outcome, o.Outcome.Reason)
			}
			if answer := caddy.Post(t, call("8", "echo", `{"m":"after"}`)); answer.Body != result("8") {
				t.Errorf("the next call: %+v", answer)
			}
			caddy.Stop(t)
			harness.Operations(t, caddy.Records(t))
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

// peak is the most memory that a Caddy had resident.
func peak(t *testing.T, caddy *harness.Caddy) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", caddy.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
