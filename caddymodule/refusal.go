package caddymodule

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
)

// refusal says why an exchange is not forwarded and how that is answered.
type refusal struct {
	status  int    // HTTP status
	code    int    // of the JSON-RPC error; 0: no JSON-RPC body
	reason  string // for the record, one word
	detail  string // for the record in place of reason, if it says more
	message string // for the client, never more than the kind
	id      []byte // raw id token, if it is unambiguous

	m       *mcp.Message      // the message it is about, if there is one
	decided *auditlog.Message // with the decision, if the policy or a rate limit refused
	over    *ratelimit.Limit  // the limit that refused
	wait    time.Duration     // until it would not

	unrecordable bool   // the log is down: there can be no record
	recorded     bool   // each message has its record already
	body         []byte // the answer as a whole, for a batch
}

// refuse records the refusal, answers it and forwards nothing.
func (x *exchange) refuse(ref *refusal) error {
	id := ""
	if !ref.unrecordable && !ref.recorded {
		id = x.recordRefusal(ref)
	}
	x.undo(ref)
	x.h.debug("refused", zap.String("reason", ref.reason), zap.Int("status", ref.status), zap.String("operation_id", id))
	return x.answerRefusal(ref, id)
}

// undo closes the operations of a batch whose later element was refused.
func (x *exchange) undo(ref *refusal) {
	for _, o := range x.pending {
		o.end(auditlog.Outcome{Result: auditlog.Denied, Reason: ref.reason})
	}
}

// refusalTimeout bounds how long a refusal waits for its record.
const refusalTimeout = 10 * time.Second

// recordRefusal writes the one record of a refused message (each element of a
// refused batch has its own) and returns its operation id.
func (x *exchange) recordRefusal(ref *refusal) string {
	x.countRefusal(ref)
	log, err := x.lease.opened(x.r.Context(), x.h.settings)
	if err != nil {
		x.lease.unavailable(false, err, x.h.logger)
		return ""
	}
	if x.principal == nil && x.clientID == "" {
		x.principal, x.clientID = x.h.identify(x.r)
	}
	if ref.decided == nil && !x.lease.refusals.admit(clientAddress(x.r), x.h.Refusals) {
		return ""
	}
	// The message was there, whether or not its client still is.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), refusalTimeout)
	defer cancel()
	id := ""
	for i, e := range x.refusalEvents(ref) {
		e.OperationID = auditlog.NewOperationID()
		if _, err := log.Event(ctx, e); err != nil {
			x.lease.unavailable(false, err, x.h.logger)
			return ""
		}
		id = e.OperationID
		x.spanRefusal(ref, i, &e)
		if ref.decided != nil {
			x.h.events.refused(x.h.settings.name, &e)
		}
	}
	return id
}

// countRefusal counts a refused message, or each of a refused batch, also those
// that are joined in the log.
func (x *exchange) countRefusal(ref *refusal) {
	if ref.decided != nil {
		x.lease.series.decided(ref.decided.Policy)
		x.lease.series.refused(entryOf(ref.decided, x.h.plainLabels()), true, ref.reason, ref.result())
		return
	}
	e := entry{transport: x.h.Transport, direction: auditlog.ClientToServer, plain: x.h.plainLabels()}
	counted := false
	for i := range x.msgs {
		m := &x.msgs[i]
		if !x.batch && ref.m != nil && ref.m != m {
			continue
		}
		e.method = mcp.Text(m.Method.Of(x.body))
		if e.tool = ""; e.method == methodToolsCall {
			e.tool = mcp.Text(m.Name.Of(x.body))
		}
		x.lease.series.refused(e, false, ref.reason, auditlog.Denied)
		counted = true
	}
	if !counted {
		x.lease.series.refused(e, false, ref.reason, auditlog.Denied)
	}
}

func (x *exchange) refusalEvents(ref *refusal) []auditlog.Event {
	if ref.decided != nil {
		return []auditlog.Event{{
			Message: *ref.decided,
			Result:  ref.result(),
			Params:  x.payload("params", ref.m.Params.Of(x.body), 0),
			Request: ref.m.Whole.Of(x.body),
		}}
	}
	var events []auditlog.Event
	for i := range x.msgs {
		m := &x.msgs[i]
		if !x.batch && ref.m != nil && ref.m != m {
			continue
		}
		e := auditlog.Event{
			Message: x.message(m),
			Result:  auditlog.Denied,
			Params:  x.payload("params", m.Params.Of(x.body), refusalCapture),
			Request: m.Whole.Of(x.body),
		}
		if m.Kind == mcp.KindResult || m.Kind == mcp.KindError {
			e.Answer = x.payload("result", m.Result.Of(x.body), refusalCapture)
			e.Error = x.payload("error", m.Error.Of(x.body), refusalCapture)
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		e := auditlog.Event{Message: x.message(nil), Result: auditlog.Denied}
		if x.body != nil {
			e.Params = x.payload("", x.body, refusalCapture)
			e.Request = x.body
		}
		if ref.detail == "" && x.r.Method != http.MethodPost {
			ref.detail = ref.reason + ": http " + methodName(x.r.Method)
		}
		events = append(events, e)
	}
	for i := range events {
		events[i].Reason = ref.reason
		if ref.detail != "" {
			events[i].Reason = ref.detail
		}
		events[i].HTTPStatus = ref.status
	}
	return events
}

// answerRefusal writes the answer in the shape that clients understand: for a
// request a JSON-RPC error with the exact id, for anything else a status.
func (x *exchange) answerRefusal(ref *refusal, operationID string) error {
	x.w.Header().Set("Cache-Control", "no-store")
	status := ref.status
	x.challenge(status)
	if ref.body != nil {
		return x.writeAnswer(status, ref.body)
	}
	if status == http.StatusOK && (ref.m == nil || ref.m.Kind != mcp.KindRequest) {
		// There is no id to answer to.
		if ref.over != nil {
			x.answerLimited(ref)
			return nil
		}
		status = http.StatusForbidden
		if ref.unrecordable {
			status = http.StatusServiceUnavailable
		}
		x.challenge(status)
		x.w.WriteHeader(status)
		return nil
	}
	if status == http.StatusAccepted {
		x.w.WriteHeader(status)
		return nil
	}
	if ref.code == 0 {
		x.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		x.w.WriteHeader(status)
		_, err := x.w.Write([]byte(ref.message + "\n"))
		return err
	}
	body := x.refusalBody(ref, operationID)
	if status == http.StatusOK && x.answerOnStream(body) {
		x.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return x.writeAnswer(status, body)
}

// refusalBody is the JSON-RPC error for a refused message.
func (x *exchange) refusalBody(ref *refusal, operationID string) []byte {
	id := ref.id
	if id == nil && ref.m != nil && ref.m.Kind == mcp.KindRequest {
		id = ref.m.ID.Of(x.body)
	}
	return mcp.AppendError(nil, id, ref.code, ref.message, x.errorData(ref, operationID))
}

func (x *exchange) writeAnswer(status int, body []byte) error {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	_, err := x.w.Write(body)
	return err
}

// errorData is the data member of a refusal's error: the id under which an
// operator finds it, and the rule only if the operator wants that.
func (x *exchange) errorData(ref *refusal, operationID string) []byte {
	if operationID == "" && ref.over == nil {
		return nil
	}
	data := canon.AppendString([]byte(`{"audit_id":`), operationID)
	if ref.over != nil {
		return append(ref.retryAfter(data, x.h.Explain), '}')
	}
	if x.h.Explain && ref.decided != nil {
		data = append(data, `,"rule":`...)
		data = canon.AppendString(data, ref.decided.Policy.RuleID)
		data = append(data, `,"reason":`...)
		data = canon.AppendString(data, ref.decided.Policy.Reason)
	}
	return append(data, '}')
}
