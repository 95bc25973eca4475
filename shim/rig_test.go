package shim_test

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

	"github.com/caddy-mcp-audit/mcp-audit/shim"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// patience bounds everything a test waits for.
const patience = 10 * time.Second

// rig is a front and a bridge with nothing but a plain handler between them,
// and a child that the test plays.
type rig struct {
	t      *testing.T
	client *io.PipeWriter // the client's end of our stdin
	out    chan string    // lines the client gets
	child  *bufio.Reader  // what the child reads
	say    *io.PipeWriter // what the child says
	bridge *bridge.Bridge
	front  *shim.Front
	read   chan error // the front's Run
	heard  chan error // the bridge's Run

	mu       sync.Mutex
	requests []*http.Request
}

type rigOptions struct {
	overHTTP    bool // a real HTTP server in between
	chain       func(next http.Handler) http.Handler
	maxLine     int
	maxInFlight int
	maxHeld     int
	out         io.Writer
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, out: make(chan string, 100_000), read: make(chan error, 1), heard: make(chan error, 1)}
	clientIn, clientW := io.Pipe()
	childIn, childW := io.Pipe()
	sayR, sayW := io.Pipe()
	r.client, r.child, r.say = clientW, bufio.NewReaderSize(childIn, 1<<20), sayW
	gate := shim.NewGate()
	r.bridge = bridge.New(childW, bridge.Options{Session: "s1", Accepted: gate.Pass, MaxLine: o.maxLine, MaxHeld: o.maxHeld})
	var handler http.Handler = r.bridge
	if o.chain != nil {
		handler = o.chain(handler)
	}
	handler = r.note(handler)
	chain := shim.Chain{
		URL: "http://localhost/mcp", Transport: bridge.Transport{Handler: handler},
		Unreachable: func(err error) string { return "the audit cannot be reached: " + err.Error() },
	}
	if o.overHTTP {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		chain.URL, chain.Transport = server.URL, &http.Transport{MaxIdleConnsPerHost: 100}
	}
	out := o.out
	if out == nil {
		pr, pw := io.Pipe()
		out = pw
		go r.collect(pr)
	}
	r.front = shim.NewFront(shim.FrontOptions{
		In: clientIn, Out: out, Chain: chain, Bridge: r.bridge, Gate: gate,
		Session: "s1", MaxLine: o.maxLine, MaxInFlight: o.maxInFlight,
	})
	go func() { r.read <- r.front.Run() }()
	go func() { r.heard <- r.bridge.Run(sayR) }()
	t.Cleanup(func() {
		r.bridge.End(bridge.Ending{Reason: "the test is over"})
		r.front.Close()
		_ = clientW.Close()
		_ = childIn.Close()
		_ = sayW.Close()
	})
	return r
}

// note remembers the requests that passed.
func (r *rig) note(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		r.requests = append(r.requests, req)
		r.mu.Unlock()
		next.ServeHTTP(w, req)
	})
}

// header is a header of the nth POST.
func (r *rig) header(n int, name string) string {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range r.requests {
		if req.Method != http.MethodPost {
			continue
		}
		if n == 0 {
			return req.Header.Get(name)
		}
		n--
	}
	r.t.Fatal("there is no such request")
	return ""
}

func (r *rig) collect(from io.Reader) {
	br := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			close(r.out)
			return
		}
		r.out <- strings.TrimSuffix(line, "\n")
	}
}

// send writes lines as the client.
func (r *rig) send(lines ...string) {
	r.t.Helper()
	if _, err := io.WriteString(r.client, strings.Join(lines, "\n")+"\n"); err != nil {
		r.t.Fatal(err)
	}
}

// childSays writes lines as the child.
func (r *rig) childSays(lines ...string) {
	r.t.Helper()
	if _, err := io.WriteString(r.say, strings.Join(lines, "\n")+"\n"); err != nil {
		r.t.Fatal(err)
	}
}

// childGets checks the next lines that the child reads.
func (r *rig) childGets(want ...string) {
	r.t.Helper()
	for _, line := range want {
		got := within(r.t, "a line for the child", func() string {
			s, err := r.child.ReadString('\n')
			if err != nil {
				return err.Error()
			}
			return strings.TrimSuffix(s, "\n")
		})
		if got != line {
			r.t.Fatalf("the child got %.300q, want %.300q", got, line)
		}
	}
}

// clientGets checks the next lines that the client reads.
func (r *rig) clientGets(want ...string) {
	r.t.Helper()
	for _, line := range want {
		if got := r.next(); got != line {
			r.t.Fatalf("the client got %.300q, want %.300q", got, line)
		}
	}
}

func (r *rig) next() string {
	r.t.Helper()
	select {
	case got, ok := <-r.out:
		if !ok {
			r.t.Fatal("the client's input ended")
		}
		return got
	case <-time.After(patience):
		r.t.Fatal("the client got nothing")
	}
	return ""
}

// within runs f and fails the test if it does not come back.
func within[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case v := <-done:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing within %s", what, patience)
	}
	panic("unreachable")
}

func (r *rig) drain() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.front.Drain(ctx, patience)
}

func request(id, method string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q}`, id, method)
}

func result(id, result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// initialized brings the rig past the handshake.
func (r *rig) initialized() {
	r.t.Helper()
	r.send(initialize)
	r.childGets(initialize)
	answer := result("0", `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"c","version":"1"}}`)
	r.childSays(answer)
	r.clientGets(answer)
}

func equalLines(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("got %.300q, want %.300q", got, want)
	}
}
