// Package jsonl stores an audit log as a text file, one record a line.
//
// Beside LOG lie LOG.lock (held for each commit), LOG.state (where the durable
// part ends), LOG.checkpoint (the newest signed checkpoint), LOG.runs (one
// locked file for each process that writes), LOG.torn-<UTC> (bytes of an
// interrupted write) and the reserve, disk space for the last words of a full
// disk. Closed segments are LOG.<number>.<UTC>, with a further .gz if they are
// compressed; manifest.json lists them, and LOG.archive.lock is held by the
// process that hashes and compresses them. All files have mode 0600, folders
// 0700.
package jsonl

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// ReserveBytes is the disk space kept back for a full disk.
const ReserveBytes = 256 << 10

// Options of a store. The zero value is right for production.
type Options struct {
	// FS replaces the operating system's files.
	FS fsys.FS
	// Exclusive holds the log for as long as the store is open: no other process
	// can write to it. Keys can only evolve in such a log.
	Exclusive bool
	// AllowNetwork permits a log on a network file system, whose locks and
	// flushes cannot be relied upon.
	AllowNetwork bool
}

// Store is an audit log in a file. It implements auditlog.Store.
type Store struct {
	path string
	opts Options
	fs   fsys.FS

	mu   sync.Mutex // the in-process half of the commit lock
	run  string
	lock fsys.File
	held fs.FileInfo // of the lock file
	log  fsys.File   // nil until there is one
	info fs.FileInfo // of the log file
	life fsys.File   // our file in the run registry
}

var _ auditlog.ExclusiveStore = (*Store)(nil)

// New returns a store for the log file at path. It touches no file.
func New(path string, opts Options) (*Store, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("audit log: %q is not a file path", path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("audit log %s: %w", path, err)
	}
	if opts.FS == nil {
		opts.FS = fsys.OS()
	}
	return &Store{path: abs, opts: opts, fs: opts.FS}, nil
}

// Path implements auditlog.Store: the absolute path of the log file.
func (s *Store) Path() string { return s.path }

func (s *Store) dir() string { return filepath.Dir(s.path) }

func (s *Store) runs() string { return s.path + ".runs" }

func (s *Store) reserve() string { return strings.TrimSuffix(s.path, ".jsonl") + ".reserve" }

// Open implements auditlog.Store.
func (s *Store) Open(run string) error {
	s.run = run
	if err := s.fs.MkdirAll(s.dir(), 0o700); err != nil {
		return err
	}
	if kind, err := s.fs.Network(s.dir()); err != nil {
		return err
	} else if kind != "" && !s.opts.AllowNetwork {
		return fmt.Errorf("%s lies on a network file system (%s), whose locks and flushes cannot be relied upon; put the log on a local disk", s.path, kind)
	}
	if err := s.fs.MkdirAll(s.runs(), 0o700); err != nil {
		return err
	}
	lock, err := s.openRegular(s.path+".lock", os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	held, err := lock.Stat()
	if err == nil {
		err = s.hold(lock)
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	s.lock, s.held = lock, held
	return nil
}

// Exclusive implements auditlog.ExclusiveStore.
func (s *Store) Exclusive() bool { return s.opts.Exclusive }

// exclusive is what the lock file says while one process holds the log.
const exclusive = "exclusive\n"

// hold takes the lock for life, if the store is exclusive. If not, it makes
// sure that no other process holds it so, since waiting for that has no end.
func (s *Store) hold(lock fsys.File) error {
	err := lock.TryLock()
	taken := errors.Is(err, fsys.ErrLocked)
	if err != nil && !taken {
		return err
	}
	if s.opts.Exclusive {
		if taken {
			return fmt.Errorf("%s is in use by another process; a log that is held exclusively has one writer", s.path)
		}
		// Those who have it open without the lock would wait for it for ever.
		runs, err := s.Runs()
		for _, run := range runs {
			if alive, err := s.Alive(run); err != nil || alive {
				return cmp.Or(err, fmt.Errorf("%s is in use by another process; a log that is held exclusively has one writer", s.path))
			}
		}
		if err == nil {
			_, err = lock.WriteAt([]byte(exclusive), 0)
		}
		return err
	}
	if !taken {
		info, err := lock.Stat()
		if err == nil && info.Size() > 0 {
			err = lock.Truncate(0)
		}
		return errors.Join(err, lock.Unlock())
	}
	said := make([]byte, len(exclusive))
	if n, _ := lock.ReadAt(said, 0); string(said[:n]) == exclusive {
		return fmt.Errorf("%s is held exclusively by another process; let that process do it, or stop it", s.path)
	}
	return nil
}

// openRegular opens a file that must not be a link, a device or a pipe.
func (s *Store) openRegular(name string, flag int) (fsys.File, error) {
	before, err := s.fs.Lstat(name)
	switch {
	case err == nil && !before.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w (%s)", name, auditlog.ErrNotRegular, before.Mode().Type())
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	f, err := s.fs.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	now, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if before != nil && !os.SameFile(before, now) || !now.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, auditlog.ErrReplaced), f.Close())
	}
	return f, nil
}

// Close implements auditlog.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range []*fsys.File{&s.life, &s.log, &s.lock} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// Lock implements auditlog.Store: flock on LOG.lock, then a look at whether
// the path still leads to the file that was locked.
func (s *Store) Lock() error {
	s.mu.Lock()
	err := s.lockFile()
	if err != nil {
		s.mu.Unlock()
	}
	return err
}

func (s *Store) lockFile() error {
	if s.lock == nil {
		return fs.ErrClosed
	}
	if !s.opts.Exclusive {
		if err := s.lock.Lock(); err != nil {
			return err
		}
	}
	at, err := s.fs.Lstat(s.path + ".lock")
	if err == nil && os.SameFile(at, s.held) {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s.lock: %w", s.path, auditlog.ErrReplaced)
	}
	return errors.Join(err, s.unlockFile())
}

func (s *Store) unlockFile() error {
	if s.opts.Exclusive {
		return nil
	}
	return s.lock.Unlock()
}

// Unlock implements auditlog.Store.
func (s *Store) Unlock() error {
	defer s.mu.Unlock()
	return s.unlockFile()
}

// Stat implements auditlog.Store. The first call that finds a log opens it.
func (s *Store) Stat() (auditlog.StoreInfo, error) {
	at, err := s.fs.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) && s.log == nil {
		return auditlog.StoreInfo{}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced)
	}
	if err != nil {
		return auditlog.StoreInfo{}, err
	}
	if s.log == nil {
		if err := s.openLog(os.O_RDWR); err != nil {
			return auditlog.StoreInfo{}, err
		}
	}
	if !os.SameFile(at, s.info) {
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced)
	}
	return auditlog.StoreInfo{Exists: true, Size: at.Size(), ID: fsys.ID(at)}, nil
}

func (s *Store) openLog(flag int) error {
	f, err := s.openRegular(s.path, flag)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.log, s.info = f, info
	return nil
}

// Create implements auditlog.Store.
func (s *Store) Create() error {
	if err := s.openLog(os.O_RDWR | os.O_CREATE | os.O_EXCL); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir())
}

// ReadAt implements auditlog.Store.
func (s *Store) ReadAt(p []byte, pos int64) (int, error) { return s.log.ReadAt(p, pos) }

// Append implements auditlog.Store.
func (s *Store) Append(batch []byte, pos int64) error {
	n, err := s.log.WriteAt(batch, pos)
	if err == nil && n < len(batch) {
		return fmt.Errorf("%s: %w", s.path, io.ErrShortWrite)
	}
	return err
}

// Truncate implements auditlog.Store.
func (s *Store) Truncate(size int64) error { return s.log.Truncate(size) }

// Sync implements auditlog.Store.
func (s *Store) Sync() error { return s.log.Sync() }

// Reopen implements auditlog.Store.
func (s *Store) Reopen() error {
	old, info := s.log, s.info
	if err := s.openLog(os.O_RDWR); err != nil {
		return err
	}
	if !os.SameFile(info, s.info) {
		err := errors.Join(fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced), s.log.Close())
		s.log, s.info = old, info
		return err
	}
	// The old descriptor may report the failed flush again; that is known.
	_ = old.Close()
	return nil
}

// Quarantine implements auditlog.Store.
func (s *Store) Quarantine(pos int64, at time.Time) (string, error) {
	base := s.path + ".torn-" + at.UTC().Format("20060102T150405Z")
	for i := 0; ; i++ {
		name := base
		if i > 0 {
			name = fmt.Sprintf("%s.%d", base, i)
		}
		f, err := s.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) && i < 1000 {
			continue
		}
		if err != nil {
			return "", err
		}
		err = errors.Join(s.copyTail(f, pos), f.Sync(), f.Close())
		if err == nil {
			err = s.fs.SyncDir(s.dir())
		}
		if err != nil {
			return "", errors.Join(err, s.fs.Remove(name))
		}
		return name, nil
	}
}

func (s *Store) copyTail(dst fsys.File, pos int64) error {
	buf := make([]byte, 256<<10)
	for to := int64(0); ; {
		n, err := s.log.ReadAt(buf, pos+to)
		if n > 0 {
			if _, err := dst.WriteAt(buf[:n], to); err != nil {
				return err
			}
			to += int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Replace implements auditlog.Store. The old log gets the name of a closed
// segment, so that `verify DIR` still reads it in its place.
func (s *Store) Replace(segment uint64, at time.Time, content []byte) (string, error) {
	if err := s.write(s.temporary("log"), content); err != nil {
		return "", err
	}
	old := s.beside(s.ArchiveName(segment, at))
	if _, err := s.fs.Lstat(old); err == nil {
		if _, err := s.fs.Lstat(s.path); err == nil {
			return "", fmt.Errorf("%s exists already; move it elsewhere and try again", old)
		}
	}
	err := s.fs.Rename(s.path, old)
	if errors.Is(err, fs.ErrNotExist) {
		old = ""
	} else if err != nil {
		return "", err
	} else if err := s.fs.Rename(s.document(auditlog.CheckpointDocument), old+".checkpoint"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := s.fs.Rename(s.temporary("log"), s.path); err != nil {
		return "", err
	}
	if err := s.fs.SyncDir(s.dir()); err != nil {
		return "", err
	}
	if s.log != nil {
		_ = s.log.Close()
		s.log = nil
	}
	return old, s.openLog(os.O_RDWR)
}
