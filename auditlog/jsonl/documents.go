package jsonl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// ManifestName is the file beside a log that lists its closed segments.
const ManifestName = "manifest.json"

// maxDocument bounds what Load reads; a state with 100 000 open operations
// takes about 20 MB.
const maxDocument = 64 << 20

func (s *Store) document(d auditlog.Document) string {
	switch d {
	case auditlog.CheckpointDocument:
		return s.path + ".checkpoint"
	case auditlog.ManifestDocument:
		return s.beside(ManifestName)
	}
	return s.path + ".state"
}

// temporary names the file in which this run prepares another one.
func (s *Store) temporary(kind string) string {
	return s.path + "." + kind + ".tmp-" + s.run
}

func (s *Store) staged(d auditlog.Document) string {
	if d == auditlog.ManifestDocument {
		return s.temporary("manifest")
	}
	return s.temporary(strings.TrimPrefix(s.document(d), s.path+"."))
}

// Load implements auditlog.Store.
func (s *Store) Load(d auditlog.Document) ([]byte, error) {
	f, err := s.openRegular(s.document(d), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	data, err := readAll(f, maxDocument)
	if err != nil {
		err = fmt.Errorf("%s: %w", s.document(d), err)
	}
	return data, errors.Join(err, f.Close())
}

func readAll(f fsys.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("larger than %d bytes", limit)
	}
	data := make([]byte, info.Size())
	n, err := f.ReadAt(data, 0)
	if err == io.EOF {
		err = nil
	}
	return data[:n], err
}

// Stage implements auditlog.Store.
func (s *Store) Stage(d auditlog.Document, data []byte) error {
	return s.write(s.staged(d), data)
}

// Publish implements auditlog.Store.
func (s *Store) Publish(d auditlog.Document) error {
	return s.fs.Rename(s.staged(d), s.document(d))
}

// SyncFolder implements auditlog.Store.
func (s *Store) SyncFolder() error { return s.fs.SyncDir(s.dir()) }

// write makes a file of this run with the given content, durably.
func (s *Store) write(name string, data []byte) error {
	f, err := s.fs.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// Reserve implements auditlog.Store. A reserve of full size is left alone.
func (s *Store) Reserve() error {
	if info, err := s.fs.Lstat(s.reserve()); err == nil && info.Size() == ReserveBytes {
		return nil
	}
	f, err := s.fs.OpenFile(s.reserve(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Allocate(ReserveBytes), f.Close()); err != nil {
		return errors.Join(err, s.Release())
	}
	return nil
}

// Release implements auditlog.Store.
func (s *Store) Release() error {
	if err := s.fs.Remove(s.reserve()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
