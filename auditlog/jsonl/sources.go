package jsonl

import (
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// closedSuffix follows a log's name in that of a closed segment: number, time,
// and an ending if it is compressed.
var closedSuffix = regexp.MustCompile(`^\.(\d{6,18})\.\d{8}T\d{6}Z(\.gz)?$`)

// Sources lists the files of the log at path: its closed segments by their
// number, then the file that is written to. It may run beside a writer.
func Sources(path string) ([]auditlog.Source, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	type segment struct {
		number int
		name   string
	}
	var closed []segment
	base := filepath.Base(path)
	active := false
	for _, e := range entries {
		name := e.Name()
		if name == base {
			active = true
			continue
		}
		if len(name) < len(base) || name[:len(base)] != base {
			continue
		}
		if m := closedSuffix.FindStringSubmatch(name[len(base):]); m != nil {
			if n, err := strconv.Atoi(m[1]); err == nil {
				closed = append(closed, segment{n, name})
			}
		}
	}
	slices.SortFunc(closed, func(a, b segment) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.name, b.name))
	})
	var out []auditlog.Source
	for _, s := range closed {
		file := filepath.Join(filepath.Dir(path), s.name)
		if filepath.Ext(file) == ".gz" {
			out = append(out, compressedSource(file))
		} else {
			out = append(out, auditlog.FileSource(file))
		}
	}
	if active {
		out = append(out, auditlog.FileSource(path))
	}
	return out, nil
}

// compressedSource reads a compressed segment.
func compressedSource(file string) auditlog.Source {
	return auditlog.Source{Name: file, Open: func() (io.ReadCloser, error) {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return compressed{z, f}, nil
	}}
}

// compressed is a stream and the file that it is read from.
type compressed struct {
	*gzip.Reader
	file *os.File
}

func (c compressed) Close() error { return errors.Join(c.Reader.Close(), c.file.Close()) }
