//go:build !cgo

package sqlite

import (
	"context"
	"io"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Available returns ErrNoCgo.
func Available() error { return ErrNoCgo }

// New returns ErrNoCgo.
func New(string, Options) (auditlog.Store, error) { return nil, ErrNoCgo }

// Reader is never made in this build.
type Reader struct{}

// OpenReader returns ErrNoCgo.
func OpenReader(string) (*Reader, error) { return nil, ErrNoCgo }

// Size returns ErrNoCgo.
func (*Reader) Size() (int64, error) { return 0, ErrNoCgo }

// Refresh returns ErrNoCgo.
func (*Reader) Refresh() error { return ErrNoCgo }

// ReadAt returns ErrNoCgo.
func (*Reader) ReadAt([]byte, int64) (int, error) { return 0, ErrNoCgo }

// Lines returns ErrNoCgo.
func (*Reader) Lines() (io.ReadCloser, error) { return nil, ErrNoCgo }

// ReadHashes returns ErrNoCgo.
func (*Reader) ReadHashes([]int64) ([]tlog.Hash, error) { return nil, ErrNoCgo }

// Source returns a source that cannot be read.
func (r *Reader) Source() auditlog.Source {
	return auditlog.Source{Open: r.Lines, Check: func(context.Context, auditlog.FoundFunc) error { return ErrNoCgo }}
}

// Close does nothing.
func (*Reader) Close() error { return nil }
