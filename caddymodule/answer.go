package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// answerBody reads an answer that came in one piece. Of one that was cut, and
// whose length nobody stated, only a whole message counts; what is no message
// may have become one.
func (x *exchange) answerBody(t *tee, cut bool) {
	cut = cut && t.declared < 0
	if t.hash != nil || t.buf == nil {
		if !cut {
			x.oversizedAnswer(t)
		}
		return
	}
	body := t.buf
	if t.encoding != "" {
		decoded, err := decodeAll(t.encoding, body, maxMessage)
		if errors.Is(err, errTooLarge) && !cut {
			x.oversizedAnswer(t)
			return
		}
		if err != nil {
			if !cut {
				x.anomaly = append(x.anomaly, "unreadable_encoding")
				x.unreadableAnswer(t, body)
			}
			return
		}
		body = decoded
	}
	var scratch [1]mcp.Message
	msgs, _, fault := mcp.ScanAnswer(body, scratch[:0])
	if fault != nil && (cut || len(msgs) == 0) {
		// The text of an acceptance is no answer: that comes on a stream.
		if !cut && t.status != http.StatusAccepted {
			x.unreadableAnswer(t, body)
		}
		return
	}
	for i := range msgs {
		m := &msgs[i]
		if m.Kind == mcp.KindRequest {
			// Not held back: JSON answers carry no server requests in any
			// revision, so this is a record of something odd, not a gate.
			_ = x.serverRequest(m, body, true)
			continue
		}
		x.serverMessage(m, body)
	}
}

// serverMessage records a message that has gone to the client: an answer
// closes its operation, progress is counted, the rest is an event.
func (x *exchange) serverMessage(m *mcp.Message, data []byte) {
	switch m.Kind {
	case mcp.KindResult, mcp.KindError:
		o := x.answered(m, data)
		if o == nil {
			x.serverEvent(m, data, "unmatched_answer")
			return
		}
		x.learnDecisions(m, data)
		if m.Kind == mcp.KindError {
			o.code.Store(errorCode(m, data))
		}
		if o.method == methodToolsList && m.Kind == mcp.KindResult {
			x.lease.series.learn(m.Result.Of(data))
			if x.h.pins != nil && !x.h.enforcesPins() {
				_ = x.seeTools(o, m, data)
			}
			if o.modern {
				x.lease.tools.learn(x.h.ServerID, ownerOf(x.principal), m.Result.Of(data))
			}
		}
		out := x.outcome(m, data, m.Whole.Of(data), auditlog.ServerToClient)
		out.HTTPStatus = x.oddStatus()
		out.Anomaly = x.anomaly
		if o.method == methodInitialize {
			out.SessionID = x.opened
		}
		x.observeAnswer(m, data, &out)
		x.closeAnswered(o, out)
	case mcp.KindNotification:
		if mcp.Text(m.Method.Of(data)) == "notifications/progress" {
			if o := x.inProgress(m, data); o != nil {
				o.progress.Add(1)
				return
			}
		}
		x.serverEvent(m, data)
	default:
		x.serverEvent(m, data, "unreadable_message")
	}
}

// answered finds the operation that an answer closes: of this exchange first,
// then of the session, since an answer may come on another stream. An error
// without an id can only mean the one request there is.
func (x *exchange) answered(m *mcp.Message, data []byte) *operation {
	if m.IDType == mcp.IDNone || m.IDType == mcp.IDNull {
		if m.Kind == mcp.KindError && len(x.pending) == 1 && !x.pending[0].ended.Load() {
			return x.pending[0]
		}
		return nil
	}
	id := mcp.IDKey(m.ID.Of(data), m.IDType)
	for _, o := range x.pending {
		if o.key.id == id && !o.ended.Load() {
			return o
		}
	}
	return x.lease.open.find(operationKey{scope: x.scope(), direction: auditlog.ClientToServer, id: id})
}

// inProgress finds the operation that a progress notification belongs to: by its
// token, here or in the session, since it may come on another stream; else by
// the stream.
func (x *exchange) inProgress(m *mcp.Message, data []byte) *operation {
	if token := m.ProgressToken.Of(data); token != nil {
		key := x.progressKey(token)
		for _, o := range x.pending {
			if o.token == key && !o.ended.Load() {
				return o
			}
		}
		if o := x.lease.open.find(key); o != nil {
			return o
		}
	}
	return x.firstPending()
}

func (x *exchange) firstPending() *operation {
	for _, o := range x.pending {
		if !o.ended.Load() {
			return o
		}
	}
	return nil
}

// oddStatus is the HTTP status of the answer if it is not the usual one.
func (x *exchange) oddStatus() int {
	if x.tee.status == http.StatusOK {
		return 0
	}
	return x.tee.status
}

// serverRequest judges a server's request and records its intent before the
// client can see it. An error means that the request must not go on. gone says
// that it has all the same.
func (x *exchange) serverRequest(m *mcp.Message, data []byte, gone bool) error {
	base := x.serverBase(m, data)
	if d := x.judgeServerRequest(m, data, &base); !d.Allow && !x.h.observe() {
		if !gone {
			x.withholdRequest(m, data, base)
			return errAskDenied
		}
		base.Anomaly = append(base.Anomaly, "denied")
	}
	o := &operation{
		log:     x.lease.sharedLog,
		method:  base.Method,
		started: time.Now(),
		counted: entryOf(&base, x.h.plainLabels()),
		span:    x.startSpan(m, data, &base),
		key: operationKey{
			scope:     x.scope(),
			direction: auditlog.ServerToClient,
			id:        mcp.IDKey(m.ID.Of(data), m.IDType),
		},
	}
	log, err := x.lease.opened(x.r.Context(), x.h.settings)
	if err == nil {
		o.op, err = log.Begin(x.r.Context(), auditlog.Intent{
			Message: base,
			Params:  x.payload("params", m.Params.Of(data), int(x.h.Capture)),
			Request: m.Whole.Of(data),
		})
	}
	if err != nil {
		forward := x.h.settings.OnFailure != onFailureBlock
		x.lease.unavailable(forward, err, x.h.logger)
		if !forward {
			endSpan(o.span, "", auditlog.InternalError, 0)
			return err
		}
	}
	o.lease = acquire(x.lease.path)
	x.lease.series.decided(base.Policy)
	x.lease.open.add(o)
	x.asked = append(x.asked, o)
	return nil
}

// serverEvent records a server's message that is no operation.
func (x *exchange) serverEvent(m *mcp.Message, data []byte, anomaly ...string) {
	base := x.serverBase(m, data)
	base.Anomaly = append(base.Anomaly, anomaly...)
	capture := int(x.h.Capture)
	e := auditlog.Event{Message: base, Request: m.Whole.Of(data)}
	e.Params = x.payload("params", m.Params.Of(data), capture)
	e.Answer = x.payload("result", m.Result.Of(data), capture)
	e.Error = x.payload("error", m.Error.Of(data), capture)
	x.eventAfter(e)
}

// unreadableMessage records stream data that is no JSON-RPC message. Calls
// stay open: one odd event says nothing about their answers.
func (x *exchange) unreadableMessage(data []byte, fault *mcp.ScanError) {
	base := x.message(nil)
	base.Direction = auditlog.ServerToClient
	base.Reason = fault.Why
	base.Anomaly = append(base.Anomaly, "unreadable_message")
	x.eventAfter(auditlog.Event{Message: base, Params: x.payload("", data, refusalCapture), Request: data})
}

// eventAfter writes an event of a message that is on its way: a failure can
// only be counted.
func (x *exchange) eventAfter(e auditlog.Event) {
	// The message was there, whether or not the client still is.
	err := x.event(context.WithoutCancel(x.r.Context()), e)
	switch {
	case err == nil:
	case errors.Is(err, errStopped) || errors.Is(err, auditlog.ErrClosed):
		// The calls of this exchange were closed with reason shutdown.
		x.h.logger.Warn("a server's message came after the log was closed", zap.String("method", e.Method))
	default:
		x.lease.unavailable(true, err, x.h.logger)
	}
}

func (x *exchange) serverBase(m *mcp.Message, data []byte) auditlog.Message {
	base := x.message(nil)
	base.Direction = auditlog.ServerToClient
	base.TraceParent = ""
	if version := x.lease.sessions.version(x.entered); version != "" && !x.stateless {
		// A stream may be older than what its session negotiated.
		base.ProtocolVersion = version
	}
	describe(&base, m, data, x.h.redact)
	if o := x.firstPending(); o != nil && o.op != nil {
		base.ParentSeq, base.HasParent = o.op.Seq(), true
	}
	return base
}

// newHash begins the hash of an answer that is too large to be held; nil if it
// is not clear whose answer it is.
func (x *exchange) newHash() *auditlog.WireHash {
	if len(x.pending) != 1 || x.pending[0].op == nil {
		return nil
	}
	return x.pending[0].op.NewWireHash()
}

// oversizedEvent notes an event too large to be read. If one call is open, it
// is taken for its answer; nothing else on a call's stream has that size.
func (x *exchange) oversizedEvent(size int64, hash *auditlog.WireHash) {
	reason := "event of " + strconv.FormatInt(size, 10) + " bytes not read"
	if o := x.firstPending(); o != nil && len(x.pending) == 1 {
		x.closeAnswered(o, auditlog.Outcome{Result: auditlog.Success, Direction: auditlog.ServerToClient,
			ResponseHash: hash, Reason: reason, Anomaly: append(x.anomaly, "oversized_answer")})
		return
	}
	base := x.message(nil)
	base.Direction = auditlog.ServerToClient
	base.Reason = reason
	base.Anomaly = append(base.Anomaly, "oversized_message")
	x.eventAfter(auditlog.Event{Message: base})
}

// oversizedAnswer closes the call whose answer was too large to be read.
func (x *exchange) oversizedAnswer(t *tee) {
	for _, o := range x.pending {
		result := auditlog.Success
		if t.status >= http.StatusBadRequest {
			result = auditlog.UpstreamError
		}
		x.closeAnswered(o, auditlog.Outcome{Result: result, Direction: auditlog.ServerToClient,
			ResponseHash: t.hash, HTTPStatus: x.oddStatus(),
			Reason:  "answer of " + strconv.FormatInt(t.size, 10) + " bytes not read",
			Anomaly: append(x.anomaly, "oversized_answer")})
	}
}

// unreadableAnswer closes the calls of an exchange whose answer is no
// JSON-RPC message, for example an error page.
func (x *exchange) unreadableAnswer(t *tee, body []byte) {
	result := auditlog.MalformedResponse
	if t.status >= http.StatusBadRequest {
		result = statusResult(t.status)
	}
	for _, o := range x.pending {
		x.closeAnswered(o, auditlog.Outcome{Result: result, Direction: auditlog.ServerToClient,
			HTTPStatus: t.status, Answer: x.payload("", body, refusalCapture), Response: body,
			Reason: "the answer is no JSON-RPC message", Anomaly: x.anomaly})
	}
}

func statusResult(status int) auditlog.Result {
	if status == http.StatusGatewayTimeout {
		return auditlog.Timeout
	}
	return auditlog.UpstreamError
}

// blockAnswer answers in place of a server whose answer cannot be read.
func (x *exchange) blockAnswer() {
	x.answerInstead("the server's answer has an encoding that cannot be recorded", "the answer's encoding cannot be read, so it was withheld")
}

// withhold is blockAnswer for an answer that was held and must not go on.
func (x *exchange) withhold(t *tee, reason string) {
	if t.status != 0 {
		return
	}
	t.status, t.mode = http.StatusOK, teeBlocked
	x.answerInstead("the server's answer was withheld", reason)
}

// answerInstead answers every request of the exchange with an error, and
// closes the operations.
func (x *exchange) answerInstead(text, reason string) {
	x.writeUnavailable(text)
	for _, o := range x.pending {
		o.end(auditlog.Outcome{Result: auditlog.MalformedResponse, Direction: auditlog.ServerToClient,
			Reason: reason, Anomaly: x.anomaly})
	}
}

// undecodable records that the rest of a stream cannot be decoded. An error
// says that it must not go on.
func (x *exchange) undecodable(cause error) error {
	x.anomaly = append(x.anomaly, "unreadable_encoding")
	base := x.message(nil)
	base.Direction = auditlog.ServerToClient
	base.Reason = "the stream cannot be decoded: " + cause.Error()
	x.eventAfter(auditlog.Event{Message: base})
	if x.h.settings.OnFailure != onFailureBlock || x.h.observe() {
		return nil
	}
	return errUndecodable
}

// alreadySeen reports whether an event of a resumed stream was recorded before:
// servers send what they think their client has missed.
func (x *exchange) alreadySeen(ev mcp.SSEEvent) bool {
	if x.entered == nil || ev.ID == "" {
		return false
	}
	seen := x.lease.sessions.replayed(x.entered, ev.ID, ev.Data)
	if seen && x.resumed {
		x.h.debug("an event was sent again and is not recorded twice", zap.Int("bytes", len(ev.Data)))
		return true
	}
	return false
}

// finish closes what is still open when the exchange is over, with its cause.
func (x *exchange) finish(panicked any, err error) {
	x.tee.end(panicked != nil || err != nil)
	for _, o := range x.pending {
		if !o.ended.Load() {
			x.abandon(o, panicked, err)
		}
	}
	for _, o := range x.asked {
		// The client answers with a request of its own, perhaps after this
		// stream has ended.
		if !o.ended.Load() && !x.lease.open.park(o, auditlog.Timeout) {
			o.end(auditlog.Outcome{Result: auditlog.Timeout, Reason: "the stream ended before the answer"})
		}
	}
	x.endStream(x.clientGone(panicked != nil || err != nil))
	x.hintCredential()
	x.endSession(x.tee.status)
}

// abandon closes an operation whose answer did not come on its exchange, or
// leaves it open if it can come on another.
func (x *exchange) abandon(o *operation, panicked any, err error) {
	t := x.tee
	out := auditlog.Outcome{HTTPStatus: t.status, Anomaly: x.anomaly}
	var handlerErr caddyhttp.HandlerError
	switch {
	case x.clientGone(panicked != nil || err != nil):
		if !o.cancelled.Load() && x.mayResume() && x.lease.open.park(o, auditlog.ClientDisconnect) {
			return
		}
		out.HTTPStatus = 0
		out.Result, out.Reason = auditlog.ClientDisconnect, "the client closed the connection"
		if o.modern || o.cancelled.Load() {
			out.Result = auditlog.Cancelled
		}
	case o.cancelled.Load():
		out.Result, out.Reason = auditlog.Cancelled, "the client cancelled the request"
	case errors.Is(t.denied, errAskDenied), errors.Is(t.denied, errUnjudged):
		out.Result, out.Reason = auditlog.Denied, t.denied.Error()
	case errors.Is(t.denied, errUndecodable):
		out.Result, out.Reason = auditlog.MalformedResponse, t.denied.Error()
	case t.denied != nil:
		out.Result, out.Reason = auditlog.InternalError, "a server request could not be recorded, so the stream was cut"
	case errors.As(err, &handlerErr):
		out.Result, out.Reason, out.HTTPStatus = statusResult(handlerErr.StatusCode), "the server could not be reached", handlerErr.StatusCode
	case err != nil:
		out.Result, out.Reason = auditlog.UpstreamError, "the server could not be reached"
	case panicked != nil && !isAbort(panicked):
		out.Result, out.Reason = auditlog.InternalError, "a handler panicked"
	case panicked != nil:
		out.Result, out.Reason = auditlog.UpstreamError, "the server closed the connection before the answer"
		if x.mayResume() && x.lease.open.park(o, auditlog.Timeout) {
			return
		}
	case t.status >= http.StatusBadRequest:
		out.Result, out.Reason = statusResult(t.status), "the server answered with an HTTP error"
	default:
		if x.mayResume() && x.lease.open.park(o, auditlog.Timeout) {
			return
		}
		out.Result, out.Reason = auditlog.UpstreamError, "the exchange ended without the answer"
	}
	o.end(out)
}

// clientGone reports whether an exchange ended because its client left. One
// that came to its regular end did not, even if the client left right after it.
func (x *exchange) clientGone(cut bool) bool {
	t := x.tee
	return t.clientErr != nil || t.status == statusClientGone || x.client.Err() != nil && (cut || t.status == 0)
}

// mayResume reports whether the answer of a call may still come on another
// stream: an accepted POST of the HTTP+SSE transport, or a stream with event
// ids in a session.
func (x *exchange) mayResume() bool {
	return x.session != "" && !x.stateless && (x.tee.status == http.StatusAccepted || x.tee.mode == teeSSE && x.tee.eventIDs)
}

// Why a stream is cut.
var (
	errForeignEndpoint = errors.New("the server sends its clients to another origin, so the stream was cut")
	errUndecodable     = errors.New("the stream cannot be decoded, so it was cut")
)

// statusClientGone is what reverse_proxy writes when the client left before
// the header.
const statusClientGone = 499

func isAbort(p any) bool {
	err, ok := p.(error)
	return ok && (errors.Is(err, http.ErrAbortHandler) || errors.Is(err, context.Canceled))
}

func contentLength(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}
