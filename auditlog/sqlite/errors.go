//go:build cgo

package sqlite

import (
	"errors"
	"fmt"
	"syscall"

	sqlite3 "github.com/mattn/go-sqlite3"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// named says what an error of SQLite means for the log at path.
func named(path string, err error) error {
	var e sqlite3.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	switch {
	case e.Code == sqlite3.ErrFull || errors.Is(e.SystemErrno, syscall.ENOSPC):
		return fmt.Errorf("%s: %w (%w)", path, fsys.ErrNoSpace, err)
	case e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB:
		return damaged("index_corrupt", "the database is damaged: %w", err)
	case e.Code == sqlite3.ErrBusy || e.Code == sqlite3.ErrLocked:
		return fmt.Errorf("%s is locked by another program, which must end its transaction or close the database: %w", path, err)
	case e.Code == sqlite3.ErrCantOpen || e.Code == sqlite3.ErrReadonly:
		return fmt.Errorf("%s cannot be opened: %w; it, its -wal and -shm files and its folder must be accessible to this user", path, err)
	}
	return fmt.Errorf("%s: %w", path, err)
}

func damaged(finding, format string, args ...any) error {
	return &auditlog.DamagedError{Finding: finding, Err: fmt.Errorf(format, args...)}
}

func isDamaged(err error) bool {
	var d *auditlog.DamagedError
	return errors.As(err, &d)
}

// isSchemaError reports whether a statement did not fit the database: there is
// no such table or column, or it holds something else.
func isSchemaError(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && e.Code == sqlite3.ErrError
}
