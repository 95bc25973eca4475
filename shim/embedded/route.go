package embedded

import (
	"context"
	"net/http"
	"sync"
)

// route is the way into the server: its handler, called in this process, so
// that there is neither a listener nor a connection. It knows what is running.
// It is safe for concurrent use.
type route struct {
	server http.Handler

	mu      sync.Mutex
	running int
	idle    chan struct{} // closed and replaced when running becomes 0
}

func newRoute(server http.Handler) *route {
	return &route{server: server, idle: make(chan struct{})}
}

// ServeHTTP implements http.Handler.
func (r *route) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.running++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.running--; r.running == 0 {
			close(r.idle)
			r.idle = make(chan struct{})
		}
	}()
	r.server.ServeHTTP(w, req)
}

// wait returns when no request is running, or false when ctx ends.
func (r *route) wait(ctx context.Context) bool {
	r.mu.Lock()
	running, idle := r.running, r.idle
	r.mu.Unlock()
	if running == 0 {
		return true
	}
	select {
	case <-idle:
		return true
	case <-ctx.Done():
		return false
	}
}
