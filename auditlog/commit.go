package auditlog

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/note"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// committer is what the one goroutine that appends keeps between commits. The
// commit lock guards it.
type committer struct {
	buf   []byte // the last batch as written
	pos   int64  // where it was written
	roots []Hash // scratch for the tree
	notes []*entry
	work  []*entry

	lastWords bool // this commit is the one right after the disk was found full

	epochs  epochs
	evolved bool // the epoch that this run found was ended
	unsaved bool // the state does not have the epoch's key yet

	rotateAfter time.Time // a rotation that could not be prepared is tried again then
	expires     time.Time // when there may be a segment to delete; zero: at once
	keeping     bool      // expires is known
}

// maxKeptBatch bounds the batch buffer that is kept between commits.
const maxKeptBatch = 4 << 20

// retryEvery is how often a log that cannot be written is tried again without
// being asked.
const retryEvery = time.Second

// staleAfter is how long a record may wait before it gets a new time stamp.
const staleAfter = time.Second

// commitLoop is the one goroutine that appends. It never lingers: a batch is
// what queued during the previous commit.
func (l *Log) commitLoop() {
	timer := time.NewTimer(l.nextTick())
	defer timer.Stop()
	var batch []*entry
	for {
		ticked, stopping := false, false
		select {
		case <-l.queue.wake:
		case <-timer.C:
			ticked = true
		case <-l.quit:
			stopping = true
		}
		for {
			batch = l.queue.take(batch[:0])
			if len(batch) == 0 && !l.hasWork(ticked) {
				break
			}
			ticked = false
			l.commit(batch)
			clear(batch)
		}
		if stopping {
			return
		}
		timer.Reset(l.nextTick())
	}
}

// hasWork reports whether something is to be written that nobody queued. A
// failing log is tried again only when the timer says so.
func (l *Log) hasWork(ticked bool) bool {
	turn := l.turnDue() || l.idleDue()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.health.refused != nil:
		return false
	case l.health.retry:
		l.health.retry, l.commits.lastWords = false, true
		return true
	case l.health.failing:
		return ticked
	}
	return turn || l.debts.any() || ticked && l.opt.after > 0
}

// nextTick is how long the committer may sleep.
func (l *Log) nextTick() time.Duration {
	tick := min(l.turnTick(), l.idleTick())
	opt := l.options()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health.failing {
		return retryEvery
	}
	if opt.after <= 0 || l.unchecked.IsZero() {
		return tick
	}
	return min(tick, max(time.Until(l.unchecked.Add(opt.after)), time.Millisecond))
}

// commit writes what the log owes and a batch, and acknowledges it.
func (l *Log) commit(batch []*entry) {
	opt, began := l.options(), time.Now()
	err := l.repair()
	written := l.commits.work[:0]
	if err == nil {
		written, err = l.appendBatch(written, batch, opt)
	}
	l.commits.work = written
	var flushed error
	if len(written) > 0 && opt.durability == Durable {
		flushed = l.flush()
	}
	l.settle(errors.Join(err, flushed))
	l.observe(len(written), began, opt.durability, errors.Join(err, flushed))
	for _, e := range written {
		l.acknowledge(e, flushed)
	}
	for _, e := range batch {
		if !e.written {
			l.fail(e, err)
		}
	}
	clear(written)
}

// appendBatch appends, under the commit lock, what the log owes and the batch.
// It returns the entries that are in the log now, also when it fails.
func (l *Log) appendBatch(written, batch []*entry, opt options) ([]*entry, error) {
	for {
		if err := l.refused(); err != nil {
			return written, err
		}
		if err := l.store.Lock(); err != nil {
			return written, l.note(err)
		}
		var err error
		written, err = l.appendLocked(written, batch, opt)
		if unlock := l.store.Unlock(); unlock != nil {
			l.log.Error("the commit lock could not be given back", zap.String("log", l.store.Path()), zap.Error(unlock))
		}
		if !errors.Is(err, errTurn) {
			return written, l.note(err)
		}
		// Nothing was written. Other processes may rotate again meanwhile.
		if err := l.turn(opt); err != nil {
			return written, err
		}
	}
}

func (l *Log) appendLocked(written, batch []*entry, opt options) ([]*entry, error) {
	if err := l.catchUp(); err != nil {
		return written, err
	}
	if l.turnDue() {
		return written, errTurn
	}
	full := l.stillFull()
	// What the log has to say of itself goes first and alone, so that it does
	// not fail together with a larger batch.
	first, said := l.announcements(full)
	if len(first) > 0 {
		if err := l.write(first, opt); err != nil {
			return written, err
		}
		said()
		written = append(written, first...)
	}
	for _, group := range l.owed() {
		open, closed := l.stillOpen(group)
		written = append(written, closed...)
		if err := l.write(open, opt); err != nil {
			return written, err
		}
		written = append(written, open...)
	}
	work, closed := l.stillOpen(batch)
	written = append(written, closed...)
	if full {
		work = withoutNew(work)
	}
	for {
		n := slices.IndexFunc(work, func(e *entry) bool { return e.kind == keyEntry })
		rotates := n >= 0
		if !rotates {
			n = len(work)
		}
		// Without any work a checkpoint may be due.
		if err := l.write(work[:n], opt); err != nil {
			return written, err
		}
		written, work = append(written, work[:n]...), work[n:]
		if !rotates {
			break
		}
		if err := l.writeKeys(work[0]); err != nil {
			return written, err
		}
		written, work = append(written, work[0]), work[1:]
	}
	if full {
		return written, errDiskFull
	}
	return written, l.writeIdle()
}

var errDiskFull = errors.New("the disk is full")

// withoutNew leaves only what ends something: on a full disk the last space is
// for outcomes.
func withoutNew(work []*entry) []*entry {
	var out []*entry
	for _, e := range work {
		if e.kind != intentEntry && e.kind != eventEntry {
			out = append(out, e)
		}
	}
	return out
}

// stillOpen sorts out outcomes whose intent has one already: written in an
// attempt that seemed to fail, or by another process. They count as written.
func (l *Log) stillOpen(entries []*entry) (open, closed []*entry) {
	for i, e := range entries {
		if e.kind != outcomeEntry {
			continue
		}
		if _, ok := l.pos.open[e.intentSeq]; ok {
			continue
		}
		open = append(open, entries[:i]...)
		for _, e := range entries[i:] {
			if _, ok := l.pos.open[e.intentSeq]; e.kind != outcomeEntry || ok {
				open = append(open, e)
			} else {
				e.written = true
				closed = append(closed, e)
				l.posMu.Lock()
				delete(l.ops, e.intentSeq)
				l.posMu.Unlock()
			}
		}
		return open, closed
	}
	return entries, nil
}

// catchUp takes in what other processes appended since the last commit. A log
// that is shorter than it was is not continued. errTurn: there is another file
// at the log's path; turn tells whether it continues this one.
func (l *Log) catchUp() error {
	info, err := l.store.Stat()
	switch {
	case errors.Is(err, ErrReplaced) || err == nil && !info.Exists:
		return errTurn
	case err != nil:
		return l.damaged(err)
	case info.Size < l.pos.offset:
		return l.refuse("tail_truncated", fmt.Sprintf("the file was cut from %d to %d bytes while it was open", l.pos.offset, info.Size))
	}
	err = l.followTo(info.Size)
	l.noteUnchecked()
	return err
}

func (l *Log) noteUnchecked() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pos.unchecked == 0 {
		l.unchecked = time.Time{}
	} else if l.unchecked.IsZero() {
		l.unchecked = time.Now()
	}
}

// write seals entries and appends them in one piece. Either all of them are in
// the log afterwards, or none is.
func (l *Log) write(entries []*entry, opt options) error {
	c := &l.commits
	t := l.pos
	t.tree.Roots = append(c.roots[:0], l.pos.tree.Roots...)
	c.buf, c.pos = c.buf[:0], l.pos.offset
	now := l.cfg.Now()
	for _, e := range entries {
		if e.kind == checkpointEntry {
			if again := t.unchecked == 0 && len(t.note) > 0; again {
				e.note, e.seq = t.note, t.checkpointed
				continue
			}
			d, err := l.checkpointRecord(&t, now)
			if err != nil {
				return err
			}
			e.draft, e.note = d, t.note
		}
		if now.Sub(e.stamp.at) > staleAfter {
			e.restamp(now)
		}
		e.seq, e.pos = t.next, t.offset
		if t.offset == 0 {
			t.first, t.began = t.next, e.stamp.at
		}
		t.used = t.used || e.kind != checkpointEntry
		e.length = l.sealRecord(&t, &e.draft, e.kind == checkpointEntry)
		if opt.every > 0 && t.unchecked >= uint64(opt.every) {
			if err := l.autoCheckpoint(&t, now); err != nil {
				return err
			}
		}
	}
	if t.unchecked > 0 && l.checkpointDue(opt.after) {
		if err := l.autoCheckpoint(&t, now); err != nil {
			return err
		}
	}
	if len(c.buf) > 0 {
		if err := l.store.Append(c.buf, c.pos); err != nil {
			return l.writeFailed(err)
		}
	}
	l.publish(t, entries)
	l.copyOut(entries)
	if len(c.buf) > 0 {
		l.sync.wake()
	}
	if cap(c.buf) > maxKeptBatch {
		c.buf = nil
	}
	return nil
}

// checkpointDue reports whether the oldest record that no checkpoint covers
// has waited long enough.
func (l *Log) checkpointDue(after time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return after > 0 && !l.unchecked.IsZero() && time.Since(l.unchecked) >= after
}

// sealRecord appends a record's line to the batch and advances t. It returns
// the length of the line without its LF.
func (l *Log) sealRecord(t *position, d *draft, checkpoint bool) int {
	s := Seal{Seq: t.next, Leaf: d.leaf, KeyID: t.keyID, Epoch: t.epoch}
	s.Chain = ChainHash(t.chain, s.Seq, s.Leaf)
	s.MAC = l.seal.mac.mac(s.Chain)
	before := len(l.commits.buf)
	l.commits.buf = AppendLine(l.commits.buf, d.body(), &s, d.open)
	size := len(l.commits.buf) - before
	t.advance(s.Leaf, s.Chain, size, checkpoint)
	return size - 1
}

// checkpointRecord signs the tree of t, which is that of all records before.
func (l *Log) checkpointRecord(t *position, now time.Time) (draft, error) {
	head := TreeHead{Origin: t.origin, Size: t.next, Root: t.tree.Root()}
	signed, err := note.Sign(&note.Note{Text: head.Text()}, l.signer)
	if err != nil {
		return draft{}, fmt.Errorf("signing a checkpoint: %w", err)
	}
	t.note = signed
	return record(kindCheckpoint, newStamp(now), textMember("note", string(signed))), nil
}

func (l *Log) autoCheckpoint(t *position, now time.Time) error {
	d, err := l.checkpointRecord(t, now)
	if err != nil {
		return err
	}
	l.sealRecord(t, &d, true)
	d.recycle()
	return nil
}

// publish makes what was appended the log's position.
func (l *Log) publish(t position, entries []*entry) {
	checkpoint := t.checkpointed != l.pos.checkpointed
	l.posMu.Lock()
	roots := l.pos.tree.Roots
	for _, e := range entries {
		e.written = true
		switch e.kind {
		case intentEntry:
			e.op.seq = e.seq
			t.open[e.seq] = openIntent{e.seq, t.segment, e.pos, e.length, l.run, e.op.m.OperationID, e.leaf}
			l.ops[e.seq] = e.op
		case outcomeEntry:
			delete(t.open, e.intentSeq)
			delete(l.ops, e.intentSeq)
		}
	}
	l.pos = t
	if checkpoint {
		l.checkpointTime = l.cfg.Now()
	}
	l.posMu.Unlock()
	l.commits.roots = roots
	l.noteUnchecked()
	if checkpoint {
		l.sync.hurry()
	}
}

// writeFailed takes back what a failed append may have left.
func (l *Log) writeFailed(cause error) error {
	if err := l.store.Truncate(l.pos.offset); err != nil {
		// What is left is verified before the next append, like the
		// leftovers of a process that died.
		l.log.Error("a failed write could not be taken back", zap.String("log", l.store.Path()), zap.Error(err))
	}
	l.diskFailed("write", cause, l.pos.offset)
	return cause
}

// diskFailed notes a failure of the disk for the log's own record of it.
func (l *Log) diskFailed(op string, cause error, offset int64) {
	kind := kindIOError
	if fsys.IsNoSpace(cause) {
		kind = kindDiskFull
		l.mu.Lock()
		l.health.full = true
		l.health.retry = l.health.retry || !l.health.noted
		l.mu.Unlock()
		if err := l.store.Release(); err != nil {
			l.log.Error("the reserve of the audit log could not be freed", zap.String("log", l.store.Path()), zap.Error(err))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health.noted {
		return
	}
	l.health.noted = true
	l.debts.notices = append(l.debts.notices, notice{kind, []member{
		textMember("op", op), textMember("error", cause.Error()), numberMember("offset", uint64(offset)),
	}})
}

// stillFull reports whether the disk is full. Space has returned when the
// reserve can be set aside again.
func (l *Log) stillFull() bool {
	l.mu.Lock()
	full, lastWords := l.health.full, l.commits.lastWords
	l.mu.Unlock()
	l.commits.lastWords = false
	if !full || lastWords {
		return full
	}
	if err := l.store.Reserve(); err != nil {
		return true
	}
	l.mu.Lock()
	l.health.full = false
	l.mu.Unlock()
	return false
}

// acknowledge tells the caller that a record is in the log. flushed says that
// it could not be made durable.
func (l *Log) acknowledge(e *entry, flushed error) {
	if e.kind == outcomeEntry {
		l.paid(e)
	}
	waited := l.finish(e, flushed)
	if e.kind == intentEntry {
		switch {
		case !waited:
			l.abandon(e.op, Cancelled, "the request was given up before its record was acknowledged")
		case flushed != nil:
			l.abandon(e.op, InternalError, "the request was refused: its record could not be made durable")
		}
	}
	e.recycle()
}

// fail tells the caller that a record is not in the log. An outcome is owed.
func (l *Log) fail(e *entry, err error) {
	if err == nil {
		err = errDiskFull
	}
	if e.kind == outcomeEntry {
		// The caller keeps its entry; what is owed goes on without it.
		l.owe(&entry{draft: e.draft, kind: e.kind, intentSeq: e.intentSeq, op: e.op, shrink: e.shrink})
		e.draft = draft{}
	}
	l.finish(e, err)
	e.recycle()
}

// finish delivers a result. It reports whether the caller waited for it.
func (l *Log) finish(e *entry, err error) bool {
	if e.done == nil {
		return true
	}
	if e.state.Load() == entryFinished {
		return true
	}
	e.err = err
	if !e.state.CompareAndSwap(entryTaken, entryFinished) {
		return false
	}
	close(e.done)
	return true
}
