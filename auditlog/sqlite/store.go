//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// Store is an audit log in a SQLite database. It implements auditlog.Store.
//
// A position in the log is a number of bytes of the log as it is exported: its
// lines, one after another. The commit lock is that of package jsonl, so that
// writers wait for each other in line; SQLite's own write lock is taken under
// it.
type Store struct {
	path   string
	opts   Options
	fs     fsys.FS
	beside *jsonl.Store // what lies beside the database: see beside.go
	run    string

	// What follows is guarded by the commit lock.
	db      *sql.DB     // nil until there is a database
	info    fs.FileInfo // of the database file
	watch   *sql.Stmt   // reads SQLite's data version
	data    int64       // that version, which others' commits change
	checked int64       // SQLite's schema version when the schema was checked; 0: it was not
	blank   bool        // the database has no schema yet
	ready   bool        // it can be appended to
	insert  inserts
	end     int64 // position behind the last record
	next    int64 // its seq plus one

	suspect bool // a flush failed: what SQLite's log file holds may be lost
}

var _ auditlog.Store = (*Store)(nil)

// New returns a store for the database at path. It touches no file.
func New(path string, opts Options) (*Store, error) {
	if opts.FS == nil {
		opts.FS = fsys.OS()
	}
	beside, err := jsonl.New(path, jsonl.Options{FS: opts.FS, AllowNetwork: opts.AllowNetwork})
	if err != nil {
		return nil, err
	}
	return &Store{path: beside.Path(), opts: opts, fs: opts.FS, beside: beside}, nil
}

// Path implements auditlog.Store: the absolute path of the database file.
func (s *Store) Path() string { return s.path }

// Close implements auditlog.Store. The last process that closes the database
// moves what is in SQLite's own log file into it and removes that file.
func (s *Store) Close() error { return errors.Join(s.closeDB(), s.beside.Close()) }

func (s *Store) closeDB() error {
	if s.db == nil {
		return nil
	}
	errs := []error{s.insert.close()}
	if s.watch != nil {
		errs = append(errs, s.watch.Close())
	}
	err := errors.Join(append(errs, s.db.Close())...)
	s.db, s.watch, s.ready, s.checked = nil, nil, false, 0
	return named(s.path, err)
}

// Stat implements auditlog.Store. The first call that finds a database opens
// it. A database that is damaged, or whose schema is not that of a log, is a
// DamagedError.
func (s *Store) Stat() (auditlog.StoreInfo, error) {
	at, err := s.fs.Lstat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && s.info == nil:
		return auditlog.StoreInfo{}, nil
	case errors.Is(err, fs.ErrNotExist):
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced)
	case err != nil:
		return auditlog.StoreInfo{}, err
	case !at.Mode().IsRegular():
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w (%s)", s.path, auditlog.ErrNotRegular, at.Mode().Type())
	case s.info != nil && !os.SameFile(at, s.info):
		return auditlog.StoreInfo{}, fmt.Errorf("%s: %w", s.path, auditlog.ErrReplaced)
	}
	info := auditlog.StoreInfo{Exists: true, ID: fsys.ID(at)}
	if s.db == nil {
		s.db, s.info = connect(s.path, "rw", s.pragmas()...), at
	}
	err = s.look(context.Background())
	info.Size = s.end
	return info, named(s.path, err)
}

// pragmas are those of the connection that writes.
func (s *Store) pragmas() []string {
	return []string{
		"synchronous=" + s.opts.Synchronous.String(), "recursive_triggers=ON", "secure_delete=ON",
		"fullfsync=ON", "checkpoint_fullfsync=ON",
		"cache_size=-16384", fmt.Sprintf("journal_size_limit=%d", maxKeptLog),
	}
}

// maxKeptLog is how much of SQLite's own log file, in bytes, is kept when its
// content has been moved into the database. It grows beyond while somebody
// reads for long.
const maxKeptLog = 64 << 20

// look finds out where the log ends, and checks the schema if it may have
// changed since it was checked last. What this connection wrote it knows.
func (s *Store) look(ctx context.Context) (err error) {
	if s.watch == nil {
		if s.watch, err = s.db.PrepareContext(ctx, "PRAGMA data_version"); err != nil {
			return err
		}
	}
	var data int64
	if err := s.watch.QueryRowContext(ctx).Scan(&data); err != nil {
		return err
	}
	if s.checked != 0 && data == s.data {
		return nil
	}
	err = s.lookAnew(ctx)
	s.data = data
	return err
}

func (s *Store) lookAnew(ctx context.Context) error {
	var version int64
	if err := s.db.QueryRowContext(ctx, "PRAGMA schema_version").Scan(&version); err != nil {
		return err
	}
	if version == 0 {
		s.blank, s.end, s.next = true, 0, 0
		return nil
	}
	var faults error
	if version != s.checked {
		has, err := definitionOf(ctx, s.db)
		if err != nil {
			return err
		}
		want, err := expected(ctx)
		if err != nil {
			return err
		}
		if list := has.differences(want); len(list) > 0 {
			s.checked = 0
			faults = damaged("schema_mismatch", "the database is not made as a log is: %s", list[0])
		} else {
			s.checked = version
		}
	}
	s.blank = false
	var err error
	if s.end, s.next, err = end(ctx, s.db); err != nil {
		s.checked = 0
	}
	if faults != nil {
		return faults
	}
	return err
}

// Create implements auditlog.Store.
func (s *Store) Create() error {
	if err := s.create(s.path); err != nil {
		return err
	}
	return s.fs.SyncDir(filepath.Dir(s.path))
}

// create makes an empty file, so that SQLite does not choose its mode.
func (s *Store) create(path string) error {
	f, err := s.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// prepare makes the database ready to be appended to.
func (s *Store) prepare(ctx context.Context) (err error) {
	if s.ready {
		return nil
	}
	var mode string
	if err := s.db.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fmt.Errorf("%s: SQLite cannot use a write-ahead log there (journal mode %s); put the database on a local disk", s.path, mode)
	}
	if s.blank {
		if err := define(ctx, s.db); err != nil {
			return err
		}
		if err := s.lookAnew(ctx); err != nil {
			return err
		}
	}
	if err := s.insert.prepare(ctx, s.db); err != nil {
		return err
	}
	s.ready = true
	return nil
}

// define makes the schema in an empty database.
func define(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d;PRAGMA user_version=1;%s", applicationID, schema))
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// ReadAt implements auditlog.Store.
func (s *Store) ReadAt(p []byte, pos int64) (int, error) {
	n, err := readAt(context.Background(), s.db, p, pos)
	return n, named(s.path, err)
}

// Sync implements auditlog.Store. With synchronous full there is nothing to
// do: every commit was flushed.
func (s *Store) Sync() error {
	if s.suspect {
		return s.moveAll()
	}
	if s.opts.Synchronous == Full {
		return nil
	}
	// SQLite locks the database and its -shm file, never this one, so that it
	// may be opened and closed.
	f, err := s.fs.OpenFile(s.path+"-wal", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// moveAll makes everything durable after a failed flush: it is written anew,
// from SQLite's log file into the database, and that is flushed.
func (s *Store) moveAll() error {
	var busy, pages, moved int
	err := s.db.QueryRowContext(context.Background(), "PRAGMA wal_checkpoint(FULL)").Scan(&busy, &pages, &moved)
	switch {
	case err != nil:
		return named(s.path, err)
	case busy != 0 || pages != moved:
		return fmt.Errorf("%s: a program that reads it keeps %d of %d pages from being made durable", s.path, pages-moved, pages)
	}
	s.suspect = false
	return nil
}

// Reopen implements auditlog.Store.
func (s *Store) Reopen() error {
	// The old connection may report the failed flush again; that is known.
	_ = s.closeDB()
	s.suspect = true
	_, err := s.Stat()
	return err
}
