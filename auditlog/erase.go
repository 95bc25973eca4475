package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"go.uber.org/zap"
)

// Erasure is the erasure of a record's values, or of one committed value.
type Erasure struct {
	Seq          uint64 // of the record
	Field        string // a committed member, or "*": the whole record
	Reason       string // why; for the record of the erasure
	AuthorisedBy string // who answers for it; for the record of the erasure
}

// WholeRecord is the Field of an Erasure that leaves only the record's seal.
const WholeRecord = wholeRecord

// EraserStore is a Store that can change a record where it lies. The positions
// of other records stay; what the record is now shorter by reads as line feeds.
type EraserStore interface {
	Store
	// Record returns the line of a record, without its LF; fs.ErrNotExist if
	// there is none.
	Record(seq uint64) ([]byte, error)
	// Erase puts a line, without its LF, in a record's place, durably, and
	// leaves nothing of what was there. It is called under the commit lock.
	Erase(seq uint64, line []byte) error
}

// RewritingStore is a SegmentStore that can change a record of a closed
// segment.
type RewritingStore interface {
	SegmentStore
	// EditArchive makes, durably, a copy of a closed segment, compressed if that
	// is, in which edit has changed lines (without their LF), and returns the
	// size and the SHA-256 of what it has uncompressed. Edit returns the line
	// that it is given, or another. UseEdited puts the copy in the segment's
	// place, under the commit lock, and then overwrites what the old file had
	// in the given stretch, if it was not compressed.
	EditArchive(ctx context.Context, a Archive, edit func(line []byte) ([]byte, error)) (size int64, sum Hash, err error)
	UseEdited(a Archive, from, to int64) error
}

// The bounds of an erasure's texts, in bytes.
const maxErasureText = 1024

// eraseWait is how long an erasure waits for calls that are going on, and for
// work on closed segments.
const eraseWait = 10 * time.Second

// Erase removes the values of a record, or one committed value of it, for good.
// A record of kind erasure says so first: which record, why, and who answers for
// it. The seal, the chain and all proofs stay valid. It may run beside other
// writers. If the record lies in the log's file, that is closed as a segment
// first. An intent whose call is still going on cannot be erased.
//
// If it fails after the erasure was recorded, it has to be called again; a second
// record of it does no harm. What file systems and disks keep of a deleted file
// is beyond it, as are backups and exports.
func (l *Log) Erase(ctx context.Context, e Erasure) error {
	switch {
	case e.Reason == "" || e.AuthorisedBy == "":
		return errors.New("an erasure needs a reason and the name of who answers for it: both are recorded")
	case len(e.Reason) > maxErasureText || len(e.AuthorisedBy) > maxErasureText:
		return fmt.Errorf("the reason or the name is longer than %d bytes", maxErasureText)
	case e.Field == "":
		return errors.New("an erasure needs a field: a committed member, or * for the whole record")
	}
	switch store := l.store.(type) {
	case EraserStore:
		return l.eraseRow(ctx, store, e)
	case RewritingStore:
		return l.eraseLine(ctx, store, e)
	}
	return fmt.Errorf("nothing can be erased from %s", l.store.Path())
}

// erasedLine is a record's line after the erasure. done says that it is that
// already.
func erasedLine(line []byte, e Erasure) (out []byte, done bool, err error) {
	l, fault := SplitLine(line)
	if fault != LineOK || l.Seal.Seq != e.Seq {
		return nil, false, fmt.Errorf("record %d is not intact (%s); run `mcp-audit verify` first", e.Seq, fault)
	}
	if l.Erased() {
		return line, true, nil
	}
	body := bodyView{l.Prefix}
	switch kind := body.text("kind"); kind {
	case kindIntent, kindOutcome, kindEvent:
	default:
		return nil, false, fmt.Errorf("record %d is of kind %s, which holds nothing of a call; only intents, outcomes and events can be erased", e.Seq, kind)
	}
	if e.Field == wholeRecord {
		out = AppendLine(nil, []byte(erasedBody), &l.Seal, nil)
		return out[:len(out)-1], false, nil
	}
	value := body.raw(e.Field)
	if value == nil || !isCommitment(value) {
		return nil, false, fmt.Errorf("record %d does not commit to %q, so that it cannot be erased alone; erase the whole record, or set `commit` for the future", e.Seq, e.Field)
	}
	if opened(&l, e.Field) == nil {
		return line, true, nil
	}
	var open []byte
	ObjectMembers(l.Open, func(name, pair []byte) bool {
		if string(name) != e.Field {
			open = append(append(append(open, ',', '"'), name...), `":`...)
			open = append(open, pair...)
		}
		return true
	})
	out = AppendLine(nil, l.Body(), &l.Seal, closeOpenings(open))
	return out[:len(out)-1], false, nil
}

// announceErasure records the erasure, durably.
func (l *Log) announceErasure(ctx context.Context, e Erasure, line []byte) error {
	members := []member{
		numberMember("target", e.Seq), textMember("field", e.Field),
		textMember("reason", e.Reason), textMember("authorised_by", e.AuthorisedBy), textMember("run", l.run),
	}
	r, _ := ParseRecord(line)
	if seq, ok := r.Number("intent_seq"); ok && e.Field == wholeRecord {
		// The outcome will not tell any more which intent it closed.
		members = append(members, numberMember("intent_seq", seq))
	}
	d := record(kindErasure, newStamp(l.cfg.Now()), members...)
	if _, err := l.submit(ctx, &entry{draft: d, kind: otherEntry}); err != nil {
		return err
	}
	return l.persist()
}

// going reports whether a record is the intent of a call that goes on.
func (l *Log) going(seq uint64) error {
	l.posMu.Lock()
	defer l.posMu.Unlock()
	if _, open := l.pos.open[seq]; open {
		return fmt.Errorf("record %d is the intent of a call that is still going on; erase it when the call has ended", seq)
	}
	return nil
}

func (l *Log) eraseRow(ctx context.Context, store EraserStore, e Erasure) error {
	line, err := store.Record(e.Seq)
	if errors.Is(err, fs.ErrNotExist) {
		return l.noRecord(e.Seq)
	}
	if err != nil {
		return err
	}
	if _, done, err := erasedLine(line, e); err != nil || done {
		return err
	}
	if err := l.going(e.Seq); err != nil {
		return err
	}
	if err := l.announceErasure(ctx, e, line); err != nil {
		return err
	}
	return l.locked(func() error {
		line, err := store.Record(e.Seq)
		if err != nil {
			return err
		}
		now, done, err := erasedLine(line, e)
		if err != nil || done {
			return err
		}
		return store.Erase(e.Seq, now)
	})
}

func (l *Log) noRecord(seq uint64) error {
	return fmt.Errorf("%s has no record %d; `mcp-audit tail` and `mcp-audit export` tell the numbers", l.store.Path(), seq)
}

func (l *Log) eraseLine(ctx context.Context, store RewritingStore, e Erasure) error {
	line, found, err := l.lineOf(ctx, store, e.Seq)
	if err != nil {
		return err
	}
	if !found {
		return l.noRecord(e.Seq)
	}
	_, done, err := erasedLine(line, e)
	if err != nil {
		return err
	}
	if err := l.going(e.Seq); err != nil {
		return err
	}
	if !done {
		if err := l.announceErasure(ctx, e, line); err != nil {
			return err
		}
	}
	a, err := l.closedWith(ctx, store, e.Seq)
	if err != nil {
		return err
	}
	release, err := l.tendExclusively(ctx, store)
	if err != nil {
		return err
	}
	return errors.Join(l.rewriteArchive(ctx, store, a, e), release())
}

// lineOf finds a record in the log's file or a closed segment.
func (l *Log) lineOf(ctx context.Context, store RewritingStore, seq uint64) (line []byte, found bool, err error) {
	m, err := l.segmentWith(store, seq)
	if err != nil {
		return nil, false, err
	}
	take := func(text []byte) ([]byte, error) {
		if s, fault := SplitLine(text); fault == LineOK && s.Seal.Seq == seq {
			line, found = append([]byte(nil), text...), true
			return nil, errFound
		}
		return text, nil
	}
	if m != nil {
		// The search works in the file in which a segment is compressed too.
		release, err := l.tendExclusively(ctx, store)
		if err != nil {
			return nil, false, err
		}
		a, err := current(store, m.archive())
		if err == nil {
			_, _, err = store.EditArchive(ctx, a, take)
		}
		if errors.Is(err, errFound) {
			err = nil
		}
		return line, found, errors.Join(err, release())
	}
	err = l.locked(func() error {
		info, err := l.store.Stat()
		if err != nil {
			return err
		}
		lines := newLineReader(storeReader{l.store}, 0, info.Size)
		for !found {
			text, err := lines.next()
			if err != nil {
				return nil //nolint:nilerr // the record is not there; what is wrong with the file is for verify
			}
			if text.complete && !text.tooLong {
				_, _ = take(text.text)
			}
		}
		return nil
	})
	return line, found, err
}

// errFound ends a search.
var errFound = errors.New("found")

// current is a closed segment as it lies there now: it may have been compressed.
func current(store SegmentStore, a Archive) (Archive, error) {
	list, err := store.Archives()
	if err != nil {
		return a, err
	}
	for _, now := range list {
		if now.Segment == a.Segment {
			return now, nil
		}
	}
	return a, fmt.Errorf("segment %s: %w", a.Name, fs.ErrNotExist)
}

// archive is the closed segment of a manifest's entry.
func (s *ManifestSegment) archive() Archive {
	_, segment, closed, _, _ := SplitArchiveName(s.File)
	return Archive{Segment: segment, Name: s.File, Closed: closed}
}

// segmentWith is the closed segment that has a record, or nil.
func (l *Log) segmentWith(store RewritingStore, seq uint64) (found *ManifestSegment, err error) {
	err = l.locked(func() error {
		m, err := l.manifest(store)
		if err != nil {
			return err
		}
		for i := range m.Segments {
			if s := &m.Segments[i]; s.Origin == l.pos.origin && s.FirstSeq <= seq && seq <= s.LastSeq {
				found = s
			}
		}
		return nil
	})
	return found, err
}

// closedWith returns the closed segment with a record, and closes the log's file
// if the record lies in that.
func (l *Log) closedWith(ctx context.Context, store RewritingStore, seq uint64) (a Archive, err error) {
	s, err := l.segmentWith(store, seq)
	if err != nil {
		return a, err
	}
	if s == nil {
		l.forceTurn.Store(true)
		err := l.turn(l.options())
		l.forceTurn.Store(false)
		if err != nil {
			return a, fmt.Errorf("closing the file that has the record: %w", err)
		}
		if s, err = l.segmentWith(store, seq); err != nil {
			return a, err
		}
		if s == nil {
			return a, fmt.Errorf("the file that has record %d could not be closed; its erasure is recorded: run the command again", seq)
		}
	}
	a = s.archive()
	return a, l.awaitSettled(ctx, a.Segment)
}

// awaitSettled waits until nothing that is going on needs the positions of
// records in a closed segment.
func (l *Log) awaitSettled(ctx context.Context, segment uint64) error {
	return l.awaitFor(ctx, func() (done bool, err error) {
		err = l.locked(func() error {
			l.posMu.Lock()
			defer l.posMu.Unlock()
			settled, err := l.settled()
			done = segment < settled
			return err
		})
		return done, err
	}, errors.New("calls that began before that file was closed are still going on; the erasure is recorded: run the command again when they have ended"))
}

func (l *Log) tendExclusively(ctx context.Context, store RewritingStore) (release func() error, err error) {
	err = l.awaitFor(ctx, func() (ok bool, err error) {
		release, ok, err = store.Tend()
		return ok, err
	}, errors.New("closed segments are being compressed; the erasure is recorded: run the command again in a while"))
	return release, err
}

// awaitFor asks until done, an error, or the end of eraseWait.
func (l *Log) awaitFor(ctx context.Context, ask func() (bool, error), late error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, eraseWait, late)
	defer cancel()
	for {
		done, err := ask()
		if err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// rewriteArchive makes the closed segment without what is erased, and enters
// that into the manifest.
func (l *Log) rewriteArchive(ctx context.Context, store RewritingStore, a Archive, e Erasure) error {
	a, err := current(store, a)
	if err != nil {
		return err
	}
	var pos, from, to int64
	size, sum, err := store.EditArchive(ctx, a, func(line []byte) ([]byte, error) {
		at := pos
		pos += int64(len(line)) + 1
		l, fault := SplitLine(line)
		if fault != LineOK || l.Seal.Seq != e.Seq {
			return line, nil
		}
		from, to = at, pos
		now, _, err := erasedLine(line, e)
		return now, err
	})
	if err != nil {
		return fmt.Errorf("the erasure is recorded, but not done: %w; run the command again", err)
	}
	return l.locked(func() error {
		m, err := l.manifest(store)
		if err != nil {
			return err
		}
		entry := m.find(a.Segment)
		if entry == nil {
			return fmt.Errorf("segment %s was deleted meanwhile, and the record with it", a.Name)
		}
		entry.Bytes, entry.SHA256 = size, sum
		if err := l.store.Stage(ManifestDocument, m.Encode()); err != nil {
			return err
		}
		if err := store.UseEdited(a, from, to); err != nil {
			return err
		}
		if err := l.store.Publish(ManifestDocument); err != nil {
			return err
		}
		l.log.Info("values of the audit log were erased", zap.String("log", l.store.Path()), zap.Uint64("seq", e.Seq), zap.String("segment", a.Name))
		return l.store.SyncFolder()
	})
}
