package auditlog

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// flusher makes what was appended durable and keeps the documents beside the
// log up to date.
type flusher struct {
	dirty  chan struct{} // something was appended
	urgent chan struct{} // a checkpoint was appended

	saveMu sync.Mutex // one save at a time; taken before mu
	saved  uint64     // records that the last state covers
	closed bool       // the store is given back

	mu    sync.Mutex // one flush at a time; taken before the commit lock
	point durablePoint

	// The last flush failed, and nothing is written before one succeeds.
	broken atomic.Bool

	durable atomic.Uint64 // records known to be durable
}

// durablePoint is where the durable part of the log ends, and what it takes to
// verify what follows.
type durablePoint struct {
	offset int64
	next   uint64
	chain  Hash
	keyID  string
	epoch  uint64
	key    []byte // K_e
}

// A flush follows a write within flushAfter, well inside the second that is
// promised. Checkpoints that come thick share one.
const (
	flushAfter    = 500 * time.Millisecond
	checkpointGap = 100 * time.Millisecond
)

func (f *flusher) wake() { signalTo(f.dirty) }

func (f *flusher) hurry() { signalTo(f.urgent) }

func signalTo(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// syncLoop flushes and saves in the background.
func (l *Log) syncLoop() {
	var last time.Time
	for {
		select {
		case <-l.sync.dirty:
		case <-l.quit:
			return
		}
		select {
		case <-time.After(flushAfter):
		case <-l.sync.urgent:
			if rest := checkpointGap - time.Since(last); rest > 0 {
				select {
				case <-time.After(rest):
				case <-l.quit:
					return
				}
			}
		case <-l.quit:
			return
		}
		if err := l.persist(); err != nil && l.refused() == nil {
			l.settle(err)
			l.sync.wake()
			l.queue.signal()
		}
		last = time.Now()
	}
}

// persist makes the log durable as far as it is written now, and saves the
// state and the newest checkpoint. They never run ahead of durable data.
func (l *Log) persist() error {
	l.sync.saveMu.Lock()
	defer l.sync.saveMu.Unlock()
	if l.sync.closed {
		return ErrClosed
	}
	l.posMu.Lock()
	snap := l.pos.clone()
	l.posMu.Unlock()
	if err := l.flush(); err != nil {
		return err
	}
	l.offer(snap.note)
	if err := l.save(&snap); err != nil {
		if err = l.note(err); l.refused() != nil {
			return err
		}
		// A state that lags behind only makes the next start verify more.
		l.log.Warn("the state of the audit log could not be saved", zap.String("log", l.store.Path()), zap.Error(err))
		l.sync.wake()
	}
	return nil
}

// here is where the log ends now. posMu is not held.
func (l *Log) here() durablePoint {
	l.posMu.Lock()
	defer l.posMu.Unlock()
	return durablePoint{l.pos.offset, l.pos.next, l.pos.chain, l.seal.keyID, l.seal.epoch, l.seal.key}
}

// flush makes everything appended before the call durable. The commit lock is
// not held, so that other processes go on.
func (l *Log) flush() error {
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	if l.sync.broken.Load() {
		return l.rewrite()
	}
	at := l.here()
	if at.next == l.sync.point.next {
		return nil
	}
	if err := l.store.Sync(); err != nil {
		l.sync.broken.Store(true)
		l.log.Error("flushing the audit log failed; its unflushed part is written anew", zap.String("log", l.store.Path()), zap.Error(err))
		l.diskFailed("fdatasync", err, l.sync.point.offset)
		return l.rewrite()
	}
	l.sync.reached(at)
	return nil
}

func (f *flusher) reached(at durablePoint) {
	f.point = at
	f.durable.Store(at.next)
}

// repair makes up for a flush that failed, before anything else is written.
func (l *Log) repair() error {
	if !l.sync.broken.Load() {
		return nil
	}
	return l.flush()
}

// rewrite makes up for a failed flush. The kernel reports such a failure once
// and then takes the pages for clean, so a second flush of the same descriptor
// would lie: the log is opened anew, what is not known to be durable is read
// back, verified and written again, and then flushed.
func (l *Log) rewrite() error {
	if err := l.refused(); err != nil {
		return err
	}
	if err := l.store.Lock(); err != nil {
		return l.note(err)
	}
	err := l.rewriteLocked()
	return l.note(errors.Join(err, l.store.Unlock()))
}

func (l *Log) rewriteLocked() error {
	err := l.store.Reopen()
	if err == nil {
		err = l.catchUp()
	}
	if seg, ok := l.store.(SegmentStore); ok && (isReplaced(err) || errors.Is(err, errTurn)) {
		// Another process closed the file, and flushed it before.
		err = l.followSegments(seg)
	}
	if errors.Is(err, errTurn) {
		err = l.refuse("log_replaced", "the file was replaced or removed while it was open")
	}
	if err != nil {
		return err
	}
	from := l.sync.point
	r := &patchedReader{r: storeReader{l.store}, patch: l.commits.buf, pos: l.commits.pos}
	p := position{origin: l.pos.origin, segment: l.pos.segment, offset: from.offset, next: from.next, chain: from.chain, keyID: from.keyID, epoch: from.epoch, open: map[uint64]openIntent{}}
	s := &sealer{keyID: from.keyID, epoch: from.epoch, key: from.key, mac: newMacer(macKey(from.key)), find: l.seal.find}
	torn, err := follow(&p, s, r, l.pos.offset, nil)
	if err == nil && (torn != nil || p.chain != l.pos.chain) {
		err = &lineError{"chain_broken", "what was written is not what can be read back"}
	}
	var bad *lineError
	if errors.As(err, &bad) {
		return l.refuse(bad.finding, bad.why+", after the disk failed to flush it")
	}
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for pos := from.offset; pos < l.pos.offset; {
		n, err := r.ReadAt(buf[:min(int64(len(buf)), l.pos.offset-pos)], pos)
		if n == 0 {
			return fmt.Errorf("reading %s back: %w", l.store.Path(), err)
		}
		if err := l.store.Append(buf[:n], pos); err != nil {
			return err
		}
		pos += int64(n)
	}
	if err := l.store.Sync(); err != nil {
		return err
	}
	l.sync.broken.Store(false)
	l.sync.reached(l.here())
	return nil
}

// patchedReader reads the log as it should be: the last batch comes from
// memory, because a failed flush may have dropped its pages.
type patchedReader struct {
	r     io.ReaderAt
	patch []byte
	pos   int64
}

func (r *patchedReader) ReadAt(p []byte, pos int64) (int, error) {
	n, err := r.r.ReadAt(p, pos)
	from, to := max(pos, r.pos), min(pos+int64(n), r.pos+int64(len(r.patch)))
	if from < to {
		copy(p[from-pos:to-pos], r.patch[from-r.pos:to-r.pos])
	}
	return n, err
}

// save puts the documents of a durable position in their places, unless
// another process was there with newer ones.
func (l *Log) save(p *position) error {
	if p.next == l.sync.saved || p.next == 0 {
		return nil
	}
	if err := l.store.Stage(StateDocument, encodeState(p)); err != nil {
		return err
	}
	checkpoint := len(p.note) > 0
	if checkpoint {
		if err := l.store.Stage(CheckpointDocument, p.note); err != nil {
			return err
		}
	}
	if err := l.store.Lock(); err != nil {
		return err
	}
	err := l.publishDocuments(p, checkpoint)
	if err = errors.Join(err, l.store.Unlock()); err != nil {
		return err
	}
	if err := l.store.SyncFolder(); err != nil {
		return err
	}
	l.sync.saved = p.next
	return nil
}

func (l *Log) publishDocuments(p *position, checkpoint bool) error {
	if info, err := l.store.Stat(); err != nil || !info.Exists {
		if err == nil || isReplaced(err) {
			// Another process rotated the log, and saved what is newer. If not,
			// the next commit finds out.
			return nil
		}
		return err
	}
	doc, err := l.store.Load(StateDocument)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	there, err := decodeState(doc)
	if err != nil || there.origin != p.origin || there.next < p.next {
		if err := l.store.Publish(StateDocument); err != nil {
			return err
		}
	}
	if !checkpoint {
		return nil
	}
	return l.publishCheckpoint(p)
}

// publishCheckpoint puts the staged checkpoint in its place, unless a newer one
// is there.
func (l *Log) publishCheckpoint(p *position) error {
	note, err := l.store.Load(CheckpointDocument)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if head, err := ReadTreeHead(note); err == nil && head.Origin == p.origin && head.Size >= p.checkpointed {
		return nil
	}
	return l.store.Publish(CheckpointDocument)
}

// hashRange is the SHA-256 of a stretch of the log.
func hashRange(r io.ReaderAt, pos, n int64) (Hash, error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, pos, n)); err != nil {
		return Hash{}, err
	}
	return sum(h), nil
}

func asRefused(err error) (r *RefusedError, ok bool) {
	ok = errors.As(err, &r)
	return r, ok
}

func isReplaced(err error) bool { return errors.Is(err, ErrReplaced) }
