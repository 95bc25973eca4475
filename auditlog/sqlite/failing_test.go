//go:build cgo

package sqlite

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// failing is a file layer whose flush of SQLite's log file fails when asked to.
type failing struct {
	fsys.FS
	failOnce atomic.Bool
}

func (f *failing) OpenFile(name string, flag int, perm fs.FileMode) (fsys.File, error) {
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil || !strings.HasSuffix(name, "-wal") {
		return file, err
	}
	return &failingFile{file, f}, nil
}

type failingFile struct {
	fsys.File
	f *failing
}

func (f *failingFile) Sync() error {
	if f.f.failOnce.CompareAndSwap(true, false) {
		return &os.PathError{Op: "fdatasync", Path: "-wal", Err: syscall.EIO}
	}
	return f.File.Sync()
}

// vector is the log of the format's test vectors.
func vector(t testing.TB) io.Reader {
	t.Helper()
	f, err := os.Open("../testdata/evidence-vector.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
