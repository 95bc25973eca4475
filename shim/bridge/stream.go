package bridge

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
)

// stream is the open GET.
type stream struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// What is kept of the lines that went to the GET stream, to repeat them on a
// new one if the old broke.
const (
	keepSent      = 64
	keepSentBytes = 1 << 20
)

// maxAttempts is how often a line is handed to a stream that breaks over it,
// for example because the line cannot be recorded.
const maxAttempts = 3

// get carries what the child writes and no request is answered by. There is
// one such stream; a new one takes the place of the old.
func (b *Bridge) get(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	s := &stream{cancel: cancel, done: make(chan struct{})}
	defer close(s.done)
	b.mu.Lock()
	old := b.stream
	b.stream = s
	b.mu.Unlock()
	if old != nil {
		old.cancel()
		<-old.done
	}
	if last, err := strconv.ParseUint(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		b.resume(last)
	}
	events := newEventWriter(w)
	if err := events.flush(); err != nil {
		return
	}
	for {
		ended := b.Ended()
		for ctx.Err() == nil {
			it, ok := b.stray.pop()
			if !ok {
				break
			}
			b.keepForResume(it)
			if err := events.write(it); err != nil {
				return
			}
			b.release(it, nil)
		}
		if ended && b.stray.empty() {
			return
		}
		select {
		case <-b.stray.wake:
		case <-ctx.Done():
			// The token may be what woke a stream that has been replaced.
			b.stray.signal()
			return
		}
	}
}

// keepForResume remembers a line that is handed to the stream.
func (b *Bridge) keepForResume(it item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, it)
	size := 0
	for _, s := range b.sent {
		size += len(s.line)
	}
	for len(b.sent) > 1 && (len(b.sent) > keepSent || size > keepSentBytes) {
		size -= len(b.sent[0].line)
		// A write that failed has left it on the books; without a stream to
		// repeat it on, it is lost.
		b.releaseLocked(b.sent[0])
		b.sent[0] = item{}
		b.sent = b.sent[1:]
	}
}

// resume queues again what came after the last line the client has seen. A
// line that broke the stream several times is given up; if it is a request,
// the server is told.
func (b *Bridge) resume(last uint64) {
	b.mu.Lock()
	var again, given []item
	for _, it := range b.sent {
		if it.seq <= last {
			b.releaseLocked(it)
			continue
		}
		if it.attempts++; it.attempts >= maxAttempts {
			b.dropLocked(it.seq)
			b.releaseLocked(it)
			given = append(given, it)
			continue
		}
		if _, held := b.carried[it.seq]; !held {
			b.carried[it.seq] = struct{}{}
			b.held += len(it.line)
		}
		again = append(again, it)
	}
	b.sent = nil
	b.mu.Unlock()
	b.stray.unshift(again)
	for _, it := range given {
		b.log.Error("a message of the server could not be brought to the client: the stream broke over it each time", "line", it.seq)
		if it.id != nil {
			if err := b.Reject(it.id, codeInternal, "the request could not be recorded or delivered"); err != nil {
				b.log.Warn("a message could not be written to the server", "error", err)
			}
		}
	}
}

// eventWriter writes server-sent events.
type eventWriter struct {
	w    http.ResponseWriter
	ctrl *http.ResponseController
	buf  []byte
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	return &eventWriter{w: w, ctrl: http.NewResponseController(w)}
}

// keepBuffer is the largest buffer that is kept for the next event.
const keepBuffer = 256 << 10

// write sends a line as one event, with its number as the event's id.
func (e *eventWriter) write(it item) error {
	b := e.buf[:0]
	if it.seq != 0 {
		b = append(b, "id: "...)
		b = strconv.AppendUint(b, it.seq, 10)
		b = append(b, '\n')
	}
	// A CR is white space between JSON tokens, but the end of a line in a
	// stream of events: each part is a data line of its own, and the reader
	// joins them.
	for rest, more := it.line, true; more; {
		var part []byte
		part, rest, more = bytes.Cut(rest, []byte("\r"))
		b = append(b, "data: "...)
		b = append(b, part...)
		b = append(b, '\n')
	}
	b = append(b, '\n')
	_, err := e.w.Write(b)
	if e.buf = b; cap(b) > keepBuffer {
		e.buf = nil
	}
	if err != nil {
		return err
	}
	return e.flush()
}

func (e *eventWriter) flush() error { return e.ctrl.Flush() }
