package index

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/dbfile"
)

// segment is one file of a log, read without any lock. It is not safe for
// concurrent use.
type segment interface {
	// fileID tells the file from another one at the same path; 0: unknown.
	fileID() uint64
	// scan reads the records from a cursor on; 0 is the beginning.
	scan(cursor int64) (scanner, error)
	// line reads the record line at a position that a scanner gave, without its
	// LF, into dst, which it may replace by a larger buffer.
	line(dst []byte, pos int64, length int) ([]byte, error)
	Close() error
}

// scanner goes over the lines of a segment.
type scanner interface {
	// next returns the next line and its position. The error is io.EOF behind
	// the last whole line, and auditlog.ErrLineTooLong for a line that was
	// passed over.
	next() (pos int64, line []byte, err error)
	// cursor is the place to go on from later.
	cursor() int64
	Close() error
}

// data is the bytes of a log file, however they are stored.
type data interface {
	io.ReaderAt
	io.Closer
	// Size is the number of bytes at this moment.
	Size() (int64, error)
	// FileID is that of segment.
	FileID() uint64
}

// openData opens the bytes of a log file. All files that hold lines are opened
// here.
func openData(path string) (data, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file; give the path of a log", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if strings.HasSuffix(path, compressedSuffix) {
		return newPackedFile(f, info)
	}
	return &plainFile{f, fileID(info)}, nil
}

type plainFile struct {
	*os.File
	id uint64
}

func (f *plainFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f *plainFile) FileID() uint64 { return f.id }

// openSegment opens a file of a log, of either store.
func openSegment(path string) (segment, error) {
	var d data
	database, err := dbfile.Is(path, func() (is bool, err error) {
		if d, err = openData(path); err != nil {
			return false, err
		}
		if is, err = isDatabase(d); err != nil {
			err = fmt.Errorf("reading %s: %w", path, err)
		}
		if is || err != nil {
			err = errors.Join(err, d.Close())
		}
		return is, err
	})
	if err != nil {
		return nil, err
	}
	if database {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		return openDatabase(path, fileID(info))
	}
	return &lineFile{data: d, path: path}, nil
}

// isDatabase reports whether a file is a SQLite database.
func isDatabase(r io.ReaderAt) (bool, error) {
	const magic = "SQLite format 3\x00"
	var head [len(magic)]byte
	n, err := r.ReadAt(head[:], 0)
	if err != nil && err != io.EOF {
		return false, err
	}
	return string(head[:n]) == magic, nil
}

// lineFile is a log file with one record a line; positions and cursors are
// byte offsets.
type lineFile struct {
	data
	path string
}

func (f *lineFile) fileID() uint64 { return f.FileID() }

func (f *lineFile) scan(cursor int64) (scanner, error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	return &lineScanner{
		from: cursor,
		r:    auditlog.NewReader(io.NewSectionReader(f, cursor, max(size-cursor, 0)), 0),
	}, nil
}

func (f *lineFile) line(dst []byte, pos int64, length int) ([]byte, error) {
	if length < 0 || length > auditlog.MaxLine {
		return nil, errShort
	}
	b := slices.Grow(dst[:0], length)[:length]
	switch n, err := f.ReadAt(b, pos); {
	case n == length:
		return b, nil
	case err == io.EOF:
		return nil, errShort
	default:
		return nil, fmt.Errorf("reading %s at byte %d: %w", f.path, pos, err)
	}
}

// errShort says that a file ends before a position.
var errShort = errors.New("the log is shorter")

type lineScanner struct {
	r    *auditlog.Reader
	from int64
}

func (s *lineScanner) next() (int64, []byte, error) {
	pos := s.cursor()
	line, err := s.r.Next()
	return pos, line, err
}

func (s *lineScanner) cursor() int64 { return s.from + s.r.Consumed() }

func (s *lineScanner) Close() error { return nil }

// headOf is what tells a file from others, whatever it is called: the hash of
// its first line. It is empty while there is no whole line.
func headOf(s segment) (head string, err error) {
	lines, err := s.scan(0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	_, line, err := lines.next()
	switch {
	case err == io.EOF:
		return "", nil
	case errors.Is(err, auditlog.ErrLineTooLong):
		return "too long", nil
	case err != nil:
		return "", err
	}
	sum := sha256.Sum256(line)
	return string(sum[:]), nil
}
