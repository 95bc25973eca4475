package shim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// bothWays runs a test with an in-memory hop and over a real HTTP server.
func bothWays(t *testing.T, test func(t *testing.T, o rigOptions)) {
	t.Run("in memory", func(t *testing.T) { test(t, rigOptions{}) })
	t.Run("over HTTP", func(t *testing.T) { test(t, rigOptions{overHTTP: true}) })
}

func TestBytesPassUnchangedBothWays(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.initialized()
		for name, pair := range map[string][2]string{
			"numbers":        {`{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"a","arguments":{"n":9007199254740993,"z":-0,"e":1e400}}}`, `{"result":{"n":9007199254740993,"z":-0,"e":1e400,"d":1,"d":2},"jsonrpc":"2.0","id":9007199254740993}`},
			"escapes":        {`{"jsonrpc":"2.0","id":"a\u00e9\/","method":"x","params":{"s":"\u00e9\/é\u2028"}}`, `{"jsonrpc":"2.0","id":"a\u00e9\/","result":{"s":"\u00e9\/é  "}}`},
			"white space":    {`  { "jsonrpc" : "2.0", "id" : 5 , "method" : "x" }  `, ` {"id":5 ,"jsonrpc":"2.0","result":	{} } `},
			"invalid UTF-8":  {`{"jsonrpc":"2.0","id":6,"method":"x"}`, "{\"jsonrpc\":\"2.0\",\"id\":6,\"result\":\"\xff\"}"},
			"rounded id":     {`{"jsonrpc":"2.0","id":9007199254740995,"method":"x"}`, `{"jsonrpc":"2.0","id":9007199254740996,"result":{}}`},
			"id made a text": {`{"jsonrpc":"2.0","id":8,"method":"x"}`, `{"jsonrpc":"2.0","id":"8","result":{}}`},
			"id made number": {`{"jsonrpc":"2.0","id":"9","method":"x"}`, `{"jsonrpc":"2.0","id":9,"result":{}}`},
			"error":          {`{"jsonrpc":"2.0","id":10,"method":"x"}`, `{"jsonrpc":"2.0","id":10,"error":{"code":-32601,"message":"no","data":[1]}}`},
			"8 MiB":          {`{"jsonrpc":"2.0","id":11,"method":"x","params":{"s":"` + strings.Repeat("p", 8<<20) + `"}}`, result("11", `"`+strings.Repeat("r", 8<<20)+`"`)},
		} {
			t.Log(name)
			r.send(pair[0])
			r.childGets(pair[0])
			r.childSays(pair[1])
			r.clientGets(pair[1])
		}
	})
}

func TestCRLFAndBlankLinesAreTolerated(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.send("", request("1", "ping")+"\r", "  ", request("2", "ping"))
	r.childGets(request("1", "ping"), request("2", "ping"))
	r.childSays(result("1", "{}")+"\r", "", result("2", "{}"))
	r.clientGets(result("1", "{}"), result("2", "{}"))
}

func TestChildSeesTheClientsOrder(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		const n = 300
		var want []string
		for i := range n {
			want = append(want, request(fmt.Sprint(i), "tools/list"),
				fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, i))
		}
		go r.send(want...)
		r.childGets(want...)
		// Answered last first: each finds its own request.
		for i := n - 1; i >= 0; i-- {
			r.childSays(result(fmt.Sprint(i), "{}"))
			r.clientGets(result(fmt.Sprint(i), "{}"))
		}
	})
}

func TestClientSeesTheChildsOrder(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.initialized()
		const n = 40
		for round := range 20 {
			var want []string
			for i := range n {
				id := fmt.Sprint(round*n + i + 1)
				call := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":"p%s"}}}`, id, id)
				r.send(call)
				r.childGets(call)
				// Progress goes with its call, the others on the stream.
				want = append(want,
					fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"before %s"}}`, id),
					fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p%s","progress":1}}`, id),
					fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"between %s"}}`, id),
					fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p%s","progress":2}}`, id),
					fmt.Sprintf(`{"jsonrpc":"2.0","method":"roots/list","id":%s}`, id),
					result(id, "{}"))
			}
			go r.childSays(want...)
			r.clientGets(want...)
		}
	})
}

func TestServerRequestMayReuseAClientsID(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.initialized()
		call, ask := request("7", "tools/call"), request("7", "elicitation/create")
		call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x"}}`
		r.send(call)
		r.childGets(call)
		r.childSays(ask)
		r.clientGets(ask)
		r.send(result("7", `{"action":"accept"}`))
		r.childGets(result("7", `{"action":"accept"}`))
		r.childSays(result("7", `{"content":[]}`))
		r.clientGets(result("7", `{"content":[]}`))
	})
}

func TestDuplicateIDInFlightIsRefusedAndTheFirstGoesOn(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.send(request("1", "a"), request("1", "b"), request(`"1"`, "c"))
	r.childGets(request("1", "a"), request(`"1"`, "c"))
	r.clientGets(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a request with this id is already in flight"}}`)
	r.childSays(result("1", `"first"`), result(`"1"`, `"text"`))
	r.clientGets(result("1", `"first"`), result(`"1"`, `"text"`))
	// Answered, the id may be used again.
	r.send(request("1", "d"))
	r.childGets(request("1", "d"))
}

func TestCancellationReachesTheChildAndEndsTheExchange(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.initialized()
		call := `{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"slow","_meta":{"progressToken":1}}}`
		cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c"}}`
		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
		for _, withProgress := range []bool{false, true} {
			r.send(call)
			r.childGets(call)
			if withProgress {
				r.childSays(progress)
				r.clientGets(progress)
			}
			r.send(cancel)
			r.childGets(cancel)
			ctx, stop := context.WithTimeout(t.Context(), patience)
			if !r.front.Idle(ctx) {
				t.Fatal("the exchange of the cancelled call stays open")
			}
			stop()
			// What the child says all the same still comes, and nothing else.
			r.childSays(result(`"c"`, `"late"`))
			r.clientGets(result(`"c"`, `"late"`))
		}
	})
}

func TestModernRevisionHasItsHeadersAndNoSession(t *testing.T) {
	r := newRig(t, rigOptions{})
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"grüße","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","progressToken":"t"}}}`
	r.send(call)
	r.childGets(call)
	lines := []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}`,
		result("1", `{"resultType":"complete"}`),
	}
	r.childSays(lines...)
	r.clientGets(lines...)
	for name, want := range map[string]string{
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call",
		"Mcp-Name": "=?base64?Z3LDvMOfZQ==?=", "Mcp-Session-Id": "",
	} {
		if got := r.header(0, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.requests) != 1 {
		t.Errorf("%d requests for one call; no stream was needed", len(r.requests))
	}
}

func TestLegacyRevisionHasSessionAndNegotiatedVersion(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.initialized()
	r.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, request("1", "ping"))
	r.childGets(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, request("1", "ping"))
	for n, want := range []map[string]string{
		{"Mcp-Session-Id": "", "Mcp-Protocol-Version": ""},
		{"Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18"},
		{"Mcp-Session-Id": "s1", "Mcp-Protocol-Version": "2025-06-18", "Mcp-Method": ""},
	} {
		for name, value := range want {
			if got := r.header(n, name); got != value {
				t.Errorf("request %d: %s is %q, want %q", n, name, got, value)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range r.requests {
		if req.Method == http.MethodGet && (req.Header.Get("Mcp-Session-Id") != "s1" || req.Header.Get("Mcp-Protocol-Version") != "2025-06-18") {
			t.Errorf("the stream was opened with %v", req.Header)
		}
	}
}

func TestServerThatAsksBeforeItIsInitializedIsHeard(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.send(initialize)
	r.childGets(initialize)
	r.childSays(request("1", "ping"))
	r.clientGets(request("1", "ping"))
	r.send(result("1", "{}"))
	r.childGets(result("1", "{}"))
	r.childSays(result("0", `{"protocolVersion":"2025-06-18"}`))
	r.clientGets(result("0", `{"protocolVersion":"2025-06-18"}`))
}

func TestSubscriptionStaysOpenAndEndsByTheServersCancellation(t *testing.T) {
	r := newRig(t, rigOptions{})
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	listen := `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + meta + `}}`
	other := `{"jsonrpc":"2.0","id":"O","method":"tools/list","params":{` + meta + `}}`
	r.send(listen, other)
	r.childGets(listen, other)
	said := []string{
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}`,
		result(`"O"`, "{}"),
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"L"}}`,
	}
	r.childSays(said[:3]...)
	r.clientGets(said[:3]...)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if !r.front.Idle(ctx) {
		t.Fatal("an open subscription counts as a call to wait for")
	}
	r.childSays(said[3])
	r.clientGets(said[3])
	r.bridge.End(bridge.Ending{Reason: "gone"})
	r.drain()
	select {
	case line := <-r.out:
		t.Fatalf("the client also got %q", line)
	default:
	}
}

func TestEverythingTheChildWroteBeforeItsEndIsDelivered(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.initialized()
		r.send(request("1", "tools/list"))
		r.childGets(request("1", "tools/list"))
		const n = 20_000
		go func() {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":%d}}`+"\n", i)
			}
			b.WriteString(result("1", `"last"`)) // without its line feed
			_, _ = io.WriteString(r.say, b.String())
			_ = r.say.Close()
			<-r.heard
			r.bridge.End(bridge.Ending{Reason: "the server process exited with code 0"})
			r.drain()
		}()
		for i := range n {
			r.clientGets(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":%d}}`, i))
		}
		r.clientGets(result("1", `"last"`))
	})
}

func TestChildsEndAnswersWhatIsOpenAndWhatComesLater(t *testing.T) {
	bothWays(t, func(t *testing.T, o rigOptions) {
		r := newRig(t, o)
		r.send(request("1", "tools/list"))
		r.childGets(request("1", "tools/list"))
		r.bridge.End(bridge.Ending{Reason: "the server process was killed", Code: 137, Signal: "SIGKILL"})
		want := `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"the server process was killed","data":{"exitCode":137,"signal":"SIGKILL"}}}`
		r.clientGets(fmt.Sprintf(want, "1", -32000))
		r.send(request(`"later"`, "ping"))
		r.clientGets(fmt.Sprintf(want, `"later"`, -32000))
		r.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
		r.clientGets(fmt.Sprintf(want, "3", -32603))
	})
}

func TestClientsEndLeavesOpenCallsToBeAnswered(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.send(request("1", "tools/list"))
	r.childGets(request("1", "tools/list"))
	_ = r.client.Close()
	if err := within(t, "the end of reading", func() error { return <-r.read }); err != nil {
		t.Fatal(err)
	}
	r.childSays(result("1", "{}"))
	r.clientGets(result("1", "{}"))
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if !r.front.Idle(ctx) {
		t.Fatal("the front is not idle")
	}
}

func TestStrayOutputDoesNotReachTheClient(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.send(request("1", "ping"))
	r.childGets(request("1", "ping"))
	r.childSays("listening on stdio", `{"level":"info"}`, "[1,2]", "{", `"x"`, result("1", "{}"))
	r.clientGets(result("1", "{}"))
}

func TestLineBreaksInsideAMessageAreRefused(t *testing.T) {
	r := newRig(t, rigOptions{})
	// A reader that takes CR for the end of a line would see a call here.
	r.send(`{"jsonrpc":"2.0","id":1,"method":"ping","params":` + "\r" + `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"rm"}}` + "\r}")
	r.clientGets(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"a message on standard input must not contain a line break"}}`)
	r.send(request("3", "ping"))
	r.childGets(request("3", "ping"))
}

// refuse answers like a chain that does not forward.
func refuse(status int, body string) func(http.Handler) http.Handler {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body != "" {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		})
	}
}

func TestRefusalsOfTheChainReachTheClient(t *testing.T) {
	denied := `{"jsonrpc":"2.0","id":1,"error":{"code":-32030,"message":"denied by policy"}}`
	for name, c := range map[string]struct {
		status            int
		body, line, wants string
	}{
		"denied":             {200, denied, request("1", "a"), denied},
		"refused, with id":   {400, denied, request("1", "a"), denied},
		"refused unread":     {413, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"too large"}}`, request("1", "a"), `{"id":1,"jsonrpc":"2.0","error":{"code":-32600,"message":"too large"}}`},
		"refused, id null":   {400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}`, request("1", "a"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"no"}}`},
		"not JSON":           {400, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}`, `{"x":NaN}`, `{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}`},
		"no message in body": {502, "", request("1", "a"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"the audited route answered HTTP 502 Bad Gateway; check that its reverse_proxy has ` + "`dynamic mcp_shim`" + ` with the shim's runtime directory and that Caddy runs as the same user"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{chain: refuse(c.status, c.body)})
			r.send(c.line)
			r.clientGets(c.wants)
		})
	}
}

func TestOverlongLineIsRefusedByTheChainAndTheNextOnePasses(t *testing.T) {
	r := newRig(t, rigOptions{maxLine: 1000})
	r.send(request("1", strings.Repeat("m", 5000)), request("2", "ping"))
	r.clientGets(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"the message is longer than the shim accepts"}}`)
	r.childGets(request("2", "ping"))
}

// blockAnswers refuses what the client answers.
func blockAnswers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), `"result"`) {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		next.ServeHTTP(w, r)
	})
}

func TestRefusedAnswerIsToldToTheServer(t *testing.T) {
	r := newRig(t, rigOptions{chain: blockAnswers})
	r.initialized()
	r.childSays(request(`"e1"`, "elicitation/create"))
	r.clientGets(request(`"e1"`, "elicitation/create"))
	r.send(result(`"e1"`, `{"action":"accept"}`))
	r.childGets(`{"jsonrpc":"2.0","id":"e1","error":{"code":-32603,"message":"the client's answer was refused by the audit"}}`)
}

// unreachable is a transport that never connects.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

// cutStream breaks the GET stream in front of lines that contain a word, as a
// chain does that cannot record them.
type cutStream struct {
	next http.Handler
	word string
	cuts int // how often
	mu   sync.Mutex
}

func (c *cutStream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w = &cutWriter{ResponseWriter: w, c: c}
	}
	c.next.ServeHTTP(w, r)
}

type cutWriter struct {
	http.ResponseWriter
	c *cutStream
}

func (w *cutWriter) Write(p []byte) (int, error) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.c.cuts > 0 && strings.Contains(string(p), w.c.word) {
		w.c.cuts--
		return 0, errors.New("cut")
	}
	return w.ResponseWriter.Write(p)
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestStreamThatBreaksIsResumedWithoutLossOrRepetition(t *testing.T) {
	r := newRig(t, rigOptions{chain: func(next http.Handler) http.Handler {
		return &cutStream{next: next, word: "poison", cuts: 1}
	}})
	r.initialized()
	lines := []string{
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}`,
		request(`"poison"`, "roots/list"),
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":2}}`,
	}
	r.childSays(lines...)
	r.clientGets(lines...)
}

func TestRequestThatAlwaysBreaksTheStreamIsAnsweredToTheServer(t *testing.T) {
	r := newRig(t, rigOptions{chain: func(next http.Handler) http.Handler {
		return &cutStream{next: next, word: "poison", cuts: 1000}
	}})
	r.initialized()
	after := `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":2}}`
	r.childSays(request(`"poison"`, "roots/list"), after)
	r.childGets(`{"jsonrpc":"2.0","id":"poison","error":{"code":-32603,"message":"the request could not be recorded or delivered"}}`)
	r.clientGets(after)
}

func TestClientThatDoesNotReadHoldsTheChildUp(t *testing.T) {
	pr, pw := io.Pipe()
	r := newRig(t, rigOptions{out: pw, maxHeld: 1 << 20})
	line := `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 64<<10) + `"}}` + "\n"
	const total = 400 // 25 MiB
	wrote := make(chan int, 1)
	go func() {
		n := 0
		for range total {
			if _, err := io.WriteString(r.say, line); err != nil {
				break
			}
			n++
		}
		wrote <- n
	}()
	select {
	case n := <-wrote:
		t.Fatalf("the child could write %d lines to a client that reads nothing", n)
	case <-time.After(500 * time.Millisecond): // an absence cannot be waited for
	}
	go func() { _, _ = io.Copy(io.Discard, pr) }()
	if n := within(t, "the rest", func() int { return <-wrote }); n != total {
		t.Fatalf("%d lines written, want %d", n, total)
	}
}

func TestRequestsBeyondTheBoundWaitTheirTurn(t *testing.T) {
	r := newRig(t, rigOptions{maxInFlight: 2})
	go r.send(request("1", "a"), request("2", "a"), request("3", "a"))
	r.childGets(request("1", "a"), request("2", "a"))
	r.childSays(result("1", "{}"))
	r.clientGets(result("1", "{}"))
	r.childGets(request("3", "a"))
}
