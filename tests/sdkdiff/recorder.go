package sdkdiff

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// Exchange is a POST and its answer, as bytes.
type Exchange struct {
	Request, Answer string
	Status          int
	Type            string
}

// Recorder passes requests on and keeps the bytes of both directions. The path
// says who talks to whom: /mcp/SERVER/CLIENT.
type Recorder struct {
	Address string
	// next returns where a request goes on to, as host:port and path.
	next func(server, path string) (string, string)

	mu        sync.Mutex
	exchanges map[string][]*Exchange
}

// Record starts a recorder.
func Record(t testing.TB, next func(server, path string) (host, onward string)) *Recorder {
	t.Helper()
	r := &Recorder{next: next, exchanges: make(map[string][]*Exchange)}
	r.Address = Serve(t, r)
	return r
}

// Serve serves a handler on a loopback address until the test ends.
func Serve(t testing.TB, handler http.Handler) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go web.Serve(listener)
	t.Cleanup(func() { web.Close() })
	return listener.Addr().String()
}

// Pair returns the POSTs of a client to a server, in the order they came.
func (r *Recorder) Pair(client, server string) []Exchange {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Exchange
	for _, e := range r.exchanges["/mcp/"+server+"/"+client] {
		all = append(all, *e)
	}
	return all
}

// ServeHTTP implements http.Handler.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(req.URL.Path, "/")
	if len(parts) != 4 {
		http.NotFound(w, req)
		return
	}
	host, path := r.next(parts[2], req.URL.Path)
	exchange := new(Exchange)
	if req.Method == http.MethodPost {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		exchange.Request = string(body)
		r.mu.Lock()
		r.exchanges[req.URL.Path] = append(r.exchanges[req.URL.Path], exchange)
		r.mu.Unlock()
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: host})
			p.Out.URL.Path = path
		},
		ModifyResponse: func(resp *http.Response) error {
			r.mu.Lock()
			exchange.Status, exchange.Type = resp.StatusCode, resp.Header.Get("Content-Type")
			r.mu.Unlock()
			resp.Body = &tee{resp.Body, r, exchange}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, fmt.Sprintf("recorder: %v", err), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, req)
}

// transport keeps enough connections for all pairs at once.
var transport = &http.Transport{MaxIdleConnsPerHost: 100}

type tee struct {
	io.ReadCloser
	r *Recorder
	e *Exchange
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.r.mu.Lock()
	t.e.Answer += string(p[:n])
	t.r.mu.Unlock()
	return n, err
}
