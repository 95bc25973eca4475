package caddymodule

import (
	"errors"
	"net/http"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// Why a server's message does not go on.
var (
	errAskDenied = errors.New("the policy denies what the server asks its client for, so the stream was cut")
	errUnjudged  = errors.New("a message of the server is too large to be judged, so the stream was cut")
)

// judgesAsks reports whether the policy can deny what a server asks for, so
// that its messages must be read before they go on.
func (x *exchange) judgesAsks() bool { return !x.h.observe() && x.h.policy.JudgesServers() }

// judgeServerRequest judges a server's request and writes the decision into
// its record. What two clients could read differently is denied.
func (x *exchange) judgeServerRequest(m *mcp.Message, data []byte, base *auditlog.Message) policy.Decision {
	if x.h.Policy == nil {
		return policy.Decision{Allow: true}
	}
	c := x.call(base.ProtocolVersion)
	c.Read(m, data)
	c.FromServer = true
	d := x.h.policy.Decide(&c)
	if d.Allow && d.InScope && x.h.policy.JudgesServers() {
		if _, _, fault := mcp.Scan(m.Whole.Of(data), nil); fault != nil {
			d = policy.Decision{InScope: true, Anomaly: "ambiguous_request", Reason: fault.Why}
		}
	}
	x.noteDecision(base, d)
	return d
}

// judgeAnswer judges what an answer asks the client for. The first question
// that is denied is the decision.
func (x *exchange) judgeAnswer(m *mcp.Message, data []byte) policy.Decision {
	d := policy.Decision{Allow: true}
	clear := policy.Asked(m, data, x.call(x.revision), func(c *policy.Call) {
		if !d.Allow {
			return
		}
		if d = x.h.policy.Decide(c); !d.Allow {
			d.Of = c.Method
		}
	})
	if d.Allow && !clear {
		d = policy.Decision{InScope: true, Anomaly: "ambiguous_answer", Reason: "clients may read other questions in the answer"}
	}
	return d
}

// observeAnswer notes in an outcome what an answer asks for and the policy would
// deny, where that is only observed.
func (x *exchange) observeAnswer(m *mcp.Message, data []byte, out *auditlog.Outcome) {
	if !x.h.observe() || !x.h.policy.JudgesServers() {
		return
	}
	if d := x.judgeAnswer(m, data); !d.Allow {
		out.Policy = x.recorded(d)
		out.Anomaly = append(slices.Clip(out.Anomaly), "denied")
	}
}

// withholdRequest records a server's request that does not go on, and answers
// it in the client's place, so that the tool that waits for it goes on.
func (x *exchange) withholdRequest(m *mcp.Message, data []byte, base auditlog.Message) {
	base.OperationID = auditlog.NewOperationID()
	e := auditlog.Event{
		Message: base,
		Result:  auditlog.Denied,
		Params:  x.payload("params", m.Params.Of(data), int(x.h.Capture)),
		Request: m.Whole.Of(data),
	}
	x.eventAfter(e)
	x.lease.series.decided(base.Policy)
	x.lease.series.refused(entryOf(&base, x.h.plainLabels()), true, "policy", auditlog.Denied)
	x.h.events.refused(x.h.settings.name, &e)
	x.answerServer(mcp.AppendError(nil, m.ID.Of(data), mcp.DeniedCode(mcp.Modern(base.ProtocolVersion)), deniedMessage, nil))
}

// withholdAnswer closes the operation whose answer does not go on, unless that
// was done before, and returns the error that its client gets.
func (x *exchange) withholdAnswer(m *mcp.Message, data []byte, d policy.Decision, again bool) []byte {
	modern := mcp.Modern(x.revision)
	var about []byte
	o := x.answered(m, data)
	switch {
	case again:
	case o == nil:
		x.serverEvent(m, data, "unmatched_answer", "denied")
	default:
		modern = o.modern
		out := x.outcome(m, data, m.Whole.Of(data), auditlog.ServerToClient)
		out.Result, out.Reason, out.Policy = auditlog.Denied, "policy", x.recorded(d)
		x.lease.series.decided(out.Policy)
		out.HTTPStatus = x.oddStatus()
		out.Anomaly = slices.Clip(x.anomaly)
		if d.Anomaly != "" {
			out.Anomaly = append(out.Anomaly, d.Anomaly)
		}
		x.closeAnswered(o, out)
		if o.op != nil {
			about = x.errorData(&refusal{decided: &auditlog.Message{Policy: out.Policy}}, o.op.ID())
		}
	}
	id := m.ID.Of(data)
	if (m.IDType == mcp.IDNone || m.IDType == mcp.IDNull) && len(x.msgs) == 1 {
		id = x.msgs[0].ID.Of(x.body)
	}
	return mcp.AppendError(nil, id, mcp.DeniedCode(modern), deniedMessage, about)
}

// sift reads the bytes of a stream and returns those that go on: an event goes
// on when it is whole, and one that the policy denies does not, but what stands
// in its place. Half an event is of no use to a client, so holding it back
// costs it nothing.
func (t *tee) sift(p []byte) (out []byte) {
	for len(p) > 0 {
		n := lineLen(p)
		line := p[:n]
		p = p[n:]
		t.tail = append(t.tail, line...)
		t.feed(line)
		switch {
		case t.denied != nil:
			return out
		case t.events.Between():
			out = append(out, t.settle()...)
		case len(t.tail) > maxMessage+siftRoom && t.x.judgesAsks():
			t.denied = errUnjudged
			return out
		case len(t.tail) > maxMessage+siftRoom:
			// Only its end can still be held.
			out = append(out, t.tail...)
			t.tail, t.holding.begun = nil, true
		}
	}
	return out
}

// siftRoom is what an event may hold beside its data.
const siftRoom = 64 << 10

// settle ends an event: it returns the bytes that go on.
func (t *tee) settle() []byte {
	whole := t.tail
	if t.tail = t.tail[:0]; cap(t.tail) > siftRoom {
		t.tail = nil
	}
	if refused := t.holding.verdict(); refused != nil {
		t.drop, t.instead = false, nil
		return t.withheld(refused)
	}
	if t.holding != nil {
		t.holding.begun = false
	}
	if !t.drop {
		return whole
	}
	t.drop = false
	instead := t.instead
	t.instead = nil
	return instead
}

// lineLen is the length of the first line with its end.
func lineLen(p []byte) int {
	for i, c := range p {
		switch {
		case c == '\n':
			return i + 1
		case c == '\r' && i+1 < len(p) && p[i+1] == '\n':
			return i + 2
		case c == '\r':
			return i + 1
		}
	}
	return len(p)
}

// judgeEvent judges what an event must not bring to the client: an answer that
// asks for what is denied, and, of an event that was recorded before, a request.
// It reports whether the event does not go on.
func (t *tee) judgeEvent(msgs []mcp.Message, data []byte, seen bool) bool {
	for i := range msgs {
		m := &msgs[i]
		if m.Kind == mcp.KindRequest {
			if !seen {
				continue
			}
			base := t.x.serverBase(m, data)
			if !t.x.judgeServerRequest(m, data, &base).Allow {
				t.deny(len(msgs) == 1, nil)
				return true
			}
			continue
		}
		if d := t.x.judgeAnswer(m, data); !d.Allow {
			t.deny(len(msgs) == 1, t.x.withholdAnswer(m, data, d, seen))
			return true
		}
	}
	return false
}

// deny keeps the current event from going on; the client gets instead, if that
// is not empty. An event that has gone in part, or carries other messages too,
// can only be cut off.
func (t *tee) deny(alone bool, instead []byte) {
	if !t.sifting || !alone {
		t.denied = errAskDenied
		return
	}
	t.drop = true
	if len(instead) > 0 {
		t.instead = sseEvent(instead)
	}
}

// holdsAnswer reports whether an answer in one piece must be read before any of
// it goes on.
func (x *exchange) holdsAnswer() bool {
	if x.batch || len(x.pending) != 1 || !x.judgesAsks() {
		return false
	}
	o := x.pending[0]
	return o.origin != nil || isTaskMethod(o.method)
}

// releaseHeld sends an answer that was held, or the error that stands in its
// place.
func (t *tee) releaseHeld() error {
	t.held = false
	t.learn()
	body := t.buf
	if instead, denied := t.judgeHeld(); denied {
		return t.sendInstead(instead)
	}
	t.ResponseWriter.WriteHeader(t.status)
	if len(body) == 0 {
		return nil
	}
	_, err := t.ResponseWriter.Write(body)
	t.begun = true
	return err
}

// sendInstead answers in place of an answer that was held.
func (t *tee) sendInstead(instead []byte) error {
	t.done, t.begun = true, true
	h := t.Header()
	for _, name := range []string{"Content-Encoding", "Content-Length", "Trailer"} {
		h.Del(name)
	}
	return t.x.writeAnswer(http.StatusOK, instead)
}

// judgeHeld judges a whole answer. One that is too large, or cannot be decoded,
// cannot be judged, so it is denied.
func (t *tee) judgeHeld() (instead []byte, denied bool) {
	x := t.x
	body, err := t.buf, error(nil)
	if t.encoding != "" {
		body, err = decodeAll(t.encoding, body, maxMessage)
	}
	if t.size > maxMessage || err != nil {
		o := x.pending[0]
		x.closeAnswered(o, auditlog.Outcome{Result: auditlog.Denied, Direction: auditlog.ServerToClient, Reason: "policy",
			ResponseHash: t.hash, HTTPStatus: x.oddStatus(), Anomaly: append(x.anomaly, "unjudged_answer"),
			Policy: x.recorded(policy.Decision{InScope: true, Reason: "the answer cannot be judged: it is too large, or cannot be decoded"})})
		return mcp.AppendError(nil, x.msgs[0].ID.Of(x.body), mcp.DeniedCode(o.modern), deniedMessage, nil), true
	}
	var scratch [1]mcp.Message
	msgs, _, _ := mcp.ScanAnswer(body, scratch[:0])
	for i := range msgs {
		if d := x.judgeAnswer(&msgs[i], body); !d.Allow {
			return x.withholdAnswer(&msgs[i], body, d, false), true
		}
	}
	return nil, false
}
