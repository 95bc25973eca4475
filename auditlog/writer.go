package auditlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/note"
)

// Log is an open audit log. All methods are safe for concurrent use.
type Log struct {
	cfg   Config
	store Store
	run   string
	log   *zap.Logger

	probing bool // only look whether the log could be opened; change nothing

	enc    atomic.Pointer[encoder]
	keyed  string // key id of enc, signer and vkey; the commit lock guards it
	signer note.Signer
	vkey   string

	queue   queue
	closing atomic.Bool
	// forceTurn closes the log's file although no rotation is due.
	forceTurn atomic.Bool
	ending    sync.RWMutex // held by End until the outcome is queued
	close     struct {
		sync.Once
		err error
	}
	tending chan struct{} // there may be closed segments to hash or compress
	kept    atomic.Bool   // the tiles grew, so that more segments may be deleted
	quit    chan struct{} // closed: the committer ends when the queue is empty
	stopped sync.WaitGroup

	// Guarded by the store's commit lock.
	seal    *sealer
	commits committer

	// posMu guards the position and the operations against readers; they
	// change only under the commit lock, too.
	posMu sync.Mutex
	pos   position
	ops   map[uint64]*Operation // of this Log, without an outcome, by seq of the intent
	// checkpointTime is when pos first had its newest checkpoint.
	checkpointTime time.Time

	sync     flusher
	repeated atomic.Uint64 // calls of End beyond the first

	mu        sync.Mutex // guards what follows
	opt       options
	health    health
	debts     debts
	unchecked time.Time // when the oldest record that no checkpoint covers was seen
	anchors   AnchorSet // nil: none
}

// options are what SetOptions changes.
type options struct {
	durability Durability
	every      int
	after      time.Duration
	rotation   Rotation
	commit     Commit
}

func newLog(cfg Config) *Log {
	l := &Log{
		cfg: cfg, store: cfg.Store, log: cfg.Logger,
		run:  b64.EncodeToString(randomBytes(16)),
		quit: make(chan struct{}),
		ops:  make(map[uint64]*Operation),
		opt:  options{cfg.Durability, cfg.CheckpointEvery, cfg.CheckpointAfter, cfg.Rotation, cfg.Commit},

		tending: make(chan struct{}, 1),
	}
	l.queue = queue{limit: cfg.QueueBytes, space: make(chan struct{}), wake: make(chan struct{}, 1)}
	l.sync.dirty, l.sync.urgent = make(chan struct{}, 1), make(chan struct{}, 1)
	return l
}

func (l *Log) startWorkers() {
	l.stopped.Go(l.tendLoop)
	l.stopped.Add(2)
	go func() {
		defer l.stopped.Done()
		l.commitLoop()
	}()
	go func() {
		defer l.stopped.Done()
		l.syncLoop()
	}()
}

// stopWorkers ends the goroutines; what is still queued fails.
func (l *Log) stopWorkers() {
	close(l.quit)
	l.stopped.Wait()
	for _, e := range l.queue.close() {
		if e.state.CompareAndSwap(entryQueued, entryTaken) {
			l.finish(e, ErrClosed)
		}
	}
}

// Begin records that a request is about to be forwarded, and returns when the
// record is acknowledged as the log's durability says. Every operation must be
// ended with Operation.End, whatever becomes of it.
//
// An error means that the message must not be forwarded: ErrTooLarge, or
// ErrUnavailable. If ctx ends first, the error is also ctx.Err(); an intent
// that was written nevertheless is closed by the log with outcome `cancelled`.
func (l *Log) Begin(ctx context.Context, in Intent) (*Operation, error) {
	if err := l.mayTake(); err != nil {
		return nil, err
	}
	if in.OperationID == "" {
		in.OperationID = NewOperationID()
	}
	session := l.enc.Load().blind.session(in.SessionID)
	d, err := l.enc.Load().intent(&in, session, newStamp(l.cfg.Now()))
	if err != nil {
		return nil, err
	}
	op := &Operation{log: l, m: in.Message, session: session, began: time.Now()}
	op.m.ClientInfo, op.m.Anomaly = nil, nil
	if _, err = l.submit(ctx, &entry{draft: d, kind: intentEntry, op: op}); err != nil {
		return nil, err
	}
	return op, nil
}

// Event records one message or fact without an operation, and returns its seq
// when it is acknowledged. Errors are those of Begin; after an error because
// ctx ended the record may have been written.
func (l *Log) Event(ctx context.Context, ev Event) (seq uint64, err error) {
	if err := l.mayTake(); err != nil {
		return 0, err
	}
	if ev.OperationID == "" {
		ev.OperationID = NewOperationID()
	}
	d, err := l.enc.Load().event(&ev, newStamp(l.cfg.Now()))
	if err != nil {
		return 0, err
	}
	return l.submit(ctx, &entry{draft: d, kind: eventEntry})
}

// Config records a change of the effective configuration.
func (l *Log) Config(ctx context.Context, from, to Hash, actor string) error {
	if l.closing.Load() {
		return unavailable(ErrClosed)
	}
	d := record(kindConfig, newStamp(l.cfg.Now()),
		hashMember("config_sha256", to), hashMember("prev_config_sha256", from), textOrNone("actor", actor))
	_, err := l.submit(ctx, &entry{draft: d, kind: otherEntry})
	return err
}

// PolicyChange records that the policy of a server changed: its digest before
// and after, empty where there was or is none.
func (l *Log) PolicyChange(ctx context.Context, serverID, from, to, actor string) error {
	if l.closing.Load() {
		return unavailable(ErrClosed)
	}
	d := record(kindConfig, newStamp(l.cfg.Now()),
		textOrNone("server_id", serverID), textOrNone("policy_sha256", to), textOrNone("prev_policy_sha256", from), textOrNone("actor", actor))
	_, err := l.submit(ctx, &entry{draft: d, kind: otherEntry})
	return err
}

// SetOptions changes what may change while a log is open. The values are those
// of Config: 0 is the default, below 0 is off.
func (l *Log) SetOptions(durability Durability, every int, after time.Duration) {
	if every == 0 {
		every = DefaultCheckpointEvery
	}
	if after == 0 {
		after = DefaultCheckpointAfter
	}
	l.mu.Lock()
	l.opt.durability, l.opt.every, l.opt.after = durability, every, after
	l.mu.Unlock()
	l.queue.signal()
}

// SetRotation changes, while the log is open, when its file is closed and how
// long closed ones are kept. The rules are those of Config.Rotation.
func (l *Log) SetRotation(r Rotation) error {
	if err := l.cfg.checkRotation(r); err != nil {
		return err
	}
	l.mu.Lock()
	l.opt.rotation = r
	l.mu.Unlock()
	l.queue.signal()
	return nil
}

func (l *Log) options() options {
	alarm := l.alarm()
	l.mu.Lock()
	defer l.mu.Unlock()
	opt := l.opt
	if alarm != nil {
		opt.every, opt.after = 0, 0 // no checkpoint is signed
	}
	return opt
}

// Checkpoint signs a checkpoint over all records so far, writes it to the log
// and to its checkpoint file, and returns the signed note. All records it
// covers are durable by then. If nothing is new, it is the last one again.
func (l *Log) Checkpoint(ctx context.Context) (signed []byte, err error) {
	if l.closing.Load() {
		return nil, unavailable(ErrClosed)
	}
	return l.checkpoint(ctx)
}

func (l *Log) checkpoint(ctx context.Context) ([]byte, error) {
	if err := l.alarm(); err != nil {
		return nil, errors.Join(err, l.persist())
	}
	e := &entry{kind: checkpointEntry}
	if _, err := l.submit(ctx, e); err != nil {
		return nil, err
	}
	if err := l.persist(); err != nil {
		return nil, unavailable(err)
	}
	return e.note, nil
}

// submit queues an entry and waits until it is acknowledged.
func (l *Log) submit(ctx context.Context, e *entry) (seq uint64, err error) {
	if err := l.enqueue(ctx, e); err != nil {
		return 0, err
	}
	return l.await(ctx, e)
}

// enqueue queues an entry. An outcome for which there is no space before ctx
// ends is owed.
func (l *Log) enqueue(ctx context.Context, e *entry) error {
	e.done = make(chan struct{})
	err := ctx.Err()
	if err == nil || e.kind == outcomeEntry {
		err = l.queue.put(ctx, e)
	}
	if err == nil {
		return nil
	}
	if e.kind == outcomeEntry && !errors.Is(err, ErrClosed) {
		l.owe(e)
		l.queue.signal()
	} else {
		e.recycle()
	}
	return unavailable(err)
}

// await waits until a queued entry is acknowledged, or ctx ends.
func (l *Log) await(ctx context.Context, e *entry) (seq uint64, err error) {
	select {
	case <-e.done:
		return e.seq, unavailable(e.err)
	case <-ctx.Done():
	}
	if e.kind == outcomeEntry {
		// An outcome is written whether or not anybody waits for it.
		return 0, unavailable(ctx.Err())
	}
	if e.state.CompareAndSwap(entryQueued, entryAbandoned) || e.state.CompareAndSwap(entryTaken, entryDetached) {
		return 0, unavailable(ctx.Err())
	}
	<-e.done
	return e.seq, unavailable(e.err)
}

// Close ends the operations that are still open with outcome internal_error
// (reason `shutdown`), appends `stop` and a last checkpoint, makes everything
// durable and gives the files back. It is idempotent. If ctx ends or the log
// cannot be written, what is missing is closed as `unknown` by whoever opens
// the log next.
func (l *Log) Close(ctx context.Context) error {
	l.close.Do(func() { l.close.err = l.shut(ctx) })
	return l.close.err
}

func (l *Log) shut(ctx context.Context) error {
	l.closing.Store(true)
	var errs []error
	if err := l.endOpen(ctx); err != nil {
		errs = append(errs, err)
	}
	if err := l.awaitEnds(ctx); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		stop := record(kindStop, newStamp(l.cfg.Now()), textOrNone("version", l.cfg.Version), textOrNone("actor", l.cfg.Actor), textMember("run", l.run))
		_, err := l.submit(ctx, &entry{draft: stop, kind: otherEntry})
		if err == nil {
			_, err = l.checkpoint(ctx)
		}
		errs = append(errs, err)
	}
	if err := l.stopWorkersWithin(ctx); err != nil {
		return fmt.Errorf("closing audit log %s: %w", l.store.Path(), errors.Join(append(errs, err, l.closeAnchors(ctx))...))
	}
	// A Checkpoint that was acknowledged just now may still be saving it.
	l.sync.saveMu.Lock()
	l.sync.closed = true
	l.sync.saveMu.Unlock()
	errs = append(errs, l.unwell(), l.closeAnchors(ctx), l.forget(), l.store.Close())
	if l.cfg.Copier != nil {
		errs = append(errs, l.cfg.Copier.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing audit log %s: %w", l.store.Path(), err)
	}
	return nil
}

// endOpen ends the operations that are still open.
func (l *Log) endOpen(ctx context.Context) error {
	var ending []*entry
	for _, op := range l.openOperations() {
		e, err := op.queue(ctx, Outcome{Result: InternalError, Reason: "shutdown", Duration: time.Since(op.began)})
		if err != nil {
			return fmt.Errorf("closing operation %s: %w", op.ID(), err)
		}
		if e != nil {
			ending = append(ending, e)
		}
	}
	for _, e := range ending {
		if _, err := l.await(ctx, e); err != nil {
			return fmt.Errorf("closing operation %s: %w", e.op.ID(), err)
		}
	}
	return nil
}

// stopWorkersWithin is stopWorkers for as long as ctx allows: a disk or a lock
// that hangs cannot be interrupted.
func (l *Log) stopWorkersWithin(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.stopWorkers()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitEnds waits until outcomes that other goroutines are ending just now are
// queued, so that they come before `stop`.
func (l *Log) awaitEnds(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.ending.Lock()
		defer l.ending.Unlock()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// forget gives this run's registration back.
func (l *Log) forget() error {
	if err := l.store.Lock(); err != nil {
		if errors.Is(err, ErrReplaced) {
			return nil
		}
		return err
	}
	return errors.Join(l.store.Forget(l.run), l.store.Unlock())
}

func (l *Log) openOperations() []*Operation {
	l.posMu.Lock()
	defer l.posMu.Unlock()
	list := make([]*Operation, 0, len(l.ops))
	for _, op := range l.ops {
		list = append(list, op)
	}
	return list
}
