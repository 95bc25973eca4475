package jsonl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// Register implements auditlog.Store: a file in LOG.runs, locked for as long
// as the process lives. It is made under the commit lock, as Alive looks at
// it, so that no run is taken for dead between its making and its locking.
func (s *Store) Register() error {
	f, err := s.fs.OpenFile(filepath.Join(s.runs(), s.run), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := f.TryLock(); err != nil {
		return errors.Join(err, f.Close())
	}
	s.life = f
	return nil
}

// Alive implements auditlog.Store.
func (s *Store) Alive(run string) (bool, error) {
	if run == s.run {
		return true, nil
	}
	if !isRun(run) {
		return false, nil
	}
	f, err := s.openRegular(filepath.Join(s.runs(), run), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	err = f.TryLock()
	if errors.Is(err, fsys.ErrLocked) {
		return true, f.Close()
	}
	if err == nil {
		err = f.Unlock()
	}
	return false, errors.Join(err, f.Close())
}

// Runs implements auditlog.Store.
func (s *Store) Runs() ([]string, error) {
	names, err := s.fs.ReadDir(s.runs())
	runs := names[:0]
	for _, name := range names {
		if isRun(name) {
			runs = append(runs, name)
		}
	}
	return runs, err
}

// Forget implements auditlog.Store. It also removes what the run left half
// made.
func (s *Store) Forget(run string) error {
	if run == s.run && s.life != nil {
		err := s.life.Close()
		s.life = nil
		if err != nil {
			return err
		}
	}
	for _, kind := range []string{"state", "checkpoint", "log", "manifest", "archive"} {
		if err := s.removeTemporary(kind, run); err != nil {
			return err
		}
	}
	err := s.fs.Remove(filepath.Join(s.runs(), run))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// removeTemporary removes what a run was preparing.
func (s *Store) removeTemporary(kind, run string) error {
	err := s.fs.Remove(s.path + "." + kind + ".tmp-" + run)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// isRun reports whether a name has the form of a run id, so that nothing else
// in the folder is ever touched and no record can name a path.
func isRun(name string) bool {
	if len(name) != 22 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
