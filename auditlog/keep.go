package auditlog

import (
	"context"
	"fmt"
)

// Before retention deletes a segment, the leaf hashes of its records go into
// the tiles beside the log: with them a record that was kept elsewhere can
// still be proven, and old checkpoints can still be compared with new ones.
// Reading a segment takes long, so it is done in the background, without the
// commit lock; retention deletes only what the tiles have, and waits for the
// rest.

// notesToKeep are the newest checkpoints of a log's incarnations, up to which
// its tiles are to go, by origin.
func notesToKeep(m *Manifest, newest []byte) map[string][]byte {
	notes := map[string][]byte{}
	for i := range m.Segments {
		if e := &m.Segments[i]; e.Checkpoint != "" {
			notes[e.Origin] = []byte(e.Checkpoint)
		}
	}
	if head, err := ReadTreeHead(newest); err == nil {
		if have, err := ReadTreeHead(notes[head.Origin]); err != nil || have.Size < head.Size {
			notes[head.Origin] = newest
		}
	}
	return notes
}

// begins is the first record of an origin that a manifest lists.
func (m *Manifest) begins(origin string) (seq uint64, ok bool) {
	for i := range m.Segments {
		if e := &m.Segments[i]; e.Origin == origin {
			return e.FirstSeq, true
		}
	}
	return 0, false
}

// keepLeaves brings the tiles up to the newest checkpoints, and says so to
// retention if they grew.
func (l *Log) keepLeaves(ctx context.Context, seg SegmentStore, m *Manifest, newest []byte) error {
	if !l.rotation().retains() {
		return nil
	}
	for origin, note := range notesToKeep(m, newest) {
		head, err := ReadTreeHead(note)
		if err != nil {
			return fmt.Errorf("the checkpoint of %s: %w", origin, err)
		}
		have, err := seg.KeptLeaves(origin)
		if err != nil {
			return l.notKept(origin, err)
		}
		first, listed := m.begins(origin)
		if !listed || have.Size >= head.Size || have.Size < first {
			continue // nothing to delete, done, or begun too late
		}
		if err := seg.KeepLeaves(ctx, note); err != nil {
			return l.notKept(origin, err)
		}
		l.kept.Store(true)
		l.queue.signal()
	}
	return nil
}

// notKept explains why segments stay. Tiles that are damaged while records
// before them are gone can only be given up by hand.
func (l *Log) notKept(origin string, err error) error {
	return fmt.Errorf("the leaf hashes of closed segments could not be kept in %s, so none of these is deleted; make room there, or, if its files are damaged, remove the folder: %w",
		TilesDir(l.store.Path(), origin), err)
}

// leavesKept reports whether the tiles have all the leaves of a closed segment
// that a signed checkpoint covers, so that it may be deleted. Where the leaves
// before it are gone already, there is nothing to wait for.
func (l *Log) leavesKept(seg SegmentStore, m *Manifest, segment uint64) (bool, error) {
	e := m.find(segment)
	if e == nil {
		return true, nil // given up by a chain break
	}
	have, err := seg.KeptLeaves(e.Origin)
	if err != nil {
		return false, l.notKept(e.Origin, err)
	}
	first, _ := m.begins(e.Origin)
	if have.Size > e.LastSeq || have.Size < first {
		return true, nil
	}
	if e.Origin == l.pos.origin {
		return false, nil // a checkpoint further on covers its last records
	}
	// Of a chain that was given up, there is nothing behind its last checkpoint.
	last, noted := notesToKeep(m, nil)[e.Origin]
	if !noted {
		return true, nil
	}
	head, err := ReadTreeHead(last)
	if err != nil {
		return false, l.notKept(e.Origin, fmt.Errorf("its last checkpoint in the manifest: %w", err))
	}
	return have.Size >= head.Size, nil
}
