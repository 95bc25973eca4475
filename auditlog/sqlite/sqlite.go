// Package sqlite stores an audit log as a SQLite database: one row a record,
// with the exact text of its line, and columns, indexes and the view
// audit_entries for queries.
//
// The files beside the database are those of package jsonl: DB.lock, DB.state,
// DB.checkpoint, DB.runs, DB.torn-<UTC> and DB.reserve. SQLite itself keeps
// DB-wal and DB-shm there while the database is in use; they belong to it.
//
// The package needs cgo. In a program that was built without it, New and
// OpenReader return ErrNoCgo.
//
// A process that has a Store or a Reader open must not open the database file
// by other means: closing any descriptor of it would give up SQLite's locks.
package sqlite

import (
	"errors"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// ErrNoCgo is returned by New and OpenReader in a program that was built
// without cgo.
var ErrNoCgo = errors.New("this program was built without SQLite, which needs cgo; build it with CGO_ENABLED=1 and a C compiler, or use a JSONL log")

// Options of a store. The zero value is right for production.
type Options struct {
	// FS replaces the operating system's files, for those beside the database.
	FS fsys.FS
	// AllowNetwork permits a log on a network file system, whose locks and
	// flushes cannot be relied upon.
	AllowNetwork bool
	// Synchronous says when a commit is flushed.
	Synchronous Synchronous
}

// Synchronous is SQLite's setting of that name.
type Synchronous int

// The two settings.
const (
	// Full flushes each commit, so that every acknowledged record survives a
	// power failure, whatever the log's durability is.
	Full Synchronous = iota
	// Normal leaves the flush to the log: before the acknowledgement where its
	// durability is durable, within a second where it is written.
	Normal
)

// String returns the option's text.
func (s Synchronous) String() string {
	if s == Normal {
		return "normal"
	}
	return "full"
}
