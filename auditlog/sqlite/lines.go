package sqlite

import (
	"errors"
	"fmt"
	"io"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// OpenLines opens a database and reads all its lines, as Reader.Lines does.
func OpenLines(path string) (io.ReadCloser, error) {
	r, err := OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	lines, err := r.Lines()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &ownedLines{lines, r}, nil
}

// Source is a log in a database that is opened each time it is read. Unlike
// Reader.Source it does not check the schema.
func Source(path string) auditlog.Source {
	return auditlog.Source{Name: path, Open: func() (io.ReadCloser, error) { return OpenLines(path) }}
}

// ownedLines closes the database with its lines.
type ownedLines struct {
	io.ReadCloser
	r *Reader
}

func (l *ownedLines) Close() error { return errors.Join(l.ReadCloser.Close(), l.r.Close()) }
