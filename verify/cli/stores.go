package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/dbfile"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

// isDatabase reports whether a log is kept in SQLite: what the file begins
// with says so, or, if that is neither a database nor a record, its name.
func isDatabase(path string) (bool, error) {
	return dbfile.Is(path, func() (bool, error) { return looksLikeDatabase(path) })
}

func looksLikeDatabase(path string) (bool, error) {
	byName := filepath.Ext(path) == ".db"
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return byName, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return false, err
	}
	const magic = "SQLite format 3\x00"
	head := make([]byte, len(magic))
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, err
	}
	switch {
	case string(head[:n]) == magic:
		return true, nil
	case n > 0 && head[0] == '{':
		return false, nil
	}
	return byName, nil
}

// databasesOf is isDatabase for each of a log's files.
func databasesOf(files []string) ([]bool, error) {
	list := make([]bool, len(files))
	for i, path := range files {
		var err error
		if list[i], err = isDatabase(path); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// storeOf is the store of a log that is written to.
func storeOf(path string) (auditlog.Store, error) {
	database, err := isDatabase(path)
	if err != nil {
		return nil, err
	}
	if database {
		return sqlite.New(path, sqlite.Options{})
	}
	return jsonl.New(path, jsonl.Options{})
}

func openDatabase(path string) (*sqlite.Reader, error) {
	r, err := sqlite.OpenReader(path)
	if errors.Is(err, sqlite.ErrNoCgo) {
		err = fmt.Errorf("%s is a SQLite database, but %w", path, err)
	}
	return r, err
}

// openLines opens a log for reading its lines, byte for byte as a JSONL log has
// them, wherever it is kept.
func openLines(path string) (io.ReadCloser, error) {
	database, err := isDatabase(path)
	if err != nil {
		return nil, err
	}
	if !database {
		return (segmentLimits{most: defaultMaxSegment}).open(path)
	}
	return sqlite.OpenLines(path)
}

// logView is a log that is followed: its lines as one text.
type logView interface {
	io.ReaderAt
	// Size is how many bytes there are now.
	Size() (int64, error)
	// Is reports whether a file is the one that is read.
	Is(file fs.FileInfo) (bool, error)
	Close() error
}

// openView opens a log to be followed.
func openView(path string) (logView, error) {
	database, err := isDatabase(path)
	if err != nil {
		return nil, err
	}
	if !database {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return fileView{f}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	r, err := openDatabase(path)
	if err != nil {
		return nil, err
	}
	return databaseView{r, info}, nil
}

type fileView struct{ *os.File }

func (v fileView) Size() (int64, error) {
	info, err := v.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (v fileView) Is(file fs.FileInfo) (bool, error) {
	held, err := v.Stat()
	return err == nil && os.SameFile(held, file), err
}

type databaseView struct {
	*sqlite.Reader
	info fs.FileInfo
}

func (v databaseView) Size() (int64, error) {
	if err := v.Refresh(); err != nil {
		return 0, err
	}
	return v.Reader.Size()
}

func (v databaseView) Is(file fs.FileInfo) (bool, error) { return os.SameFile(v.info, file), nil }
