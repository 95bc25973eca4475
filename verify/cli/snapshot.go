package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// snapshot is the files of a log as they were at one moment, though the log may
// be rotated while they are read.
type snapshot struct {
	logFiles
	held     *os.File    // the file that is written to, or nil
	readers  []io.Closer // of databases
	manifest []byte      // nil: there is none
}

// snapshotTries is how often a log that is rotated meanwhile is listed again.
const snapshotTries = 50

// snapshot lists a log's files. Those that were named one by one are taken as
// they are.
func (l logFiles) snapshot() (*snapshot, error) {
	if !l.whole {
		return &snapshot{logFiles: l}, nil
	}
	for range snapshotTries {
		s, stable, err := l.look()
		if err == nil && stable && l.current {
			err = s.keepIncarnation()
		}
		if err != nil || stable {
			return s, err
		}
		s.close()
	}
	return nil, fmt.Errorf("%s is rotated faster than its files can be listed; try again", l.name)
}

// look lists a log's files once. stable says that nothing changed meanwhile.
func (l logFiles) look() (s *snapshot, stable bool, err error) {
	dir := filepath.Dir(l.name)
	manifest := filepath.Join(dir, jsonl.ManifestName)
	s = &snapshot{logFiles: logFiles{name: l.name, whole: true}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	database, err := isDatabase(l.name)
	if err != nil {
		return s, false, err
	}
	if database {
		// It is replaced by recover alone, and must not be opened beside SQLite.
		if s.files, err = segmentsOf(l.name); err == nil {
			s.files = append(s.files, l.name)
		}
		return s, true, err
	}
	if s.held, err = os.Open(l.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, false, err
	}
	if s.manifest, err = readManifest(manifest); err != nil {
		return s, false, err
	}
	if s.files, err = segmentsOf(l.name); err != nil {
		return s, false, err
	}
	after, err := readManifest(manifest)
	if err != nil {
		return s, false, err
	}
	now, err := os.Stat(l.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, false, err
	}
	same := now == nil && s.held == nil
	if now != nil && s.held != nil {
		was, err := s.held.Stat()
		if err != nil {
			return s, false, err
		}
		same = os.SameFile(was, now)
		s.files = append(s.files, l.name)
	}
	if len(s.files) == 0 {
		return s, false, fmt.Errorf("there is no log %s any more", l.name)
	}
	return s, same && bytes.Equal(s.manifest, after), nil
}

// keepIncarnation leaves the files out that were given up by a chain break, and
// their entries in the manifest, which have another origin.
func (s *snapshot) keepIncarnation() error {
	for i := len(s.files) - 1; i > 0; i-- {
		r, err := firstRecord(s.files[i])
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		if kind := r.Text("kind"); kind == "genesis" || kind == "chain_break" {
			s.files = s.files[i:]
			s.keepManifest(r.Text("origin"))
			return nil
		}
	}
	return nil
}

func (s *snapshot) keepManifest(origin string) {
	m, err := auditlog.ParseManifest(s.manifest)
	if err != nil {
		return // verify says what is wrong with it
	}
	m.Segments = slices.DeleteFunc(m.Segments, func(e auditlog.ManifestSegment) bool { return e.Origin != origin })
	s.manifest = m.Encode()
}

// maxManifest is more than a manifest of 100 000 segments has.
const maxManifest = 64 << 20

// readManifest returns nil if there is none, and an empty text if it is none.
func readManifest(path string) (text []byte, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	text, err = io.ReadAll(io.LimitReader(f, maxManifest))
	if len(text) == 0 {
		text = []byte{}
	}
	return text, err
}

func (s *snapshot) close() {
	if s.held != nil {
		// It was only read from.
		_ = s.held.Close()
	}
	for _, r := range s.readers {
		_ = r.Close()
	}
}

// sources opens the files for verification. limits says how many bytes each
// compressed one may give, and databases which of them are databases.
func (s *snapshot) sources(limits segmentLimits, databases []bool) ([]auditlog.Source, error) {
	sources := make([]auditlog.Source, len(s.files))
	for i, path := range s.files {
		if databases[i] {
			r, err := openDatabase(path)
			if err != nil {
				return nil, err
			}
			s.readers = append(s.readers, r)
			sources[i] = r.Source()
			continue
		}
		sources[i] = source(path, limits)
		if s.held != nil && path == s.name {
			held := s.held
			sources[i].Open = func() (io.ReadCloser, error) {
				return settled(&fromStart{f: held}), nil
			}
		}
	}
	return sources, nil
}

// fromStart reads a file that is held open from its beginning.
type fromStart struct {
	f  *os.File
	at int64
}

func (r *fromStart) Read(p []byte) (int, error) {
	n, err := r.f.ReadAt(p, r.at)
	r.at += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

func (r *fromStart) Close() error { return nil }

// segmentsOf lists the closed segments of a log, oldest first. Where a crash
// left a segment and its compressed copy, the former counts.
func segmentsOf(log string) ([]string, error) {
	dir := filepath.Dir(log)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if name, _, _, _, ok := auditlog.SplitArchiveName(e.Name()); ok && name == filepath.Base(log) {
			names = append(names, e.Name())
		}
	}
	sortSegments(names)
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return slices.CompactFunc(names, func(next, before string) bool { return before+jsonl.CompressedSuffix == next }), nil
}
