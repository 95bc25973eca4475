package auditlog

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// errTurn says that the log's file is closed, replaced by another process'
// rotation, or due to be closed: nothing may be appended before turn has run.
var errTurn = errors.New("the audit log's file is to be closed")

// A rotation closes the log's file with epoch_end, checkpoint and segment_end,
// and goes on in a new one that begins with segment_start. Its steps, each of
// which may be the last one before a crash:
//
//  1. the new file and the manifest are prepared beside the log, so that a
//     full disk is found out while the old file can still be used;
//  2. the three records are appended and flushed;
//  3. the manifest takes its place;
//  4. the old file gets its archive name, the new one the log's;
//  5. the state takes its place.
//
// Whoever finds a log that ends in segment_end goes on at step 3, whoever finds
// none at the log's path, but an archive that ends so, at step 4. A state that
// names a closed segment is behind: the records from there on are verified.

// rotation returns what is configured now.
func (l *Log) rotation() Rotation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opt.rotation
}

// rotateRetry is how long a rotation that could not be prepared is put off.
const rotateRetry = 10 * time.Second

// rotationDue reports whether the log's file is to be closed. The committer
// calls it.
func (l *Log) rotationDue() bool {
	l.mu.Lock()
	r, full := l.opt.rotation, l.health.full
	l.mu.Unlock()
	// What ends a process ends its file only at the next start.
	forced := l.forceTurn.Load()
	if !r.rotates() && !forced || full || l.closing.Load() || l.sync.broken.Load() {
		return false
	}
	now := l.cfg.Now()
	l.posMu.Lock()
	defer l.posMu.Unlock()
	p := &l.pos
	if forced {
		return p.used && !p.ended
	}
	if !p.used || p.ended || now.Before(l.commits.rotateAfter) {
		return false
	}
	return r.Size > 0 && p.offset >= r.Size || r.Every != Never && r.Every.begin(now).After(r.Every.begin(p.began))
}

// ended reports whether the log's file is closed, and no other begun.
func (l *Log) ended() bool {
	l.posMu.Lock()
	defer l.posMu.Unlock()
	return l.pos.ended
}

// turnDue reports whether there is something for turn to do, although nothing
// is to be written. The committer calls it.
func (l *Log) turnDue() bool {
	return l.ended() || l.rotationDue() || l.retentionDue() || l.evolveDue()
}

// turnTick is how long the committer may sleep before a period ends or a
// segment expires.
func (l *Log) turnTick() time.Duration {
	r, now, tick := l.rotation(), l.cfg.Now(), time.Hour
	c := &l.commits
	if r.Every != Never {
		tick = min(tick, r.Every.next(now).Sub(now))
	}
	if r.retains() && !c.expires.IsZero() {
		tick = min(tick, c.expires.Sub(now))
	}
	if c.rotateAfter.After(now) {
		tick = min(tick, c.rotateAfter.Sub(now))
	}
	return max(tick, 10*time.Millisecond)
}

// turn does what needs all locks: it follows the rotations of other processes,
// completes one that was interrupted, goes on to the next key if keys evolve,
// closes the log's file if that is due, and deletes old ones.
func (l *Log) turn(opt options) error {
	seg, _ := l.store.(SegmentStore)
	// Saving and flushing work on the file that is held, so both must rest.
	l.sync.saveMu.Lock()
	defer l.sync.saveMu.Unlock()
	l.sync.mu.Lock()
	defer l.sync.mu.Unlock()
	if err := l.store.Lock(); err != nil {
		return l.note(err)
	}
	err := l.turnLocked(seg, opt)
	return l.note(errors.Join(err, l.store.Unlock()))
}

func (l *Log) turnLocked(seg SegmentStore, opt options) error {
	err := l.catchUp()
	if errors.Is(err, errTurn) {
		if seg == nil {
			return l.refuse("log_replaced", "the file was replaced or removed while it was open")
		}
		err = l.followSegments(seg)
	}
	if err == nil {
		err = l.endEpoch()
	}
	if err != nil || seg == nil {
		return err
	}
	var next *nextSegment
	if l.rotationDue() {
		if next, err = l.closeSegment(seg); err != nil {
			return err
		}
	}
	turned := l.pos.ended
	if turned {
		if err := l.openSegment(seg, next); err != nil {
			l.diskFailed("rotate", err, l.pos.offset)
			return err
		}
	}
	if turned || l.retentionDue() {
		l.retain(seg, opt)
		signalTo(l.tending)
	}
	return nil
}

// nextSegment is a new file that is prepared, and the name that the old one
// gets.
type nextSegment struct {
	at      position // behind its first line
	archive string
}

// closeSegment appends the records that close the log's file. What cannot be
// prepared only puts the rotation off. All locks are held.
func (l *Log) closeSegment(seg SegmentStore) (*nextSegment, error) {
	now := l.cfg.Now()
	c := &l.commits
	if l.cfg.KeyMode == Evolving {
		// No record of an epoch comes before its key is in the state.
		if err := l.evolve(); err != nil {
			return nil, err
		}
	}
	t, seal, closing, next, err := l.prepareTurn(seg, now)
	if err != nil {
		c.buf = c.buf[:0]
		c.rotateAfter = now.Add(rotateRetry)
		l.log.Warn("the audit log could not be rotated; it goes on in the same file and tries again",
			zap.String("log", l.store.Path()), zap.Error(err))
		return nil, nil
	}
	c.buf, c.pos = append(c.buf[:0], closing...), l.pos.offset
	if err := l.store.Append(c.buf, c.pos); err != nil {
		return nil, l.writeFailed(err)
	}
	l.posMu.Lock()
	l.pos, l.seal = t, seal
	l.posMu.Unlock()
	return next, nil
}

// prepareTurn seals the records that close the log's file, and stages the next
// file and the manifest. t is the position behind the former, and seal the
// sealer there.
func (l *Log) prepareTurn(seg SegmentStore, now time.Time) (t position, seal *sealer, closing []byte, next *nextSegment, err error) {
	c, before := &l.commits, l.seal
	defer func() { l.seal = before }()
	t = l.pos
	t.tree = l.pos.tree.Clone()
	c.buf = c.buf[:0]
	if l.cfg.KeyMode == Static {
		end := record(kindEpochEnd, newStamp(now), numberMember("epoch", t.epoch))
		l.sealRecord(&t, &end, false)
		l.seal = before.clone()
		l.seal.evolve(t.origin)
		t.epoch++
	}
	seal = l.seal
	if err := l.autoCheckpoint(&t, now); err != nil {
		return t, nil, nil, nil, err
	}
	end := record(kindSegmentEnd, newStamp(now), numberMember("segment", t.segment))
	l.sealRecord(&t, &end, false)
	t.ended = true
	size := len(c.buf)
	next = &nextSegment{at: t, archive: seg.ArchiveName(t.segment, now)}
	next.at.tree = t.tree.Clone()
	l.sealOpening(&next.at, now)
	closing = append([]byte(nil), c.buf[:size]...)
	if err := seg.StageSegment(c.buf[size:]); err != nil {
		return t, nil, nil, nil, err
	}
	m, err := l.manifest(seg)
	if err != nil {
		return t, nil, nil, nil, err
	}
	m.put(l.manifestSegment(&t, next.archive))
	return t, seal, closing, next, l.store.Stage(ManifestDocument, m.Encode())
}

// sealOpening appends the first line of the next segment to the batch buffer
// and moves t behind it.
func (l *Log) sealOpening(t *position, now time.Time) {
	d := record(kindSegment, newStamp(now), numberMember("segment", t.segment+1), textMember("origin", t.origin), textMember("vkey", l.vkey),
		hashMember("prev_chain", t.chain), numberMember("size", t.next), hashesMember("range", t.tree.Roots), textMember("run", l.run))
	t.segment, t.offset, t.ended, t.used = t.segment+1, 0, false, false
	t.first, t.began = t.next, now
	l.sealRecord(t, &d, false)
}

// openSegment goes on in the next file, which next describes if it is prepared.
// The file that is held ends in segment_end, or there is none at the log's
// path. All locks are held.
func (l *Log) openSegment(seg SegmentStore, next *nextSegment) error {
	info, err := l.store.Stat()
	there := err == nil && info.Exists
	if err != nil && !isReplaced(err) {
		return err
	}
	if there {
		if err := l.flushClosed(); err != nil {
			return err
		}
	}
	if next != nil {
		err = l.store.Publish(ManifestDocument)
		if err == nil {
			err = l.store.SyncFolder()
		}
	} else {
		next, err = l.prepareAgain(seg, there)
	}
	if err == nil {
		info, err = seg.Turn(next.archive)
	}
	l.commits.buf = l.commits.buf[:0]
	if err != nil {
		return err
	}
	next.at.fileID = info.ID
	// The open intents are those of the position; nothing was recorded since.
	l.setPosition(next.at)
	l.sync.reached(l.here())
	l.noteUnchecked()
	l.log.Info("the audit log was rotated", zap.String("log", l.store.Path()), zap.String("closed", next.archive), zap.Uint64("segment", next.at.segment))
	if err := l.saveTurn(); err != nil {
		l.log.Warn("the state of the audit log could not be saved", zap.String("log", l.store.Path()), zap.Error(err))
		l.sync.wake()
	}
	return nil
}

// flushClosed makes a closed file durable.
func (l *Log) flushClosed() error {
	err := l.store.Sync()
	if err == nil {
		l.sync.reached(l.here())
		return nil
	}
	l.sync.broken.Store(true)
	l.diskFailed("fdatasync", err, l.sync.point.offset)
	return l.rewriteLocked()
}

// prepareAgain enters a closed file into the manifest and stages the next one,
// after an attempt that went no further.
func (l *Log) prepareAgain(seg SegmentStore, there bool) (*nextSegment, error) {
	archive, err := l.publishManifest(seg, there)
	if err != nil {
		return nil, err
	}
	next := &nextSegment{at: l.pos, archive: archive}
	next.at.tree = l.pos.tree.Clone()
	c := &l.commits
	c.buf = c.buf[:0]
	l.sealOpening(&next.at, l.cfg.Now())
	return next, seg.StageSegment(c.buf)
}

// publishManifest enters the closed file into the manifest, and returns the
// name that it gets or has. there says whether it still lies at the log's path.
func (l *Log) publishManifest(seg SegmentStore, there bool) (archive string, err error) {
	m, err := l.manifest(seg)
	if err != nil {
		return "", err
	}
	archive = seg.ArchiveName(l.pos.segment, l.cfg.Now())
	entered := m.find(l.pos.segment)
	if entered != nil {
		archive = entered.File
	}
	if !there {
		list, err := seg.Archives()
		if err != nil {
			return "", err
		}
		for _, a := range list {
			if a.Segment == l.pos.segment {
				archive = a.Name
			}
		}
	}
	entry := l.manifestSegment(&l.pos, archive)
	if entry.Checkpoint == "" {
		if entry.Checkpoint, err = l.lastNote(seg, there); err != nil {
			return "", err
		}
	}
	if entered != nil && *entered == entry {
		return archive, nil
	}
	m.put(entry)
	return archive, l.saveManifest(m)
}

// lastNote reads the checkpoint before segment_end.
func (l *Log) lastNote(seg SegmentStore, there bool) (string, error) {
	if there {
		return noteBefore(storeReader{l.store}, l.pos.offset)
	}
	f, err := seg.OpenArchive(l.pos.segment)
	if err != nil {
		return "", err
	}
	note, err := noteBefore(f, l.pos.offset)
	return note, errors.Join(err, f.Close())
}

// noteBefore reads the note of the checkpoint in the line before the last one.
func noteBefore(r readerAt, offset int64) (note string, err error) {
	last, err := lineBefore(r, offset)
	if err == nil {
		offset -= int64(len(last)) + 1
		last, err = lineBefore(r, offset)
	}
	if err != nil {
		return "", err
	}
	line, fault := SplitLine(last)
	if fault != LineOK {
		return "", fmt.Errorf("no checkpoint stands before segment_end (%s)", fault)
	}
	return bodyView{line.Prefix}.text("note"), nil
}

// saveTurn puts the state and the checkpoint of the new file's beginning in
// their places. All locks are held.
func (l *Log) saveTurn() error {
	l.posMu.Lock()
	p := l.pos.clone()
	l.posMu.Unlock()
	if err := l.store.Stage(StateDocument, encodeState(&p)); err != nil {
		return err
	}
	if err := l.store.Publish(StateDocument); err != nil {
		return err
	}
	if len(p.note) > 0 {
		if err := l.store.Stage(CheckpointDocument, p.note); err != nil {
			return err
		}
		if err := l.publishCheckpoint(&p); err != nil {
			return err
		}
	}
	if err := l.store.SyncFolder(); err != nil {
		return err
	}
	l.sync.saved = p.next
	return nil
}

// manifestSegment describes the segment that t ends.
func (l *Log) manifestSegment(t *position, archive string) ManifestSegment {
	return ManifestSegment{
		Segment: t.segment, File: archive, Origin: t.origin, FirstSeq: t.first, LastSeq: t.next - 1,
		Bytes: t.offset, Checkpoint: string(t.note),
	}
}

// saveManifest puts a manifest in its place, durably.
func (l *Log) saveManifest(m *Manifest) error {
	err := l.store.Stage(ManifestDocument, m.Encode())
	if err == nil {
		err = l.store.Publish(ManifestDocument)
	}
	if err == nil {
		err = l.store.SyncFolder()
	}
	return err
}

// manifest reads the manifest. One that is missing or damaged is made anew
// from the closed segments that can be read.
func (l *Log) manifest(seg SegmentStore) (*Manifest, error) {
	name, _, _, _, _ := SplitArchiveName(seg.ArchiveName(0, time.Time{}.AddDate(2000, 0, 0)))
	text, err := l.store.Load(ManifestDocument)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotRegular) {
		return nil, err
	}
	if err == nil {
		m, bad := ParseManifest(text)
		if bad == nil && m.Log == name {
			return m, nil
		}
		l.log.Error("the manifest of the closed segments is damaged and is made anew", zap.String("log", l.store.Path()), zap.Error(bad))
	}
	m := &Manifest{Log: name}
	list, err := seg.Archives()
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if a.Compressed {
			continue
		}
		if e, ok, err := describeArchive(seg, a); err != nil {
			return nil, err
		} else if ok {
			m.put(e)
		}
	}
	return m, nil
}

// describeArchive reads what a manifest says of a closed segment. ok is false
// if it does not end as one.
func describeArchive(seg SegmentStore, a Archive) (e ManifestSegment, ok bool, err error) {
	f, err := seg.OpenArchive(a.Segment)
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, bad := readHead(f, f.Size())
	last, badLast := lineBefore(f, f.Size())
	if bad != nil || badLast != nil {
		return e, false, nil
	}
	line, fault := SplitLine(last)
	if fault != LineOK || (bodyView{line.Prefix}).text("kind") != kindSegmentEnd {
		return e, false, nil
	}
	e = ManifestSegment{
		Segment: a.Segment, File: a.Name, Origin: head.origin, FirstSeq: head.seq, LastSeq: line.Seal.Seq, Bytes: f.Size(),
	}
	e.Checkpoint, bad = noteBefore(f, f.Size())
	return e, bad == nil, nil
}
