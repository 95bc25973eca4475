package auditlog

import (
	"context"
	"sync/atomic"
	"time"
)

// Operation is a recorded request whose outcome is not recorded yet. Its
// methods are safe for concurrent use.
type Operation struct {
	log     *Log
	m       Message
	session string // keyed hash
	seq     uint64
	began   time.Time
	ended   atomic.Bool
}

// ID is the operation's audit_operation_id.
func (o *Operation) ID() string { return o.m.OperationID }

// Seq is the seq of the operation's intent.
func (o *Operation) Seq() uint64 { return o.seq }

// NewWireHash starts the hash of an answer that is not held in memory; see
// Outcome.ResponseHash.
func (o *Operation) NewWireHash() *WireHash {
	w := new(WireHash)
	copy(w.nonce[:], randomBytes(len(w.nonce)))
	w.h = o.log.enc.Load().blind.wire(w.nonce)
	return w
}

// End records how the operation ended. Only the first call counts; later ones
// return nil and are counted in Status.
//
// An error (ErrUnavailable) says that the outcome is not acknowledged. The log
// owes it then: it tries again on its own, and no Begin succeeds before it is
// written. If ctx ends, the outcome is still written.
func (o *Operation) End(ctx context.Context, out Outcome) error {
	return o.end(ctx, out)
}

// EndLater is End without waiting for the acknowledgement, for an answer that
// has already gone out: nothing depends on when its record is on the disk. The
// record is queued when it returns, and written or owed like any other. It
// waits only for space in the queue. The payloads of out must not change
// afterwards.
func (o *Operation) EndLater(ctx context.Context, out Outcome) error {
	_, err := o.queue(ctx, out)
	return err
}

func (o *Operation) end(ctx context.Context, out Outcome) error {
	e, err := o.queue(ctx, out)
	if e == nil || err != nil {
		return err
	}
	_, err = o.log.await(ctx, e)
	return err
}

// queue puts the outcome on its way; it returns nil if there is one already.
func (o *Operation) queue(ctx context.Context, out Outcome) (*entry, error) {
	o.log.ending.RLock()
	defer o.log.ending.RUnlock()
	if o.ended.Swap(true) {
		o.log.repeated.Add(1)
		return nil, nil
	}
	e, err := o.outcome(out)
	if err != nil {
		return nil, err
	}
	return e, o.log.enqueue(ctx, e)
}

// outcome builds the outcome's entry. One that would be too large keeps its
// payloads as $trunc.
func (o *Operation) outcome(out Outcome) (*entry, error) {
	session := o.session
	if out.SessionID != "" {
		session = o.log.enc.Load().blind.session(out.SessionID)
	}
	build := func(truncate bool) (draft, error) {
		return o.log.enc.Load().outcome(&o.m, session, o.seq, &out, truncate, newStamp(o.log.cfg.Now()))
	}
	d, err := build(false)
	if err != nil {
		d, err = build(true)
	}
	if err != nil {
		return nil, err
	}
	e := &entry{draft: d, kind: outcomeEntry, op: o, intentSeq: o.seq}
	if len(d.buf) >= worthShrinking {
		e.shrink = func() (draft, error) { return build(true) }
	}
	return e, nil
}

// worthShrinking is the size from which a record that is owed may lose its
// payloads. A smaller one is kept as it is, and does not hold on to an answer
// that may be much larger than its record.
const worthShrinking = 64 << 10
