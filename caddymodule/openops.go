package caddymodule

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// operation is one JSON-RPC request that was recorded and has no outcome yet.
// It may outlive the exchange that opened it: an answer can come on another
// stream.
type operation struct {
	log     *sharedLog
	lease   *lease
	op      *auditlog.Operation // nil: forwarded unrecorded, under on_failure allow
	key     operationKey
	token   operationKey // of its progress notifications; empty id: none
	method  string
	origin  *policy.Origin // what it is, for tasks that it makes; nil if nobody asks
	rawID   []byte         // of an element of a batch: its token, for an answer of ours
	modern  bool
	started time.Time
	counted entry
	span    trace.Span   // nil: not traced
	code    atomic.Int32 // of the answer, if that is a JSON-RPC error

	attempts  *atomic.Int32 // of sending it to the server; nil: unknown
	progress  atomic.Int64  // progress notifications, counted, not copied
	cancelled atomic.Bool   // the requester sent notifications/cancelled
	ended     atomic.Bool
	abort     context.CancelFunc // ends the exchange, at shutdown
	expiry    *time.Timer        // set while parked
}

// operationKey finds the operation an answer belongs to. Scope is the session
// if there is one; ids of the two directions are different spaces.
type operationKey struct {
	scope     string
	direction auditlog.Direction
	id        string // mcp.IDKey
}

// keys are those under which the registry finds the operation.
func (o *operation) keys() []operationKey {
	if o.token.id == "" {
		return []operationKey{o.key}
	}
	return []operationKey{o.key, o.token}
}

// parkedFor bounds how long an operation waits for an answer on another
// stream after its own exchange has ended.
const parkedFor = 15 * time.Minute

// maxParked bounds the parked operations of one log; past it the oldest state
// is not evicted, the new one is closed at once.
const maxParked = 10_000

// openOps is the registry of a log's open operations. It is safe for
// concurrent use.
type openOps struct {
	mu     sync.Mutex
	all    map[*operation]struct{}
	byKey  map[operationKey][]*operation // also by progress token
	parked int
}

// add registers an operation.
func (t *openOps) add(o *operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = make(map[*operation]struct{})
		t.byKey = make(map[operationKey][]*operation)
	}
	t.all[o] = struct{}{}
	for _, key := range o.keys() {
		t.byKey[key] = append(t.byKey[key], o)
	}
}

// find returns the oldest open operation with the key, or nil.
func (t *openOps) find(key operationKey) *operation {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.byKey[key]; len(list) > 0 {
		return list[0]
	}
	return nil
}

// park leaves an operation open for an answer on another stream. It reports
// false if there are too many, so that the caller closes it. Without an answer
// it ends with the given result.
func (t *openOps) park(o *operation, otherwise auditlog.Result) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.all[o]; !open || t.parked >= maxParked {
		return false
	}
	t.parked++
	o.expiry = time.AfterFunc(parkedFor, func() {
		o.end(auditlog.Outcome{Result: otherwise, Reason: "no answer on any stream of the session"})
	})
	return true
}

// remove forgets an operation that ended.
func (t *openOps) remove(o *operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, open := t.all[o]; !open {
		return
	}
	delete(t.all, o)
	for _, key := range o.keys() {
		list := t.byKey[key]
		if len(list) == 1 && list[0] == o {
			delete(t.byKey, key)
			continue
		}
		for i := range list {
			if list[i] == o {
				t.byKey[key] = append(list[:i:i], list[i+1:]...)
				break
			}
		}
	}
	if o.expiry != nil {
		o.expiry.Stop()
		t.parked--
	}
}

// sessionEnded is how the calls of a session end with it.
var sessionEnded = auditlog.Outcome{Result: auditlog.Cancelled, Reason: "session ended"}

// endScope closes the operations of a session that is over.
func (t *openOps) endScope(scope string, out auditlog.Outcome) {
	for _, o := range t.list(func(o *operation) bool { return o.key.scope == scope }) {
		o.end(out)
	}
}

// endAll closes every operation and stops its exchange.
func (t *openOps) endAll(result auditlog.Result, reason string) {
	for _, o := range t.list(func(*operation) bool { return true }) {
		o.end(auditlog.Outcome{Result: result, Reason: reason})
		if o.abort != nil {
			o.abort()
		}
	}
}

func (t *openOps) list(keep func(*operation) bool) (out []*operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for o := range t.all {
		if keep(o) {
			out = append(out, o)
		}
	}
	return out
}

// count is the number of open operations.
func (t *openOps) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// end records the operation's outcome without waiting for the disk: its bytes
// have gone out, or there are none. Only the first call counts: an answer, a
// disconnect and a shutdown may meet. An outcome that cannot be written is
// owed by the log, which reports itself unhealthy and takes no new intent
// until it is.
func (o *operation) end(out auditlog.Outcome) {
	_ = o.close(out, (*auditlog.Operation).EndLater)
}

// endFirst is end for an outcome whose message has yet to go on: it returns
// when the record is acknowledged.
func (o *operation) endFirst(out auditlog.Outcome) error {
	return o.close(out, (*auditlog.Operation).End)
}

// id is the operation's id; empty if it is forwarded unrecorded.
func (o *operation) id() string {
	if o.op == nil {
		return ""
	}
	return o.op.ID()
}

// counts are of what belongs to the operation and has no record of its own.
func (o *operation) counts() (counts map[string]int) {
	count := func(name string, n int) {
		if counts == nil {
			counts = make(map[string]int)
		}
		counts[name] = n
	}
	if n := o.progress.Load(); n > 0 {
		count("progress", int(n))
	}
	if o.attempts != nil {
		if n := o.attempts.Load(); n > 1 {
			count("attempts", int(n))
		}
	}
	return counts
}

func (o *operation) close(out auditlog.Outcome, record func(*auditlog.Operation, context.Context, auditlog.Outcome) error) (err error) {
	if o.ended.Swap(true) {
		return nil
	}
	out.Duration = time.Since(o.started)
	out.Counts = o.counts()
	endSpan(o.span, o.id(), out.Result, o.code.Load())
	o.log.series.closed(o.counted, out.Result, out.Duration)
	if o.op != nil {
		err = record(o.op, context.Background(), out)
	}
	o.log.open.remove(o)
	o.lease.release()
	return err
}
