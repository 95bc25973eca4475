package caddymodule

import (
	"net/http"
	"time"
)

// maxWaiting bounds the events of ours that wait for a place in a stream.
const maxWaiting = 1 << 20

// comment is what keeps a silent stream open: clients drop it (WHATWG HTML
// section 9.2.6), and it ends no event.
var comment = []byte(":\n\n")

// inject puts events of ours into a stream, between two of the server's, as
// soon as there is a place. It reports false if the stream cannot take them.
func (t *tee) inject(events []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.mode != teeSSE || t.declared >= 0 || t.encoding != "" || t.clientErr != nil || len(t.waiting)+len(events) > maxWaiting {
		return false
	}
	t.waiting = append(t.waiting, events...)
	t.fill()
	return t.clientErr == nil
}

// queueEvent is inject for an event that waits for the stream to begin. The
// lock must be held, or the stream not be shared yet.
func (t *tee) queueEvent(message []byte) { t.waiting = append(t.waiting, sseEvent(message)...) }

// fill sends what waits if this is a place between two events. Before the
// server's first byte there is none: a byte order mark would come too late.
func (t *tee) fill() {
	if len(t.waiting) == 0 || !t.begun || !t.events.Between() {
		return
	}
	_, err := t.ResponseWriter.Write(t.waiting)
	t.waiting = nil
	t.sent(err)
	t.sent(http.NewResponseController(t.ResponseWriter).Flush())
}

func (t *tee) sent(err error) {
	if err != nil {
		t.clientErr = err
	}
}

// startKeepalive watches over the silence of a stream, if the operator wants it.
func (t *tee) startKeepalive() {
	if t.x.h.Keepalive == 0 || t.mode != teeSSE || t.encoding != "" {
		return
	}
	t.silence = time.AfterFunc(time.Duration(t.x.h.Keepalive), t.keepAlive)
}

// keepAlive sends a comment, unless an event is half-way through.
func (t *tee) keepAlive() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.clientErr != nil {
		return
	}
	if t.events.Between() {
		_, err := t.ResponseWriter.Write(comment)
		t.sent(err)
		t.sent(http.NewResponseController(t.ResponseWriter).Flush())
	}
	t.heard()
}

// heard begins the silence anew.
func (t *tee) heard() {
	if t.silence != nil {
		t.silence.Reset(time.Duration(t.x.h.Keepalive))
	}
}
