//go:build cgo

package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// stampLayout is how times stand in file names.
const stampLayout = "20060102T150405Z"

// The files that SQLite keeps beside a database.
var companions = [...]string{"-wal", "-shm"}

// Quarantine implements auditlog.Store.
func (s *Store) Quarantine(pos int64, when time.Time) (string, error) {
	base := s.path + ".torn-" + when.UTC().Format(stampLayout)
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
			err = s.fs.SyncDir(filepath.Dir(s.path))
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
		n, err := s.ReadAt(buf, pos+to)
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

// Replace implements auditlog.Store. The old database gets the name of a closed
// segment, and takes SQLite's own files along: none of them may lie beside the
// new one.
func (s *Store) Replace(segment uint64, when time.Time, content []byte) (string, error) {
	made, err := s.makeNew(content)
	if err != nil {
		return "", err
	}
	old := fmt.Sprintf("%s.%06d.%s", s.path, segment, when.UTC().Format(stampLayout))
	if _, err := s.fs.Lstat(old); err == nil {
		return "", fmt.Errorf("%s exists already; move it elsewhere and try again", old)
	}
	// What a damaged database says on its way out does not matter.
	_ = s.closeDB()
	for _, suffix := range companions {
		if err := s.renameIfThere(s.path+suffix, old+suffix); err != nil {
			return "", err
		}
	}
	err = s.fs.Rename(s.path, old)
	if errors.Is(err, fs.ErrNotExist) {
		old = ""
	} else if err != nil {
		return "", err
	} else if err := s.renameIfThere(s.path+".checkpoint", old+".checkpoint"); err != nil {
		return "", err
	}
	if err := s.fs.Rename(made, s.path); err != nil {
		return "", err
	}
	if err := s.fs.SyncDir(filepath.Dir(s.path)); err != nil {
		return "", err
	}
	s.info = nil
	_, err = s.Stat()
	return old, err
}

func (s *Store) renameIfThere(from, to string) error {
	if err := s.fs.Rename(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeNew makes a database with the given lines under a name of this run,
// durably, and leaves nothing of it open.
func (s *Store) makeNew(content []byte) (path string, err error) {
	n := &Store{path: s.path + ".log.tmp-" + s.run, fs: s.fs, opts: s.opts}
	for _, suffix := range append(companions[:], "") {
		if err := s.fs.Remove(n.path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if err := s.create(n.path); err != nil {
		return "", err
	}
	if _, err = n.Stat(); err == nil {
		err = n.Append(content, 0)
	}
	return n.path, errors.Join(err, n.closeDB())
}
