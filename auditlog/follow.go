package auditlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"
)

type readerAt = io.ReaderAt

// fileHead is what the first record of a log's file says.
type fileHead struct {
	line      Line
	kind      string
	origin    string
	vkey      string
	keyID     string // genesis and chain_break
	seq       uint64
	segment   uint64
	numbered  bool // it names its segment
	began     time.Time
	prevChain Hash
	tree      Range
	whole     bool // prev_chain, size and range are there and agree
}

// readHead reads the first record of a file. A fault of the line is a
// *lineError.
func readHead(r readerAt, size int64) (h fileHead, err error) {
	text, err := firstLine(r, size)
	if err != nil {
		return h, err
	}
	line, fault := SplitLine(text)
	if fault != LineOK {
		return h, &lineError{"genesis_missing", "its first line is no sealed record"}
	}
	b := bodyView{line.Prefix}
	h.line, h.seq = line, line.Seal.Seq
	h.kind, h.origin, h.vkey, h.keyID = b.text("kind"), b.text("origin"), b.text("vkey"), b.text("key_id")
	h.segment, h.numbered = b.number("segment")
	if ns, ok := parseTimestamp(b.raw("timestamp")); ok {
		h.began = time.Unix(0, ns).UTC()
	}
	if h.kind == kindSegment {
		stated, ok := b.number("size")
		tree, bad := rangeMember(b.raw("range"), h.seq)
		h.prevChain, h.whole = b.hash("prev_chain")
		h.tree, h.whole = tree, h.whole && ok && stated == h.seq && bad == nil
	}
	return h, nil
}

// takeHead notes what is remembered of the file that p lies in.
func (p *position) takeHead(h *fileHead) {
	p.first, p.began = h.seq, h.began
	p.used = p.next > h.seq+2 || h.kind != kindSegment
}

// loadClosed goes on from a state whose segment was closed since, or is about
// to be: the rotation was interrupted, or the state could not be saved.
func (l *Log) loadClosed(p position) error {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return l.refuse("log_missing", fmt.Sprintf("the file is gone, but its state says that %d records were written", p.next))
	}
	f, err := seg.OpenArchive(p.segment)
	if errors.Is(err, fs.ErrNotExist) {
		return l.refuse("log_missing", fmt.Sprintf("segment %d, in which its state says that %d records ended, is gone", p.segment, p.next))
	}
	if err != nil {
		return l.unusable(err)
	}
	err = l.checkClosed(&p, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	l.setPosition(p)
	l.startAt(&p)
	return l.followSegments(seg)
}

// checkClosed checks that a closed segment is the one that a state speaks of.
func (l *Log) checkClosed(p *position, f ArchiveFile) error {
	if f.Size() < p.offset {
		return l.refuse("tail_truncated", fmt.Sprintf("segment %d has %d bytes, but its state says that %d were written", p.segment, f.Size(), p.offset))
	}
	if err := l.checkStart(p, f, f.Size()); err != nil {
		return err
	}
	return l.checkState(p, f)
}

func (l *Log) setPosition(p position) {
	l.posMu.Lock()
	l.pos = p
	l.posMu.Unlock()
}

// followSegments verifies and takes in what lies between the known position
// and the log's end, across the files that were closed meanwhile. It leaves the
// position behind segment_end if the rotation that it belongs to was never
// completed. While the log is in use, all locks are held.
func (l *Log) followSegments(seg SegmentStore) error {
	for {
		f, err := seg.OpenArchive(l.pos.segment)
		if errors.Is(err, fs.ErrNotExist) {
			return l.resync(seg)
		}
		if err != nil {
			return l.unusable(err)
		}
		if err = l.relocate(f); err == nil {
			err = l.followFile(f, f.Size(), false)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		if !l.pos.ended {
			return l.refuse("segment_unclosed", fmt.Sprintf("segment %d was closed, but does not end with segment_end", l.pos.segment))
		}
		l.commits.buf = l.commits.buf[:0]
		next, err := seg.OpenArchive(l.pos.segment + 1)
		if err == nil {
			err = l.enter(next, next.Size())
			if err = errors.Join(err, next.Close()); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return l.unusable(err)
		}
		return l.followActive(seg)
	}
}

// relocate finds the known position in a closed segment, in which another
// process may have erased values, so that later records moved.
func (l *Log) relocate(f ArchiveFile) error {
	p := &l.pos
	last := func(text []byte) bool {
		line, fault := SplitLine(text)
		return fault == LineOK && line.Seal.Seq == p.next-1 && line.Seal.Chain == p.chain
	}
	if p.offset == 0 {
		return nil
	}
	if p.offset <= f.Size() {
		if text, err := lineBefore(f, p.offset); err == nil && last(text) {
			return nil
		}
	}
	lines := newLineReader(f, 0, f.Size())
	for {
		line, err := lines.next()
		if err == io.EOF {
			// What is wrong with it is told by the check of what follows.
			return nil
		}
		if err != nil {
			return err
		}
		if line.complete && !line.tooLong && last(line.text) {
			l.posMu.Lock()
			p.offset = lines.pos
			l.posMu.Unlock()
			return nil
		}
	}
}

// followActive goes on in the file at the log's path, behind a closed one.
func (l *Log) followActive(seg SegmentStore) error {
	info, err := seg.Switch()
	if err != nil {
		return l.unusable(err)
	}
	if !info.Exists {
		l.sync.reached(l.here())
		return nil
	}
	r := storeReader{l.store}
	if err := l.enter(r, info.Size); err != nil {
		return err
	}
	l.posMu.Lock()
	l.pos.fileID = info.ID
	l.posMu.Unlock()
	l.sync.reached(l.here())
	return l.followFile(r, info.Size, true)
}

// enter moves the position into the file of the next segment, whose first
// record must continue it.
func (l *Log) enter(r readerAt, size int64) error {
	h, err := readHead(r, size)
	var bad *lineError
	if errors.As(err, &bad) {
		return l.refuse(bad.finding, fmt.Sprintf("of segment %d, %s", l.pos.segment+1, bad.why))
	}
	if err != nil {
		return err
	}
	p := &l.pos
	if h.kind != kindSegment || h.origin != p.origin || h.segment != p.segment+1 || !h.whole || h.prevChain != p.chain ||
		h.seq != p.next || !slices.Equal(h.tree.Roots, p.tree.Roots) {
		return l.refuse("log_replaced", fmt.Sprintf("the file that follows segment %d does not continue its chain", p.segment))
	}
	l.posMu.Lock()
	defer l.posMu.Unlock()
	p.segment, p.offset, p.ended, p.used = p.segment+1, 0, false, false
	p.first, p.began = h.seq, h.began
	return nil
}

// resync takes over the state that other processes left, where the files that
// lead there from the known position were deleted or compressed meanwhile.
func (l *Log) resync(seg SegmentStore) error {
	gone := func() error {
		return l.refuse("log_replaced", "the file was replaced or removed while it was open")
	}
	doc, err := l.store.Load(StateDocument)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotRegular) {
			return gone()
		}
		return err
	}
	p, err := decodeState(doc)
	if err != nil || p.origin != l.pos.origin || p.next < l.pos.next || p.segment <= l.pos.segment {
		return gone()
	}
	info, err := seg.Switch()
	if err != nil {
		return l.unusable(err)
	}
	if err := l.useKeys(&p); err != nil {
		return err
	}
	l.commits.buf = l.commits.buf[:0]
	return l.loadAt(p, info)
}
