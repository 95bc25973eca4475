package jsonl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

var _ auditlog.SegmentStore = (*Store)(nil)

// Archives implements auditlog.SegmentStore.
func (s *Store) Archives() ([]auditlog.Archive, error) {
	names, err := s.fs.ReadDir(s.dir())
	if err != nil {
		return nil, err
	}
	var list []auditlog.Archive
	for _, name := range names {
		log, n, closed, compressed, ok := auditlog.SplitArchiveName(name)
		if ok && log == filepath.Base(s.path) {
			list = append(list, auditlog.Archive{Segment: n, Name: name, Closed: closed, Compressed: compressed})
		}
	}
	slices.SortFunc(list, func(a, b auditlog.Archive) int {
		return cmp.Or(cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.Name, b.Name))
	})
	// A crash can leave a segment and its compressed copy. Then the former
	// counts, and its name comes first.
	list = slices.CompactFunc(list, func(next, before auditlog.Archive) bool {
		return before.Name+CompressedSuffix == next.Name
	})
	return list, nil
}

// ArchiveName implements auditlog.SegmentStore.
func (s *Store) ArchiveName(segment uint64, at time.Time) string {
	return auditlog.ArchiveName(filepath.Base(s.path), segment, at)
}

func (s *Store) beside(name string) string { return filepath.Join(s.dir(), name) }

// archiveFile is a closed segment.
type archiveFile struct {
	fsys.File
	size int64
}

func (f *archiveFile) Size() int64 { return f.size }

// OpenArchive implements auditlog.SegmentStore.
func (s *Store) OpenArchive(segment uint64) (auditlog.ArchiveFile, error) {
	list, err := s.Archives()
	if err != nil {
		return nil, err
	}
	for _, a := range list {
		if a.Segment != segment || a.Compressed {
			continue
		}
		f, err := s.openRegular(s.beside(a.Name), os.O_RDONLY)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return &archiveFile{f, info.Size()}, nil
	}
	return nil, fmt.Errorf("segment %d of %s: %w", segment, s.path, fs.ErrNotExist)
}

// StageSegment implements auditlog.SegmentStore.
func (s *Store) StageSegment(content []byte) error { return s.write(s.temporary("log"), content) }

// Turn implements auditlog.SegmentStore.
func (s *Store) Turn(archive string) (auditlog.StoreInfo, error) {
	to := s.beside(archive)
	at, err := s.fs.Lstat(s.path)
	switch {
	case err == nil && s.info != nil && !os.SameFile(at, s.info):
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced)
	case err == nil:
		if _, err := s.fs.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			return auditlog.StoreInfo{}, cmp.Or(err, fmt.Errorf("%s exists already; move it elsewhere", to))
		}
		if err := s.renameLog(to); err != nil {
			return auditlog.StoreInfo{}, err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return auditlog.StoreInfo{}, err
	}
	if err := s.fs.Rename(s.temporary("log"), s.path); err != nil {
		return auditlog.StoreInfo{}, err
	}
	if err := s.fs.SyncDir(s.dir()); err != nil {
		return auditlog.StoreInfo{}, err
	}
	return s.Switch()
}

// Switch implements auditlog.SegmentStore.
func (s *Store) Switch() (auditlog.StoreInfo, error) {
	old, info := s.log, s.info
	s.log, s.info = nil, nil
	now, err := s.Stat()
	if err != nil || !now.Exists {
		s.log, s.info = old, info
		return now, err
	}
	if old != nil {
		// It was flushed, or belongs to another process' rotation.
		_ = old.Close()
	}
	return now, nil
}

// RemoveArchive implements auditlog.SegmentStore.
func (s *Store) RemoveArchive(a auditlog.Archive) error {
	name := strings.TrimSuffix(a.Name, CompressedSuffix)
	for _, name := range []string{name + CompressedSuffix, name + ".checkpoint", name} {
		if err := s.fs.Remove(s.beside(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Tend implements auditlog.SegmentStore.
func (s *Store) Tend() (release func() error, ok bool, err error) {
	f, err := s.openRegular(s.path+".archive.lock", os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, false, err
	}
	err = f.TryLock()
	if errors.Is(err, fsys.ErrLocked) {
		return nil, false, f.Close()
	}
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	// Closing the file gives the lock back.
	return f.Close, true, nil
}
