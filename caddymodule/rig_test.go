package caddymodule_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	_ "github.com/caddyserver/caddy/v2/modules/metrics"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule"
)

// upstream is an MCP server that notes every byte it receives and answers as
// the test says.
type upstream struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
}

func newUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := new(upstream)
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		u.mu.Lock()
		u.bodies = append(u.bodies, string(body))
		u.heads = append(u.heads, r.Header.Clone())
		u.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) received() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]string(nil), u.bodies...)
}

func (u *upstream) host() string { return strings.TrimPrefix(u.URL, "http://") }

// rig is one running Caddy with an audited route. There is one Caddy per
// process, so tests that use it do not run in parallel.
type rig struct {
	t    *testing.T
	dir  string
	port int
	up   *upstream
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start loads a route with the given subdirectives of mcp_audit and options of
// its log.
func start(t *testing.T, up *upstream, subdirectives, logOptions string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: up}
	r.boot(r.caddyfile(subdirectives, logOptions))
	return r
}

// boot loads the first configuration, and stops Caddy at the end of the test.
func (r *rig) boot(caddyfile string) {
	t := r.t
	t.Helper()
	t.Setenv("HOME", r.dir)
	t.Setenv("XDG_DATA_HOME", filepath.Join(r.dir, "data"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(r.dir, "config"))
	if err := r.load(caddyfile); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		// Caddy's stop is no exit: calls that wait for an answer on another
		// stream would keep the log open.
		caddymodule.Shutdown(context.Background())
	})
}

func (r *rig) caddyfile(subdirectives, logOptions string) string {
	return fmt.Sprintf(`{
	admin off
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
	mcp_audit {
		log default {
			output jsonl %s
			%s
		}
	}
}
http://127.0.0.1:%d {
	handle /metrics {
		metrics
	}
	mcp_audit {
		server_id test
		%s
	}
	reverse_proxy %s
}
`, r.log(), logOptions, r.port, subdirectives, r.up.host())
}

// move gives the next configuration an address of its own. The former one may
// answer a request for a moment after it was replaced.
func (r *rig) move() { r.port = freePort(r.t) }

// load replaces the running configuration.
func (r *rig) load(caddyfile string) error {
	cfg, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	return caddy.Load(cfg, true)
}

func (r *rig) log() string { return filepath.Join(r.dir, "log", "audit.jsonl") }

func (r *rig) url() string { return fmt.Sprintf("http://127.0.0.1:%d/mcp", r.port) }

// post sends a body and returns status and answer.
func (r *rig) post(body string, headers ...string) (int, string) {
	r.t.Helper()
	resp := r.send(context.Background(), http.MethodPost, body, headers...)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// client opens a connection a request: a reload closes idle ones, and a POST on
// one of them is not sent again.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (r *rig) send(ctx context.Context, method, body string, headers ...string) *http.Response {
	r.t.Helper()
	return do(r.t, func() *http.Request { return r.request(ctx, method, body, headers) })
}

// get requests another address of the configuration.
func get(t *testing.T, url string) *http.Response {
	t.Helper()
	return do(t, func() *http.Request {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		return req
	})
}

// do sends a request.
func do(t *testing.T, request func() *http.Request) *http.Response {
	t.Helper()
	for attempt := 1; ; attempt++ {
		resp, err := client.Do(request())
		if err == nil {
			return resp
		}
		// A reload closes the old listening socket, and with it connections
		// that nobody has accepted yet. Such a request has reached no handler;
		// one that had would leave a record too many.
		if attempt == 3 || !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
	}
}

func (r *rig) request(ctx context.Context, method, body string, headers []string) *http.Request {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.url(), strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		} else {
			req.Header.Add(headers[i], headers[i+1])
		}
	}
	return req
}

// record is the decoded body of one log line.
type record map[string]any

func (r record) str(name string) string {
	s, _ := r[name].(string)
	return s
}

// records reads the log as it stands, without the log's own bookkeeping.
func (r *rig) records() []record {
	r.t.Helper()
	f, err := os.Open(r.log())
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	var out []record
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return out
		}
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			r.t.Fatalf("log line %q: %v", line, err)
		}
		switch rec.str("kind") {
		case "intent", "outcome", "event":
			out = append(out, rec)
		}
	}
}

// await waits until the log holds n records of operations and events.
func (r *rig) await(n int) []record {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got := r.records()
		if len(got) == n {
			return got
		}
		if len(got) > n || time.Now().After(deadline) {
			r.t.Fatalf("the log has %d records, want %d:\n%s", len(got), n, show(got))
		}
		time.Sleep(2 * time.Millisecond) // polls a file; the writer has no one to tell
	}
}

func show(records []record) string {
	var b strings.Builder
	for _, rec := range records {
		text, _ := json.Marshal(rec)
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

// verify stops Caddy and checks the whole log.
func (r *rig) verify() *auditlog.Report {
	r.t.Helper()
	if err := caddy.Stop(); err != nil {
		r.t.Fatal(err)
	}
	r.awaitClosed()
	return r.verifyLive()
}

// awaitClosed waits until the log is sealed: the last exchange that holds it
// does that, perhaps after Caddy has stopped.
func (r *rig) awaitClosed() {
	r.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		raw, err := os.ReadFile(r.log())
		if err != nil {
			r.t.Fatal(err)
		}
		runs, _ := os.ReadDir(r.log() + ".runs")
		if len(runs) == 0 && bytes.Contains(raw, []byte(`"kind":"stop"`)) {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the log was not closed")
		}
		time.Sleep(2 * time.Millisecond) // polls a file; the writer has no one to tell
	}
}

// verifyLive checks the log as it stands.
func (r *rig) verifyLive() *auditlog.Report {
	r.t.Helper()
	keys, err := auditlog.LoadKeyring(filepath.Join(filepath.Dir(r.log()), "keys.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	report, err := auditlog.Verify(context.Background(), []auditlog.Source{auditlog.FileSource(r.log())},
		auditlog.VerifyOptions{Keys: keys})
	if err != nil {
		r.t.Fatal(err)
	}
	if report.Exit != 0 {
		text, _ := json.MarshalIndent(report, "", " ")
		r.t.Fatalf("verify:\n%s", text)
	}
	return report
}

// ok answers every request with an empty result and the request's id.
func ok(w http.ResponseWriter, r *http.Request) {
	answerJSON(w, r, `{}`)
}

func answerJSON(w http.ResponseWriter, r *http.Request, result string) {
	var req struct {
		ID json.RawMessage `json:"id"`
	}
	_ = json.NewDecoder(r.Body).Decode(&req)
	if req.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
}

// sse starts a stream and returns a function that sends one event.
func sse(w http.ResponseWriter) func(data string) {
	w.Header().Set("Content-Type", "text/event-stream")
	return func(data string) {
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
	}
}

// nextEvent reads one SSE event's data.
func nextEvent(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var data []string
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("stream ended: %v", err)
		}
		line = strings.TrimRight(line, "\n")
		if line == "" && len(data) > 0 {
			return strings.Join(data, "\n")
		}
		if d, found := strings.CutPrefix(line, "data: "); found {
			data = append(data, d)
		}
	}
}

func newReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func readBody(t *testing.T, r *http.Request) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// metric reads a gauge of the default log at a scrape.
func (r *rig) metric(name string) float64 {
	r.t.Helper()
	resp := get(r.t, strings.TrimSuffix(r.url(), "/mcp")+"/metrics")
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), name+`{log="default"} `); found {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				r.t.Fatal(err)
			}
			return n
		}
	}
	r.t.Fatalf("there is no metric %s", name)
	return 0
}

// outcomeOf is the outcome record of a method, of any if it is empty. Outcomes
// are queued, so that they stand in no order that a test could rely on.
func outcomeOf(t *testing.T, records []record, method string) record {
	t.Helper()
	for _, rec := range records {
		if rec.str("kind") == "outcome" && (method == "" || rec.str("method") == method) {
			return rec
		}
	}
	t.Fatalf("there is no outcome of %q in\n%s", method, show(records))
	return nil
}
