package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// holder keeps the closing message of each operation from the client until its
// outcome is acknowledged (hold_answers). A stream goes on event by event: its
// client can act on an event only when it has its end, so what waits is the one
// event that closes an operation. Any other answer waits as a whole, with its
// status, since an error may have to take its place.
//
// It belongs to a tee, and is used under its lock. A nil holder holds nothing.
type holder struct {
	body   bool // the answer is no stream, and its status was not sent
	status int
	begun  bool   // what waits has gone out but for its end, being too large
	tail   []byte // the end of such an answer

	closed  []*operation // by the message at hand
	refused bool         // an outcome of these could not be recorded
}

// whole reports whether an answer is held as a whole.
func (h *holder) whole() bool { return h != nil && h.body }

// heldTail is how much of an answer too large to be held is kept back: its
// client cannot read the message without its end.
const heldTail = 4 << 10

// errWithheld is why an answer that has begun is cut.
var errWithheld = errors.New("the outcome of a call could not be recorded, so its answer was withheld")

const withheldText = "audit log unavailable, the call was made, but its answer is withheld"

// startHolding decides what of an answer is held.
func (t *tee) startHolding(status int) {
	if !t.x.h.HoldAnswers || t.mode == teeBlocked {
		return
	}
	if t.mode == teeSSE {
		t.holding = new(holder)
	} else if len(t.x.pending) > 0 {
		t.holding = &holder{body: true, status: status}
	}
}

// closeAnswered records the outcome of an operation whose closing message is
// at hand: before that goes on if it is held, else without waiting.
func (x *exchange) closeAnswered(o *operation, out auditlog.Outcome) {
	h := x.tee.holding
	if h == nil {
		o.end(out)
		return
	}
	h.closed = append(h.closed, o)
	err := o.endFirst(out)
	if err == nil {
		return
	}
	onFailure := x.h.settings.OnFailure
	if onFailure == onFailureAllow || onFailure == onFailureAllowReads && o.method != methodToolsCall {
		return
	}
	h.refused = true
	x.lease.unavailable(false, err, x.h.logger)
}

// verdict returns the operations that get an error in place of the message at
// hand; none if it may go on.
func (h *holder) verdict() (refused []*operation) {
	if h == nil {
		return nil
	}
	if h.refused {
		refused = h.closed
	}
	h.closed, h.refused = nil, false
	return refused
}

// withheld are the events that stand in the place of one that is withheld. One
// that has begun can only be cut off.
func (t *tee) withheld(refused []*operation) (events []byte) {
	if t.holding.begun {
		t.denied = errors.Join(t.denied, errWithheld)
		return nil
	}
	for _, o := range refused {
		events = append(events, sseEvent(mcp.AppendError(nil, o.rawID, mcp.UnavailableCode(o.modern), withheldText, nil))...)
	}
	return events
}

// passTail hands on an answer that is too large to be held, but for its end.
func (t *tee) passTail(before, p []byte) error {
	h := t.holding
	if !h.begun {
		h.begun = true
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
	n, err := t.ResponseWriter.Write(p) //nolint:gosec // the server's bytes go on as they are
	t.begun = t.begun || n > 0
	t.sent(err)
	return err
}

// completeHeld ends an answer that was held as a whole.
func (t *tee) completeHeld() error {
	h, x := t.holding, t.x
	t.mu.Lock()
	defer t.mu.Unlock()
	body := t.buf
	t.learn()
	t.stop(false)
	var instead []byte
	denied := false
	if t.held {
		t.held = false
		if instead, denied = t.judgeHeld(); denied {
			t.done = true
		}
	}
	if !t.done && t.size > 0 {
		t.done = true
		x.answerBody(t, false)
	}
	if h.verdict() != nil {
		if h.begun {
			panic(http.ErrAbortHandler)
		}
		x.writeUnavailable(withheldText)
		return nil
	}
	if denied {
		t.sent(t.sendInstead(instead))
		return nil
	}
	x.setFinishing(true)
	if !h.begun {
		h.begun = true
		t.ResponseWriter.WriteHeader(h.status)
	}
	_ = t.send(append(h.tail, body...))
	if t.joiner != nil {
		_, err := t.ResponseWriter.Write(t.joiner.End(nil))
		t.sent(err)
	}
	return nil
}

// writeUnavailable answers in place of the server: with an error for each
// request of the exchange, and with the errors of what was denied.
func (x *exchange) writeUnavailable(text string) {
	h := x.w.Header()
	for _, name := range []string{"Content-Encoding", "Set-Cookie", "Etag", "Last-Modified", "Digest", "Content-Md5", "Trailer"} {
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
	x.tee.sent(x.writeAnswer(http.StatusOK, body))
}
