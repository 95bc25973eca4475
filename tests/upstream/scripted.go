package upstream

import (
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Request is a request as it arrived.
type Request struct {
	Method string
	Path   string
	Header http.Header
	Length int64 // its Content-Length, -1 if it stated none
	Body   []byte
}

// Scripted is an upstream that answers as a test says, for what a server of
// tools cannot do: other methods, sessions, encodings, writes of a chosen
// size. It keeps every request, too.
type Scripted struct {
	// Address is host:port of the endpoint /mcp.
	Address string

	mu       sync.Mutex
	requests []Request
	changed  chan struct{} // closed and replaced with each request
}

// Script starts one. The answer is called with the body that was read.
func Script(t testing.TB, answer func(w http.ResponseWriter, r *http.Request, body []byte)) *Scripted {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Scripted{Address: listener.Addr().String(), changed: make(chan struct{})}
	web := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			s.mu.Lock()
			s.requests = append(s.requests, Request{r.Method, r.URL.Path, r.Header.Clone(), r.ContentLength, body})
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			answer(w, r, body)
		}),
	}
	go web.Serve(listener)
	t.Cleanup(func() { web.Close() })
	return s
}

// Requests returns what arrived, in order.
func (s *Scripted) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// With returns the requests whose body contains a marker.
func (s *Scripted) With(marker string) []Request {
	var found []Request
	for _, r := range s.Requests() {
		if strings.Contains(string(r.Body), marker) {
			found = append(found, r)
		}
	}
	return found
}

// Await returns the first request for which the condition holds, waiting for
// it if it has not arrived.
func (s *Scripted) Await(t testing.TB, patience time.Duration, what string, condition func(Request) bool) Request {
	t.Helper()
	late := time.After(patience)
	for {
		s.mu.Lock()
		i := slices.IndexFunc(s.requests, condition)
		changed := s.changed
		var found Request
		if i >= 0 {
			found = s.requests[i]
		}
		s.mu.Unlock()
		if i >= 0 {
			return found
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("not within %s: %s reaches the server", patience, what)
		}
	}
}

// Push writes a part of an answer and sends it on its way.
func Push(w http.ResponseWriter, part string) {
	io.WriteString(w, part)
	http.NewResponseController(w).Flush()
}
