package caddymodule

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// holder keeps the closing message of each operation from the client until its
// outcome is acknowledged (hold_answers). A stream goes on event by event: its
// client can act on an event only when it has its end, so what waits is the one
// event that closes an operation. Any other answer waits as a whole, with its
// status, since an error may have to take its place.
//
// It belongs to a tee, and is used under its lock.
type holder struct {
	whole  bool // the answer is no stream, and its status was not sent
	status int
	sent   bool   // it was, because the answer is too large to be held
	tail   []byte // the end of such an answer

	base int64  // of a stream: how many bytes came before buf
	buf  []byte // its bytes from the end of the last event on
	out  []byte // what may go on

	closed  []*operation // by the message at hand
	refused bool         // an outcome of these could not be recorded
}

// heldTail is how much of an answer too large to be held is kept back: its
// client cannot read the message without its end.
const heldTail = 4 << 10

// errWithheld is why an answer that has begun is cut.
var errWithheld = errors.New("the outcome of a call could not be recorded, so its answer was withheld")

const withheldText = "audit log unavailable, the call was made, but its answer is withheld"

// startHolding decides what of an answer is held.
func (t *tee) startHolding(status int) {
	x := t.x
	if !x.h.HoldAnswers || t.mode == teeBlocked {
		return
	}
	switch {
	case t.mode == teeSSE:
		t.held = new(holder)
		// An error may take the place of an event.
		t.Header().Del("Content-Length")
		t.declared = -1
	case len(x.pending) > 0:
		t.held = &holder{whole: true, status: status}
	}
}

// closeAnswered records the outcome of an operation whose closing message is
// at hand: before that goes on if it is held, else without waiting.
func (x *exchange) closeAnswered(o *operation, out auditlog.Outcome) {
	held := x.tee.held
	if held == nil {
		o.end(out)
		return
	}
	held.closed = append(held.closed, o)
	err := o.endFirst(out)
	if err == nil {
		return
	}
	onFailure := x.h.settings.OnFailure
	if onFailure == onFailureAllow || onFailure == onFailureAllowReads && o.method != methodToolsCall {
		return
	}
	held.refused = true
	x.lease.unavailable(false, err, x.h.logger)
}

// verdict reports whether the message at hand may go on, and else the
// operations that get an error in its place.
func (h *holder) verdict() (refused []*operation) {
	if h.refused {
		refused = h.closed
	}
	h.closed, h.refused = nil, false
	return refused
}

// take adds bytes of a stream.
func (h *holder) take(p []byte) { h.buf = append(h.buf, p...) }

// eventEnded releases a stream up to the end of an event, or puts errors in
// the place of that event.
func (t *tee) eventEnded(end int64) {
	h := t.held
	if h == nil || t.encoding != "" {
		return
	}
	n := max(0, int(end-h.base))
	refused := h.verdict()
	switch {
	case refused == nil:
		h.out = append(h.out, h.buf[:n]...)
	case h.sent:
		// Its beginning has gone out.
		t.denied = errors.Join(t.denied, errWithheld)
	default:
		for _, o := range refused {
			h.out = append(h.out, sseEvent(withheld(o))...)
		}
	}
	h.buf, h.base, h.sent = h.buf[n:], end, false
}

// withheld is the error that an operation gets in place of its answer.
func withheld(o *operation) []byte {
	return mcp.AppendError(nil, o.rawID, mcp.UnavailableCode(o.modern), withheldText, nil)
}

// released is what of a stream may go on now. What is no part of an event goes
// on at once, and so does the beginning of one that is too large to be held.
func (t *tee) released() []byte {
	h := t.held
	if t.encoding != "" {
		if h.verdict() != nil {
			t.denied = errors.Join(t.denied, errWithheld)
		}
		out := h.buf
		h.buf = nil
		return out
	}
	if t.events.Between() || len(h.buf) > maxMessage+heldTail {
		h.sent = h.sent || !t.events.Between()
		h.out = append(h.out, h.buf...)
		h.base += int64(len(h.buf))
		h.buf = nil
	}
	out := h.out
	h.out = nil
	if cap(h.buf) > 0 && len(h.buf) == 0 {
		h.buf = nil
	}
	return out
}

// endHeldStream hands on the rest of a stream that ended behind an event
// without its blank line, which some clients accept. Of one that was cut, the
// event that is not whole stays here.
func (t *tee) endHeldStream(cut bool) {
	if t.mode != teeSSE {
		return
	}
	if t.decoder != nil {
		t.decoder.close()
		t.decoder = nil
	}
	if cut {
		t.held.buf = nil
		return
	}
	t.events.Close(t.event)
	t.eventEnded(t.held.base + int64(len(t.held.buf)))
	if out := t.released(); t.denied == nil {
		_ = t.send(append(out, t.held.buf...))
	}
	t.held.buf = nil
}

// passTail hands on an answer that is too large to be held, but for its end.
func (t *tee) passTail(before, p []byte) error {
	h := t.held
	if !h.sent {
		h.sent = true
		t.ResponseWriter.WriteHeader(h.status)
	}
	h.tail = append(append(h.tail, before...), p...)
	n := len(h.tail) - heldTail
	if n <= 0 {
		return nil
	}
	err := t.send(h.tail[:n])
	h.tail = append([]byte(nil), h.tail[n:]...)
	return err
}

// send writes bytes of the server, joined with answers of ours.
func (t *tee) send(p []byte) error {
	if t.swallow {
		return nil
	}
	if t.joiner != nil {
		p = t.joiner.Next(nil, p)
	}
	if len(p) == 0 {
		return nil
	}
	n, err := t.ResponseWriter.Write(p)
	t.begun = t.begun || n > 0
	t.sent(err)
	return err
}

// completeHeld ends an answer that was held as a whole.
func (t *tee) completeHeld() error {
	h, x := t.held, t.x
	t.mu.Lock()
	defer t.mu.Unlock()
	body := t.buf
	t.learn()
	t.stop(false)
	if !t.done && t.size > 0 {
		t.done = true
		x.answerBody(t, false)
	}
	if h.verdict() != nil {
		if h.sent {
			panic(http.ErrAbortHandler)
		}
		x.answerInstead(t.ResponseWriter, withheldText)
		return nil
	}
	x.setFinishing(true)
	if !h.sent {
		h.sent = true
		t.ResponseWriter.WriteHeader(h.status)
	}
	_ = t.send(append(h.tail, body...))
	if t.joiner != nil {
		_, err := t.ResponseWriter.Write(t.joiner.End(nil))
		t.sent(err)
	}
	return nil
}

// answerInstead answers in place of the server: with an error for each request
// of the exchange, and with the errors of what was denied.
func (x *exchange) answerInstead(w http.ResponseWriter, text string) {
	h := w.Header()
	for _, name := range []string{"Content-Encoding", "Etag", "Last-Modified", "Digest", "Content-Md5", "Trailer"} {
		h.Del(name)
	}
	code := mcp.UnavailableCode(mcp.Modern(x.revision))
	var body []byte
	if x.batch {
		for _, o := range x.pending {
			x.denials = append(x.denials, mcp.AppendError(nil, o.rawID, code, text, nil))
		}
		body = x.deniedAnswers()
	} else {
		var id []byte
		if len(x.msgs) == 1 && x.msgs[0].Kind == mcp.KindRequest {
			id = x.msgs[0].ID.Of(x.body)
		}
		body = mcp.AppendError(nil, id, code, text, nil)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
}
