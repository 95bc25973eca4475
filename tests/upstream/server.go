package upstream

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

// Server is the upstream over HTTP. Its methods may be called while it serves.
type Server struct {
	// Address is host:port of the endpoint /mcp.
	Address string

	web *http.Server

	mu       sync.Mutex
	bodies   [][]byte
	headers  []http.Header
	released map[string]chan struct{}
	entered  map[string]chan struct{}
	left     map[string]chan struct{}
}

// Start serves on a free loopback port until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New()
	s.Address = listener.Addr().String()
	s.web = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go s.web.Serve(listener)
	t.Cleanup(func() { s.web.Close() })
	return s
}

// New returns a server that is not bound to an address.
func New() *Server {
	return &Server{
		released: make(map[string]chan struct{}),
		entered:  make(map[string]chan struct{}),
		left:     make(map[string]chan struct{}),
	}
}

// Bodies returns the body of every request that arrived, in order.
func (s *Server) Bodies() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bodies)
}

// Headers returns the header of every request that arrived, in order.
func (s *Server) Headers() []http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.headers)
}

// Count returns how many requests arrived.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bodies)
}

// Received reports whether the bytes arrived in any request.
func (s *Server) Received(what string) bool {
	for _, body := range s.Bodies() {
		if bytes.Contains(body, []byte(what)) {
			return true
		}
	}
	return false
}

// Release lets calls of hold{key} answer, now and later.
func (s *Server) Release(key string) { closeOnce(s.gate(s.released, key)) }

// Entered is closed when a call of hold{key} has arrived.
func (s *Server) Entered(key string) <-chan struct{} { return s.gate(s.entered, key) }

// Left is closed when the caller of hold{key} has gone before its answer.
func (s *Server) Left(key string) <-chan struct{} { return s.gate(s.left, key) }

func (s *Server) gate(gates map[string]chan struct{}, key string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	gate, ok := gates[key]
	if !ok {
		gate = make(chan struct{})
		gates[key] = gate
	}
	return gate
}

func closeOnce(gate chan struct{}) {
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (s *Server) hold(ctx context.Context, key string) {
	closeOnce(s.gate(s.entered, key))
	select {
	case <-s.gate(s.released, key):
	case <-ctx.Done():
		closeOnce(s.gate(s.left, key))
	}
}

// ServeHTTP implements http.Handler. Arguments that every tool understands:
// sse answers as a stream that begins with a progress notification; session
// sends an Mcp-Session-Id.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	s.bodies = append(s.bodies, body)
	s.headers = append(s.headers, r.Header.Clone())
	s.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	m, ok := read(body)
	switch {
	case !ok:
		w.WriteHeader(http.StatusBadRequest)
	case m.ID == nil || m.Method == "":
		w.WriteHeader(http.StatusAccepted)
	case m.Tool == "raw":
		s.raw(w, r, m)
	case m.flag("sse"):
		s.stream(w, r, m)
	default:
		if m.Method == "initialize" {
			w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", s.Count()))
		}
		out := answer(m.ID, s.result(r.Context(), m))
		w.Header().Set("Content-Type", "application/json")
		w.Write(out)
	}
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, m Message) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	control := http.NewResponseController(w)
	event := func(data []byte) {
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", data)
		control.Flush()
	}
	event(progress(1))
	result := s.result(r.Context(), m)
	if r.Context().Err() != nil || m.flag("abort") {
		panic(http.ErrAbortHandler)
	}
	event(answer(m.ID, result))
}

// raw answers with exactly the bytes of the argument bytes, as the media type
// of the argument type; with abort it cuts the connection after them.
func (s *Server) raw(w http.ResponseWriter, _ *http.Request, m Message) {
	kind := m.text("type")
	if kind == "" {
		kind = "application/json"
	}
	w.Header().Set("Content-Type", kind)
	io.WriteString(w, m.text("bytes"))
	if m.flag("abort") {
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
