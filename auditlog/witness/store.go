package witness

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// store keeps the newest cosigned checkpoint of each log in a file. One call
// at a time for each origin.
type store struct {
	dir  string
	fs   fsys.FS
	lock fsys.File
}

func openStore(dir string) (*store, error) {
	if dir == "" {
		return nil, errors.New("no folder for its state is configured")
	}
	s := &store{dir: dir, fs: fsys.OS()}
	if err := s.fs.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := s.fs.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lock.TryLock(); err != nil {
		return nil, errors.Join(fmt.Errorf("the folder %s is in use by another witness: %w", dir, err), lock.Close())
	}
	s.lock = lock
	return s, nil
}

// close gives the folder back; it may be called more than once.
func (s *store) close() error {
	if s.lock == nil {
		return nil
	}
	err := s.lock.Close()
	s.lock = nil
	return err
}

func (s *store) path(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:])+".checkpoint")
}

// load returns nil if there is none.
func (s *store) load(origin string) ([]byte, error) {
	data, err := os.ReadFile(s.path(origin))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// save replaces a checkpoint. It is on the disk when save returns; after an
// error either the old or the new one is.
func (s *store) save(origin string, signed []byte) error {
	tmp := s.path(origin) + ".tmp"
	f, err := s.fs.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(signed, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := s.fs.Rename(tmp, s.path(origin)); err != nil {
		return err
	}
	return s.fs.SyncDir(s.dir)
}
