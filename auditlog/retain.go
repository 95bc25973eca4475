package auditlog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The bounds of retention: how many segments one record names, and how long a
// deletion that failed is put off.
const (
	maxRetired  = 500
	retainRetry = time.Minute
)

// retentionDue reports whether there may be closed segments to delete. The
// committer calls it.
func (l *Log) retentionDue() bool {
	c := &l.commits
	return l.rotation().retains() && (!c.keeping || l.kept.Load() || !c.expires.IsZero() && !l.cfg.Now().Before(c.expires))
}

// retain deletes the oldest closed segments, by age and then by number, after
// a record that says so. What fails is tried again later. All locks are held.
func (l *Log) retain(seg SegmentStore, opt options) {
	c := &l.commits
	c.keeping, c.expires = true, time.Time{}
	l.kept.Store(false)
	rotation := l.rotation()
	if !rotation.retains() {
		return
	}
	err := l.retire(seg, rotation, opt)
	if err != nil {
		c.expires = l.cfg.Now().Add(retainRetry)
		l.log.Warn("closed segments of the audit log could not be deleted; it is tried again",
			zap.String("log", l.store.Path()), zap.Error(err))
	}
}

func (l *Log) retire(seg SegmentStore, r Rotation, opt options) error {
	list, err := seg.Archives()
	if err != nil {
		return err
	}
	settled, err := l.settled()
	if err != nil {
		return err
	}
	m, err := l.manifest(seg)
	if err != nil {
		return err
	}
	now := l.cfg.Now()
	var old []Archive
	for i, a := range list {
		expired := r.KeepFor > 0 && now.Sub(a.Closed) >= r.KeepFor
		surplus := r.KeepFiles > 0 && len(list)-i > r.KeepFiles
		if !expired && !surplus || a.Segment >= settled {
			// No hole is left: what is newer stays, too.
			if r.KeepFor > 0 {
				l.commits.expires = later(a.Closed.Add(r.KeepFor), now.Add(retainRetry))
			}
			break
		}
		if kept, err := l.leavesKept(seg, m, a.Segment); err != nil {
			return err
		} else if !kept {
			l.commits.expires = now.Add(retainRetry)
			break
		}
		old = append(old, a)
	}
	for len(old) > 0 {
		n := min(len(old), maxRetired)
		if err := l.deleteArchives(seg, old[:n], opt); err != nil {
			return err
		}
		old = old[n:]
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// deleteArchives deletes closed segments: the record first, durably, then the
// entries in the manifest, then the files.
func (l *Log) deleteArchives(seg SegmentStore, old []Archive, opt options) error {
	m, err := l.manifest(seg)
	if err != nil {
		return err
	}
	d := record(kindRetention, newStamp(l.cfg.Now()), retiredMember(old, m))
	if err := l.write([]*entry{{draft: d}}, opt); err != nil {
		return err
	}
	if err := l.store.Sync(); err != nil {
		// The next flush knows what to do about it.
		l.sync.broken.Store(true)
		l.diskFailed("fdatasync", err, l.sync.point.offset)
		return err
	}
	l.sync.reached(l.here())
	for _, a := range old {
		m.drop(a.Segment)
	}
	if err := l.saveManifest(m); err != nil {
		return err
	}
	for _, a := range old {
		if err := seg.RemoveArchive(a); err != nil {
			return err
		}
		l.log.Info("a closed segment of the audit log was deleted", zap.String("log", l.store.Path()), zap.String("segment", a.Name))
	}
	return l.store.SyncFolder()
}

// retiredMember lists segments as the retention record does.
func retiredMember(old []Archive, m *Manifest) member {
	b := []byte{'['}
	for i, a := range old {
		if i > 0 {
			b = append(b, ',')
		}
		if e := m.find(a.Segment); e != nil {
			b = canon.AppendString(append(b, `{"checkpoint":`...), e.Checkpoint)
			b = fmt.Appendf(b, `,"first_seq":%d,"last_seq":%d,"segment":%d}`, e.FirstSeq, e.LastSeq, a.Segment)
		} else {
			b = fmt.Appendf(b, `{"segment":%d}`, a.Segment)
		}
	}
	return member{"segments", append(b, ']')}
}

// settled is the number of the first segment that a start, or the closing of
// an open intent, may still have to read. Those below may be compressed and
// deleted. The commit lock is held.
func (l *Log) settled() (uint64, error) {
	doc, err := l.store.Load(StateDocument)
	if err != nil {
		return 0, err
	}
	p, err := decodeState(doc)
	if err != nil {
		return 0, err
	}
	first := min(p.segment, l.pos.segment)
	for _, o := range p.open {
		first = min(first, o.segment)
	}
	for _, o := range l.pos.open {
		first = min(first, o.segment)
	}
	return first, nil
}

// tendLoop hashes and compresses closed segments, and keeps their leaf hashes,
// in the background.
func (l *Log) tendLoop() {
	seg, ok := l.store.(SegmentStore)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-l.quit
		cancel()
	}()
	for {
		select {
		case <-l.tending:
		case <-l.quit:
			return
		}
		if !l.rotation().rotates() {
			continue
		}
		if err := l.tend(ctx, seg); err != nil && ctx.Err() == nil {
			l.log.Warn("closed segments of the audit log could not be hashed, compressed or prepared for deletion", zap.String("log", l.store.Path()), zap.Error(err))
		}
	}
}

// tend enters the hashes of closed segments into the manifest, compresses them
// and keeps their leaf hashes, unless another process is at it.
func (l *Log) tend(ctx context.Context, seg SegmentStore) (err error) {
	release, ok, err := seg.Tend()
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	list, m, settled, newest, err := l.archivesNow(seg)
	if err != nil {
		return err
	}
	if err := l.keepLeaves(ctx, seg, m, newest); err != nil {
		return err
	}
	for _, a := range list {
		e := m.find(a.Segment)
		if a.Compressed || e == nil || e.File != a.Name || ctx.Err() != nil {
			continue
		}
		if e.SHA256 == (Hash{}) {
			if e.SHA256, err = hashArchive(ctx, seg, a.Segment); errors.Is(err, fs.ErrNotExist) {
				continue // deleted meanwhile
			}
			if err == nil {
				err = l.enterHash(seg, *e)
			}
			if err != nil {
				return err
			}
		}
		if l.rotation().Compress && a.Segment < settled {
			if err := seg.Compress(ctx, a, e.SHA256); err != nil {
				return err
			}
			// Retention may have deleted it meanwhile.
			if err := l.locked(func() error { return seg.UseCompressed(a) }); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (l *Log) archivesNow(seg SegmentStore) (list []Archive, m *Manifest, settled uint64, newest []byte, err error) {
	err = l.locked(func() (err error) {
		if list, err = seg.Archives(); err != nil {
			return err
		}
		if m, err = l.manifest(seg); err != nil {
			return err
		}
		if newest, err = l.store.Load(CheckpointDocument); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		l.posMu.Lock()
		defer l.posMu.Unlock()
		settled, err = l.settled()
		return err
	})
	return list, m, settled, newest, err
}

// enterHash adds the hash of a closed segment to the manifest.
func (l *Log) enterHash(seg SegmentStore, e ManifestSegment) error {
	return l.locked(func() error {
		m, err := l.manifest(seg)
		if err != nil {
			return err
		}
		now := m.find(e.Segment)
		if now == nil || now.File != e.File || now.Bytes != e.Bytes {
			return nil
		}
		*now = e
		return l.saveManifest(m)
	})
}

// locked runs do under the commit lock, while nothing else stages documents.
func (l *Log) locked(do func() error) error {
	l.sync.saveMu.Lock()
	defer l.sync.saveMu.Unlock()
	if err := l.refused(); err != nil {
		return err
	}
	if err := l.store.Lock(); err != nil {
		return err
	}
	return errors.Join(do(), l.store.Unlock())
}

func hashArchive(ctx context.Context, seg SegmentStore, segment uint64) (h Hash, err error) {
	f, err := seg.OpenArchive(segment)
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	s := sha256.New()
	buf := make([]byte, 256<<10)
	for pos := int64(0); pos < f.Size() && err == nil; {
		var n int
		n, err = f.ReadAt(buf[:min(int64(len(buf)), f.Size()-pos)], pos)
		s.Write(buf[:n])
		pos += int64(n)
		if n > 0 || err == io.EOF {
			err = nil
		}
		if err == nil {
			err = ctx.Err()
		}
	}
	return sum(s), err
}
