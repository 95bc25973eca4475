package caddymodule

import (
	"bytes"
	"net/http"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// openBatch records the elements of a batch one by one. In 2025-03-26, the only
// revision that has batches, an element that is denied gets its own error and
// the others go on, byte for byte, in a smaller array. In every other revision
// the batch is refused.
func (x *exchange) openBatch() *refusal {
	if refused := x.object(x.checkBatch()); refused != nil {
		return refused
	}
	denied := make([]bool, len(x.msgs))
	kept := len(x.msgs)
	for i := range x.msgs {
		refused := x.openMessage(&x.msgs[i])
		if refused == nil {
			continue
		}
		if refused.decided == nil {
			refused.body = x.refuseAll(refused)
			return refused
		}
		id := x.recordRefusal(refused)
		if x.msgs[i].Kind == mcp.KindRequest {
			x.denials = append(x.denials, x.refusalBody(refused, id))
		}
		denied[i] = true
		kept--
	}
	switch kept {
	case len(x.msgs):
		return nil
	case 0:
		refused := &refusal{status: http.StatusOK, reason: "policy", recorded: true}
		switch {
		case len(x.denials) == 0:
		case x.answerOnStream(x.denials...):
			refused.status = http.StatusAccepted
		default:
			refused.body = x.deniedAnswers()
		}
		return refused
	}
	x.smaller, _ = mcp.AppendBatch(nil, x.body, x.msgs, func(i int) bool { return !denied[i] })
	if len(x.denials) > 0 && !x.answerOnStream(x.denials...) {
		x.joiner = &mcp.Joiner{Answers: bytes.Join(x.denials, []byte(","))}
	}
	return nil
}

// refuseAll answers every request of a batch with the error that stopped it;
// nil if the answer is an HTTP error, which says so for the whole batch.
func (x *exchange) refuseAll(refused *refusal) []byte {
	if refused.status != http.StatusOK {
		return nil
	}
	x.denials = nil
	for i := range x.msgs {
		if m := &x.msgs[i]; m.Kind == mcp.KindRequest {
			x.denials = append(x.denials, mcp.AppendError(nil, m.ID.Of(x.body), refused.code, refused.message, nil))
		}
	}
	if len(x.denials) == 0 {
		return nil
	}
	return x.deniedAnswers()
}

// checkBatch says why a batch is refused as a whole.
func (x *exchange) checkBatch() *refusal {
	refused := &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest}
	switch {
	case x.revision != mcp.Revision20250326:
		refused.reason, refused.message = "batch", "only revision 2025-03-26 has batches; send one message a request"
	case mcp.RepeatedID(x.body, x.msgs):
		refused.reason, refused.message = "batch_repeated_id", "two requests of the batch have the same id"
	case x.hasInitialize():
		refused.reason, refused.message = "batch_initialize", "initialize must not be part of a batch"
	default:
		return nil
	}
	return refused
}

func (x *exchange) hasInitialize() bool {
	for i := range x.msgs {
		if m := &x.msgs[i]; m.Kind == mcp.KindRequest && mcp.Text(m.Method.Of(x.body)) == methodInitialize {
			return true
		}
	}
	return false
}

// deniedAnswers is the array of the answers to what was denied.
func (x *exchange) deniedAnswers() []byte {
	out := append([]byte{'['}, bytes.Join(x.denials, []byte(","))...)
	return append(out, ']')
}

// startJoining decides how the answers to denied elements reach the client
// beside the server's: in its array, as events of its stream, or, if it has
// nothing to answer, alone. It returns the status to be sent.
func (t *tee) startJoining(status int) int {
	x := t.x
	if x.joiner == nil {
		return status
	}
	joiner := x.joiner
	x.joiner = nil
	if status < 200 || status > 299 || t.encoding != "" {
		// The client takes the whole batch for failed, or what it gets cannot
		// be joined, which has its anomaly.
		return status
	}
	h := t.Header()
	switch {
	case t.mode == teeSSE:
		for _, denial := range x.denials {
			t.queueEvent(denial)
		}
		return status
	case status == http.StatusAccepted || status == http.StatusNoContent || t.declared == 0:
		t.swallow = true
		status = http.StatusOK
		h.Set("Content-Type", "application/json")
	case mediaType(h) != "application/json":
		return status
	}
	h.Del("Content-Length")
	t.joiner = joiner
	return status
}

// sseEvent is an event with one message.
func sseEvent(message []byte) []byte {
	out := append([]byte("event: message\ndata: "), message...)
	return append(out, '\n', '\n')
}

// answerOnStream sends answers on the stream of the HTTP+SSE transport where
// the client of this session waits for them. It reports false if there is none.
func (x *exchange) answerOnStream(answers ...[]byte) bool {
	stream := x.lease.sessions.stream(x.entered)
	if stream == nil {
		return false
	}
	var frames []byte
	for _, a := range answers {
		frames = append(frames, sseEvent(a)...)
	}
	return stream.inject(frames)
}
