package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

const patience = 10 * time.Second

// child is what the bridge writes to, line by line.
type child struct {
	lines chan string
}

func (c *child) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		c.lines <- string(bytes.TrimSuffix(line, []byte("\n")))
	}
	return len(p), nil
}

func (c *child) next(t *testing.T) string {
	t.Helper()
	select {
	case line := <-c.lines:
		return line
	case <-time.After(patience):
		t.Fatal("the child got nothing")
	}
	return ""
}

// setup is a bridge behind a real HTTP server, and its child.
type setup struct {
	*bridge.Bridge
	url   string
	child *child
	say   *io.PipeWriter
	heard chan error
}

func newSetup(t *testing.T, o bridge.Options) *setup {
	t.Helper()
	c := &child{lines: make(chan string, 1000)}
	r, w := io.Pipe()
	s := &setup{Bridge: bridge.New(c, o), child: c, say: w, heard: make(chan error, 1)}
	server := httptest.NewServer(s.Bridge)
	s.url = server.URL
	go func() { s.heard <- s.Run(r) }()
	t.Cleanup(func() {
		_ = w.Close()
		s.End(bridge.Ending{Reason: "the test is over"})
		server.Close()
	})
	return s
}

func (s *setup) post(ctx context.Context, t *testing.T, body string, headers ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(req)
}

// exchange posts a body and reads the whole answer.
func (s *setup) exchange(t *testing.T, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	resp, err := s.post(t.Context(), t, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func (s *setup) says(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(s.say, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
}

// answers has the child answer the next request with a result.
func (s *setup) answers(t *testing.T, id, result string) {
	t.Helper()
	go func() {
		<-s.child.lines
		_, _ = fmt.Fprintf(s.say, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", id, result)
	}()
}

func TestAnswerIsPlainJSONWithItsNumber(t *testing.T) {
	s := newSetup(t, bridge.Options{Session: "s9"})
	s.answers(t, "1", `{"protocolVersion":"2025-11-25"}`)
	resp, body := s.exchange(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	if resp.StatusCode != 200 || body != `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Mcp-Shim-Seq": "1", "Mcp-Session-Id": "s9"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestProgressTurnsTheAnswerIntoAStream(t *testing.T) {
	s := newSetup(t, bridge.Options{})
	go func() {
		<-s.child.lines
		_, _ = io.WriteString(s.say, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":5,"progress":1}}`+"\n"+
			`{"jsonrpc":"2.0","id":1,`+"\r"+`"result":{}}`+"\n")
	}()
	resp, body := s.exchange(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":5}}}`)
	want := "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":5,\"progress\":1}}\n\n" +
		"id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\ndata: \"result\":{}}\n\n"
	if resp.Header.Get("Content-Type") != "text/event-stream" || body != want {
		t.Errorf("%s\n%q, want\n%q", resp.Header.Get("Content-Type"), body, want)
	}
}

func TestMessagesThatWouldBeTwoLinesAreRefused(t *testing.T) {
	s := newSetup(t, bridge.Options{MaxLine: 100})
	for body, status := range map[string]int{
		"{\"jsonrpc\":\"2.0\",\n\"method\":\"a\"}":                      400,
		"{\"jsonrpc\":\"2.0\",\r\"method\":\"a\"}":                      400,
		"{\"jsonrpc\":\"2.0\",\"method\":\"a\"}\n":                      400,
		`{"jsonrpc":"2.0","method":"` + strings.Repeat("a", 100) + `"}`: 413,
	} {
		if resp, text := s.exchange(t, body); resp.StatusCode != status || !strings.Contains(text, `"error"`) {
			t.Errorf("%.40q: %d %s", body, resp.StatusCode, text)
		}
	}
	select {
	case line := <-s.child.lines:
		t.Errorf("the child got %q", line)
	default:
	}
}

func TestOnlyPostAndGetAreServed(t *testing.T) {
	s := newSetup(t, bridge.Options{})
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.url, nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET, POST" {
		t.Errorf("%d, Allow %q", resp.StatusCode, resp.Header.Get("Allow"))
	}
}

func TestEveryPostPassesTheGateOnce(t *testing.T) {
	var mu sync.Mutex
	passed := map[uint64]int{}
	s := newSetup(t, bridge.Options{MaxLine: 200, Accepted: func(seq uint64) {
		mu.Lock()
		defer mu.Unlock()
		passed[seq]++
	}})
	s.answers(t, "1", "{}")
	s.exchange(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Mcp-Shim-Seq", "1")
	s.exchange(t, `{"jsonrpc":"2.0","method":"n"}`, "Mcp-Shim-Seq", "2")
	s.exchange(t, "a\nb", "Mcp-Shim-Seq", "3")
	s.exchange(t, strings.Repeat("x", 300), "Mcp-Shim-Seq", "4")
	mu.Lock()
	defer mu.Unlock()
	for seq := uint64(1); seq <= 4; seq++ {
		if passed[seq] == 0 {
			t.Errorf("line %d never passes", seq)
		}
	}
}

func TestClosedStreamCancelsInModernRevisionsOnly(t *testing.T) {
	s := newSetup(t, bridge.Options{})
	for _, c := range []struct {
		body, version, want string
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`, "2025-11-25", ""},
		{`{"jsonrpc":"2.0","id":"m","method":"tools/call","params":{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`, "2026-07-28",
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"m","reason":"the client closed the request's stream"}}`},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			if resp, err := s.post(ctx, t, c.body, "Mcp-Protocol-Version", c.version); err == nil {
				_ = resp.Body.Close()
			}
		}()
		if got := s.child.next(t); got != c.body {
			t.Fatalf("the child got %q", got)
		}
		cancel()
		<-finished
		if c.want != "" {
			if got := s.child.next(t); got != c.want {
				t.Errorf("the child got %q, want %q", got, c.want)
			}
		}
	}
}

// events reads the events of a stream.
func events(t *testing.T, resp *http.Response) func() string {
	t.Helper()
	r := bufio.NewReader(resp.Body)
	return func() string {
		t.Helper()
		var event strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return "end"
			}
			if line == "\n" {
				return strings.TrimSuffix(event.String(), "\n")
			}
			event.WriteString(line)
		}
	}
}

func (s *setup) get(t *testing.T, last string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestStreamIsTakenOverAndGoesOnAfterTheLastEventSeen(t *testing.T) {
	s := newSetup(t, bridge.Options{})
	line := func(n int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":%d}}`, n)
	}
	event := func(n int) string { return fmt.Sprintf("id: %d\ndata: %s", n, line(n)) }
	select {
	case <-s.Wanted():
		t.Fatal("nothing was said yet")
	default:
	}
	s.says(t, line(1))
	<-s.Wanted()
	first := events(t, s.get(t, ""))
	s.says(t, line(2), line(3))
	for n := 1; n <= 3; n++ {
		if got := first(); got != event(n) {
			t.Fatalf("%q, want %q", got, event(n))
		}
	}
	second := events(t, s.get(t, "1"))
	if got := first(); got != "end" {
		t.Errorf("the former stream goes on with %q", got)
	}
	s.says(t, line(4))
	for n := 2; n <= 4; n++ {
		if got := second(); got != event(n) {
			t.Errorf("%q, want %q", got, event(n))
		}
	}
	_ = s.say.Close()
	if err := <-s.heard; err != nil {
		t.Error(err)
	}
	s.End(bridge.Ending{Reason: "gone"})
	if got := second(); got != "end" {
		t.Errorf("after the child's end: %q", got)
	}
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Error("not everything counts as delivered")
	}
}

func TestOverlongLineOfTheChildFailsTheOnlyOpenCall(t *testing.T) {
	s := newSetup(t, bridge.Options{MaxServerLine: 100})
	s.answers(t, "1", `"`+strings.Repeat("x", 200)+`"`)
	_, body := s.exchange(t, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if body != `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the server's answer is longer than the shim holds and was dropped"}}` {
		t.Error(body)
	}
	s.answers(t, "2", `{}`)
	if _, body := s.exchange(t, `{"jsonrpc":"2.0","id":2,"method":"ping"}`); !strings.Contains(body, `"result":{}`) {
		t.Errorf("the next call: %s", body)
	}
}

func TestBatchOfAnswersEndsItsCalls(t *testing.T) {
	s := newSetup(t, bridge.Options{})
	stream := events(t, s.get(t, ""))
	done := make(chan string, 2)
	for i := range 2 {
		go func() {
			resp, err := s.post(t.Context(), t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
			if err != nil {
				done <- err.Error()
				return
			}
			_ = resp.Body.Close()
			done <- resp.Status
		}()
	}
	s.child.next(t)
	s.child.next(t)
	batch := `[{"jsonrpc":"2.0","id":0,"result":{}},{"jsonrpc":"2.0","id":1,"result":{}}]`
	s.says(t, batch)
	if got := stream(); got != "id: 1\ndata: "+batch {
		t.Errorf("%q", got)
	}
	for range 2 {
		if got := <-done; got != "202 Accepted" {
			t.Errorf("a call of the batch ended with %s", got)
		}
	}
}

func TestTransportReportsWhatTheHandlerDoes(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		status  int
		body    string
		fails   bool
	}{
		"nothing": {func(http.ResponseWriter, *http.Request) {}, 200, "", false},
		"whole":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418); _, _ = io.WriteString(w, "tea") }, 418, "tea", false},
		"flushed": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a")
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "b")
		}, 200, "ab", false},
		"echo": {func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, 200, "body", false},
		"flushed whole": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "ab")
			_ = http.NewResponseController(w).Flush()
			if _, err := io.WriteString(w, "c"); err == nil {
				panic("more than was declared")
			}
		}, 200, "ab", false},
		"panics": {func(http.ResponseWriter, *http.Request) { panic("x") }, 0, "", true},
		"aborts": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 0, "", true},
		"breaks late": {func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 200, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/", strings.NewReader("body"))
			resp, err := bridge.Transport{Handler: c.handler}.RoundTrip(req)
			if err != nil {
				if !c.fails {
					t.Fatal(err)
				}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if (err != nil) != c.fails || resp.StatusCode != c.status || string(body) != c.body {
				t.Errorf("%d %q, %v", resp.StatusCode, body, err)
			}
		})
	}
}

func TestTransportEndsTheHandlerWithItsReader(t *testing.T) {
	ended := make(chan struct{})
	transport := bridge.Transport{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/", nil)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the handler runs on")
	}
}

func TestABatchHasOneAnswer(t *testing.T) {
	const batch = `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":"2","method":"b"}]`
	for name, c := range map[string]struct {
		says []string
		end  bool
		want string
	}{
		"an array":               {[]string{` [{"jsonrpc":"2.0","id":"2","result":{"b":1.0}} , {"jsonrpc":"2.0","id":1,"result":{}}] `}, false, ` [{"jsonrpc":"2.0","id":"2","result":{"b":1.0}} , {"jsonrpc":"2.0","id":1,"result":{}}] `},
		"single answers":         {[]string{`{"jsonrpc":"2.0","id":"2","result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`}, false, `[{"jsonrpc":"2.0","id":"2","result":{}},{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}]`},
		"an array and one alone": {[]string{`[{"jsonrpc":"2.0","id":1,"result":{}}]`, `{"jsonrpc":"2.0","id":"2","result":{}}`}, false, `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"2","result":{}}]`},
		"one cancelled":          {[]string{`cancel "2"`, `{"jsonrpc":"2.0","id":1,"result":{}}`}, false, `[{"jsonrpc":"2.0","id":1,"result":{}}]`},
		"the child ends":         {[]string{`{"jsonrpc":"2.0","id":1,"result":{}}`}, true, `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"2","error":{"code":-32000,"message":"it is gone","data":{"exitCode":3}}}]`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, bridge.Options{})
			type result struct {
				body string
				err  error
			}
			got := make(chan result, 1)
			go func() {
				resp, err := s.post(t.Context(), t, batch)
				if err != nil {
					got <- result{"", err}
					return
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				got <- result{string(body), err}
			}()
			if line := s.child.next(t); line != batch {
				t.Fatalf("the child got %s", line)
			}
			for _, line := range c.says {
				if id, ok := strings.CutPrefix(line, "cancel "); ok {
					resp, err := s.post(t.Context(), t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`)
					if err != nil {
						t.Fatal(err)
					}
					resp.Body.Close()
					continue
				}
				s.says(t, line)
			}
			if c.end {
				_ = s.say.Close()
				<-s.heard
				s.End(bridge.Ending{Reason: "it is gone", Code: 3})
			}
			select {
			case r := <-got:
				if r.err != nil || strings.TrimSpace(r.body) != strings.TrimSpace(c.want) {
					t.Errorf("%v %s, want %s", r.err, r.body, c.want)
				}
			case <-time.After(patience):
				t.Fatal("there is no answer")
			}
			// The ids are free again.
			if !c.end {
				go func() { _, _ = s.post(t.Context(), t, `{"jsonrpc":"2.0","id":1,"method":"a"}`) }()
				if line := s.child.next(t); !strings.Contains(line, `"id":1`) && !strings.Contains(line, "cancelled") {
					t.Errorf("the child got %s", line)
				}
			}
		})
	}
}
