package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// exchange carries one HTTP request through the handler: what was read of it,
// who sent it and which operations it opened. It belongs to one goroutine.
type exchange struct {
	h      *Handler
	lease  *lease
	w      http.ResponseWriter
	r      *http.Request   // its context ends with the client or at shutdown
	client context.Context // ends with the client alone
	abort  context.CancelFunc

	body   []byte
	pooled *messageList // holds msgs
	rest   io.Reader    // what of an oversized body is still unread, in observe mode
	msgs   []mcp.Message
	batch  bool

	session   string   // id that the request names, or that its stream belongs to
	entered   *session // it, if it is known
	revision  string
	stateless bool // of revision 2026-07-28, which has no sessions
	resumed   bool // a stream that goes on after the event it names
	// carriesAnswers: the stream is that of an HTTP+SSE session.
	carriesAnswers bool
	principal      *auditlog.Principal
	caller         *policy.Caller // the same, as the policy sees it
	clientID       string
	anomaly        []string

	pending []*operation // requests of the client in this exchange
	asked   []*operation // requests of the server in this exchange

	stripped   bool   // the client's credential does not go on
	finishing  bool   // counted in the log's finishing
	initialize bool   // one of the requests opens a session
	opened     string // the session that its answer opened
	attempts   atomic.Int32
	answering  atomic.Bool // the server answered the last attempt

	smaller []byte      // of a batch, what is forwarded in place of body; nil: body
	denials [][]byte    // of a batch, the answers to what is not forwarded
	joiner  *mcp.Joiner // of those answers with the server's

	next caddyhttp.Handler
	tee  *tee
}

// messageLists holds lists of scanned messages between exchanges. Bodies are
// not pooled: the transport may still be sending one when the exchange is over,
// after an early answer or a cancelled request.
var messageLists = sync.Pool{New: func() any { return new(messageList) }}

type messageList struct{ msgs []mcp.Message }

// keepMessages is the longest list that is kept for the next exchange.
const keepMessages = 16

func newExchange(h *Handler, l *lease, w http.ResponseWriter, r *http.Request, client context.Context, abort context.CancelFunc) *exchange {
	return &exchange{h: h, lease: l, w: w, r: r, client: client, abort: abort}
}

// open identifies the caller and records what is about to be forwarded: an
// intent for a request, an event for anything else. It returns why the
// exchange is refused instead, or nil.
func (x *exchange) open() *refusal {
	x.principal, x.clientID = x.h.identify(x.r)
	if refused := x.checkOwner(); refused != nil {
		return refused
	}
	if len(x.msgs) == 0 {
		return x.openPlain()
	}
	if x.batch {
		return x.openBatch()
	}
	if refused := x.checkParams(&x.msgs[0]); refused != nil {
		return refused
	}
	return x.openMessage(&x.msgs[0])
}

// openPlain records a request without a readable MCP message: GET and DELETE
// of a session, and in observe mode what cannot be parsed.
func (x *exchange) openPlain() *refusal {
	event := auditlog.Event{Message: x.message(nil)}
	if x.body != nil {
		event.Params = x.payload("", x.body, refusalCapture)
		event.Request = x.body
	}
	if x.r.Method != http.MethodPost {
		event.Reason = "http " + methodName(x.r.Method)
	}
	if err := x.event(x.r.Context(), event); err != nil {
		return x.unrecorded(nil, err)
	}
	return nil
}

// methodName is an HTTP method as records name it. What is none of the usual
// ones is the client's text and stays out.
func methodName(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return "other method"
}

func (x *exchange) openMessage(m *mcp.Message) *refusal {
	base := x.message(m)
	switch m.Kind {
	case mcp.KindRequest:
		if refused := x.judge(m, &base); refused != nil {
			return refused
		}
		return x.openRequest(m, base)
	case mcp.KindNotification:
		if refused := x.judge(m, &base); refused != nil {
			return refused
		}
		x.noteCancellation(m)
		return x.openNotification(m, base)
	default:
		return x.openAnswer(m, base)
	}
}

// openRequest writes the intent of a request.
func (x *exchange) openRequest(m *mcp.Message, base auditlog.Message) *refusal {
	intent := auditlog.Intent{
		Message: base,
		Params:  x.payload("params", m.Params.Of(x.body), 0),
		Request: m.Whole.Of(x.body),
	}
	o := &operation{
		log:     x.lease.sharedLog,
		method:  base.Method,
		modern:  mcp.Modern(base.ProtocolVersion),
		started: time.Now(),
		counted: entryOf(&base, x.h.plainLabels()),
		abort:   x.abort,
		key: operationKey{
			scope:     x.scope(),
			direction: auditlog.ClientToServer,
			id:        mcp.IDKey(m.ID.Of(x.body), m.IDType),
		},
		attempts: &x.attempts,
		span:     x.startSpan(m, x.body, &base),
	}
	if mcp.IsList(o.method) {
		mcp.Members(m.Params.Of(x.body), func(name, _ []byte) { o.paged = o.paged || string(name) == "cursor" })
	}
	if x.batch || x.h.HoldAnswers {
		o.rawID = bytes.Clone(m.ID.Of(x.body))
	}
	if token := m.ProgressToken.Of(x.body); token != nil {
		o.token = x.progressKey(token)
	}
	log, err := x.lease.opened(x.r.Context(), x.h.settings)
	if err == nil {
		o.op, err = log.Begin(x.r.Context(), intent)
	}
	if err != nil {
		if refused := x.unrecorded(m, err); refused != nil {
			endSpan(o.span, "", auditlog.InternalError, int32(refused.code))
			return refused
		}
	}
	o.origin = x.originOf(m, base.Method)
	if o.span != nil && !x.batch {
		x.forwardSpan(o.span)
	}
	x.lease.series.decided(base.Policy)
	o.lease = acquire(x.lease.path)
	x.lease.open.add(o)
	x.pending = append(x.pending, o)
	x.initialize = x.initialize || o.method == methodInitialize
	x.setPlaceholders(base, o)
	return nil
}

// openNotification records a client's notification before it goes on.
func (x *exchange) openNotification(m *mcp.Message, base auditlog.Message) *refusal {
	err := x.event(x.r.Context(), auditlog.Event{
		Message: base,
		Params:  x.payload("params", m.Params.Of(x.body), 0),
		Request: m.Whole.Of(x.body),
	})
	if err != nil {
		return x.unrecorded(m, err)
	}
	x.lease.series.decided(base.Policy)
	x.setPlaceholders(base, nil)
	return nil
}

// openAnswer records a client's answer to a server's request before it goes
// on: as the outcome of that operation, or, if none is open, as an event.
func (x *exchange) openAnswer(m *mcp.Message, base auditlog.Message) *refusal {
	key := operationKey{
		scope:     x.scope(),
		direction: auditlog.ServerToClient,
		id:        mcp.IDKey(m.ID.Of(x.body), m.IDType),
	}
	whole := m.Whole.Of(x.body)
	if o := x.lease.open.find(key); o != nil {
		out := x.outcome(m, x.body, whole, auditlog.ClientToServer)
		o.code.Store(errorCode(m, x.body))
		if err := o.endFirst(out); err != nil {
			return x.unrecorded(m, err)
		}
		return nil
	}
	event := auditlog.Event{Message: base, Request: whole, Result: resultOf(m, x.body)}
	event.Answer = x.payload("result", m.Result.Of(x.body), int(x.h.Capture))
	event.Error = x.payload("error", m.Error.Of(x.body), int(x.h.Capture))
	event.Anomaly = append(event.Anomaly, "unmatched_answer")
	if err := x.event(x.r.Context(), event); err != nil {
		return x.unrecorded(m, err)
	}
	return nil
}

// noteCancellation marks the operation that a client's cancellation names, so
// that its record says so if no answer comes.
func (x *exchange) noteCancellation(m *mcp.Message) {
	if !m.CancelledID.Present() {
		return
	}
	token := m.CancelledID.Of(x.body)
	key := operationKey{scope: x.scope(), direction: auditlog.ClientToServer, id: mcp.IDKey(token, idTypeOf(token))}
	if o := x.lease.open.find(key); o != nil {
		o.cancelled.Store(true)
	}
}

// event writes an event that holds its message back until it is acknowledged.
func (x *exchange) event(ctx context.Context, e auditlog.Event) error {
	log, err := x.lease.opened(ctx, x.h.settings)
	if err != nil {
		return err
	}
	_, err = log.Event(ctx, e)
	return err
}

// unrecorded says what becomes of a message that could not be recorded: nil if
// it is forwarded all the same, because the operator chose that.
func (x *exchange) unrecorded(m *mcp.Message, err error) *refusal {
	if errors.Is(err, auditlog.ErrTooLarge) {
		return &refusal{status: http.StatusRequestEntityTooLarge, code: mcp.CodeInvalidRequest, m: m,
			reason: "record_too_large", message: "the message is too large to be recorded"}
	}
	refused := &refusal{status: http.StatusOK, code: mcp.UnavailableCode(mcp.Modern(x.revision)), m: m,
		reason: "audit_unavailable", message: "audit log unavailable, the call was not forwarded", unrecordable: true}
	if x.client.Err() != nil {
		// No outage: nobody waits any more. An intent that was written all the
		// same is closed by the log.
		return refused
	}
	method := ""
	if m != nil {
		method = mcp.Text(m.Method.Of(x.body))
	}
	onFailure := x.h.settings.OnFailure
	forward := onFailure == onFailureAllow || onFailure == onFailureAllowReads && method != methodToolsCall
	x.lease.unavailable(forward, err, x.h.logger)
	if forward {
		return nil
	}
	return refused
}

// forward hands the original bytes on and follows the answer.
func (x *exchange) forward(next caddyhttp.Handler) (err error) {
	x.next = next
	x.prepareRequest()
	x.tee = newTee(x, x.w)
	defer func() {
		p := recover()
		ended := time.Now()
		x.finish(p, err)
		x.setFinishing(false)
		x.lease.series.completion.Observe(time.Since(ended).Seconds())
		if p != nil {
			panic(p)
		}
	}()
	rules := x.h.rewriteRules()
	if len(rules) == 0 {
		err = next.ServeHTTP(x.tee, x.r)
	} else {
		w := newRewriter(x, rules)
		if err = next.ServeHTTP(w, x.r); err == nil {
			err = w.finish()
		}
	}
	if err == nil {
		err = x.tee.complete()
	}
	return err
}

// prepareRequest sets what reverse_proxy and the transport need to send
// exactly the bytes that were judged, and takes off what must not go on.
func (x *exchange) prepareRequest() {
	r := x.r
	h := r.Header
	h.Del("Cookie")
	h.Del("Proxy-Authorization")
	x.stripped = h.Get("Authorization") != "" && !x.h.keptHeaders["Authorization"]
	x.h.stripIdentity(h)
	if x.h.authorization != "" {
		h.Set("Authorization", x.h.authorization)
	}
	// With one of these Go's transport may send a request twice.
	h.Del("Idempotency-Key")
	h.Del("X-Idempotency-Key")
	// An encoded answer could not be read without decoding it; deleting the
	// header would make the transport ask for gzip.
	h.Set("Accept-Encoding", "identity")
	x.r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GetConn: func(string) {
			if x.attempts.Add(1) > 1 {
				x.lease.series.retried(x.answering.Swap(false))
			}
		},
		GotFirstResponseByte: func() { x.answering.Store(true) },
	}))
	r = x.r
	if x.body == nil {
		return
	}
	body := x.body
	if x.smaller != nil {
		body = x.smaller
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if x.rest != nil {
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), x.rest))
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.ContentLength = int64(len(body))
	r.TransferEncoding = nil
	r.Trailer = nil
	h.Del("Trailer")
}

// setFinishing tells a shutdown that an answer is going out, so that it is
// recorded as one before everything open is closed.
func (x *exchange) setFinishing(on bool) {
	if x.finishing == on {
		return
	}
	x.finishing = on
	if on {
		x.lease.finishing.Add(1)
	} else {
		x.lease.finishing.Add(-1)
	}
}

// scope is what tells the ids of one peer from those of another: the session,
// or without one the caller and its address.
func (x *exchange) scope() string {
	if x.session != "" && !x.stateless {
		return scopeOf(x.sessionKey(x.session))
	}
	subject := ""
	if x.principal != nil {
		subject = x.principal.Subject
	}
	return "caller\n" + subject + "\n" + clientAddress(x.r)
}

// progressKey is how an operation is found by the token of its progress
// notifications.
func (x *exchange) progressKey(token []byte) operationKey {
	return operationKey{scope: x.scope(), direction: auditlog.ClientToServer, id: "progress\n" + mcp.IDKey(token, idTypeOf(token))}
}

// setPlaceholders publishes what the exchange is about.
func (x *exchange) setPlaceholders(base auditlog.Message, o *operation) {
	repl := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Set("http.mcp_audit.method", base.Method)
	repl.Set("http.mcp_audit.tool", base.ToolName)
	decision := "allow"
	if base.Policy != nil {
		decision = base.Policy.Decision
	}
	repl.Set("http.mcp_audit.decision", decision)
	if o == nil || o.op == nil {
		return
	}
	id := o.op.ID()
	repl.Set("http.mcp_audit.operation_id", id)
	if extra, ok := x.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		extra.Add(zap.String("mcp_audit_operation_id", id))
	}
}

// recycle gives the message list back. Nothing may refer to it any more.
func (x *exchange) recycle() {
	if x.pooled == nil {
		return
	}
	if cap(x.msgs) <= keepMessages {
		x.pooled.msgs = x.msgs[:0]
		messageLists.Put(x.pooled)
	}
	x.pooled, x.msgs = nil, nil
}
