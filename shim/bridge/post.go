package bridge

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// post takes one message of the client to the child.
func (b *Bridge) post(w http.ResponseWriter, r *http.Request) {
	seq, _ := strconv.ParseUint(r.Header.Get(SeqHeader), 10, 64)
	// Whatever happens, the front must not wait for this line for ever.
	defer b.accepted(seq)
	body, err := readBody(r, b.opts.MaxLine)
	if err != nil {
		status := http.StatusBadRequest
		if errors.Is(err, errTooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		_ = answer(w, status, mcp.AppendError(nil, nil, mcp.CodeInvalidRequest, err.Error(), nil))
		return
	}
	var scratch [1]mcp.Message
	msgs, batch, fault := mcp.ScanAnswer(body, scratch[:0])
	var m *mcp.Message
	if fault == nil && !batch && len(msgs) == 1 {
		m = &msgs[0]
	}
	// A line feed would make one message two. Common readers also take a
	// carriage return for the end of a line, so that an object inside the
	// message could become a message of its own.
	if bytes.IndexByte(body, '\r') >= 0 || bytes.IndexByte(body, '\n') >= 0 {
		var id []byte
		if m != nil && m.Kind == mcp.KindRequest {
			id = m.ID.Of(body)
		}
		_ = answer(w, http.StatusBadRequest, mcp.AppendError(nil, id, mcp.CodeInvalidRequest,
			"a message on standard input must not contain a line break", nil))
		return
	}
	if m != nil && m.Kind == mcp.KindRequest {
		b.request(w, r, m, body, seq)
		return
	}
	if fault == nil && batch && b.batch(w, r, requestsIn(msgs, body), body, seq) {
		return
	}
	if err := b.write(body); err != nil {
		b.log.Debug("a message could not be written to the server", "error", err)
		_ = answer(w, http.StatusBadGateway, nil)
		return
	}
	if m != nil && m.CancelledID.Present() {
		b.cancel(m.CancelledID.Of(body))
	}
	w.WriteHeader(http.StatusAccepted)
}

// request takes a request to the child and stays for its answer.
func (b *Bridge) request(w http.ResponseWriter, r *http.Request, m *mcp.Message, body []byte, seq uint64) {
	c := &call{
		id:     bytes.Clone(m.ID.Of(body)),
		key:    mcp.IDKey(m.ID.Of(body), m.IDType),
		token:  tokenKey(m.ProgressToken.Of(body)),
		method: mcp.Text(m.Method.Of(body)),
		out:    newOutbox(),
	}
	c.modern = c.method != methodInitialize && mcp.Modern(mcp.Revision(m, body, r.Header.Get("Mcp-Protocol-Version"), ""))
	b.mu.Lock()
	if b.ended != nil {
		b.mu.Unlock()
		b.answerEnded(w, nil, c)
		return
	}
	if b.calls[c.key] != nil {
		b.mu.Unlock()
		_ = answer(w, http.StatusBadRequest, mcp.AppendError(nil, c.id, mcp.CodeInvalidRequest,
			"a request with this id is already in flight", nil))
		return
	}
	b.calls[c.key] = c
	if c.token != "" {
		b.progress[c.token] = c
	}
	b.mu.Unlock()
	defer b.leave(c)
	if err := b.write(body); err != nil {
		b.log.Debug("a request could not be written to the server", "error", err)
		b.unwritten(w, r, c)
		return
	}
	b.accepted(seq)
	b.carry(w, r, c)
}

// unwritten answers a request that the child does not read any more. The way
// the child ended says more than the broken pipe, so that is waited for.
func (b *Bridge) unwritten(w http.ResponseWriter, r *http.Request, c *call) {
	for {
		if b.Ended() {
			b.answerEnded(w, nil, c)
			return
		}
		select {
		case <-c.out.wake:
		case <-r.Context().Done():
			return
		}
	}
}

// carry brings the child's lines for one call to the client: as plain JSON if
// the answer is the only one, as a stream of events if others come first.
func (b *Bridge) carry(w http.ResponseWriter, r *http.Request, c *call) {
	if c.method == methodInitialize && b.opts.Session != "" {
		w.Header().Set(SessionHeader, b.opts.Session)
	}
	var events *eventWriter
	for {
		// Read before the queue: what they tell comes after the last line.
		dropped, ended := b.state(c)
		for {
			it, ok := c.out.pop()
			if !ok {
				break
			}
			if events == nil && it.last {
				w.Header().Set(SeqHeader, strconv.FormatUint(it.seq, 10))
				b.release(it, answer(w, http.StatusOK, it.line))
				return
			}
			if events == nil {
				events = newEventWriter(w)
			}
			err := events.write(it)
			b.release(it, err)
			if err != nil || it.last {
				return
			}
		}
		switch {
		case dropped && events == nil:
			w.Header().Set(EndedHeader, "cancelled")
			w.WriteHeader(http.StatusAccepted)
			return
		case dropped:
			return
		case ended:
			b.answerEnded(w, events, c)
			return
		}
		select {
		case <-c.out.wake:
		case <-r.Context().Done():
			b.abandoned(c)
			return
		}
	}
}

func (b *Bridge) state(c *call) (dropped, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return c.dropped, b.ended != nil
}

// answerEnded answers a call in place of the child that has ended. The answer
// is numbered like a line of the child, since it comes after all of them.
func (b *Bridge) answerEnded(w http.ResponseWriter, events *eventWriter, c *call) {
	b.mu.Lock()
	b.seq++
	it := item{seq: b.seq, line: b.ended.answer(c.id, c.modern)}
	b.mu.Unlock()
	if events != nil {
		b.release(it, events.write(it))
		return
	}
	w.Header().Set(SeqHeader, strconv.FormatUint(it.seq, 10))
	b.release(it, answer(w, http.StatusBadGateway, it.line))
}

// abandoned is a call whose exchange ended under it. From 2026-07-28 on that
// is how HTTP cancels, which standard input does with a notification; before,
// it means nothing to the server, and a late answer goes to the stream.
func (b *Bridge) abandoned(c *call) {
	b.mu.Lock()
	open := b.calls[c.key] == c && !c.dropped && b.ended == nil
	b.mu.Unlock()
	if !open || !c.modern {
		return
	}
	line := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), c.id...)
	line = append(line, `,"reason":"the client closed the request's stream"}}`...)
	if err := b.write(line); err != nil {
		b.log.Warn("a cancellation could not be written to the server", "error", err)
	}
}

// leave takes a call off the books. Lines for it that were not handed over
// become stray, so that nothing the child wrote is lost.
func (b *Bridge) leave(c *call) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removeLocked(c)
	for {
		it, ok := c.out.pop()
		if !ok {
			break
		}
		b.strayLocked(it)
	}
	b.settleLocked()
}

// cancel ends the exchange of a request that the client cancelled: the server
// will not answer it, or too late.
func (b *Bridge) cancel(id []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.calls[tokenKey(id)]
	if c == nil || c.method == methodInitialize {
		return
	}
	if c.waiting != nil {
		delete(b.calls, tokenKey(id))
		delete(c.waiting, tokenKey(id))
		c.out.signal()
		return
	}
	c.dropped = true
	b.removeLocked(c)
	c.out.signal()
}

// errTooLarge is a body over the bound.
var errTooLarge = errors.New("the message is longer than the shim accepts")

func readBody(r *http.Request, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, errTooLarge
	}
	var buf bytes.Buffer
	if n := r.ContentLength; n > 0 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, int64(limit)+1)); err != nil {
		return nil, errors.New("the message could not be read to its end")
	}
	if buf.Len() > limit {
		return nil, errTooLarge
	}
	return buf.Bytes(), nil
}

// answer writes a whole JSON body, or none.
func answer(w http.ResponseWriter, status int, body []byte) error {
	h := w.Header()
	if body != nil {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}
