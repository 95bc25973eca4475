package jsonl

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Sources lists the files of the log at path: its closed segments by their
// number, compressed or not, then the file that is written to. It may run
// beside a writer.
func Sources(path string) ([]auditlog.Source, error) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	type segment struct {
		number     uint64
		name       string
		compressed bool
	}
	var closed []segment
	active := false
	for _, e := range entries {
		if e.Name() == base {
			active = true
		} else if log, number, _, compressed, ok := auditlog.SplitArchiveName(e.Name()); ok && log == base {
			closed = append(closed, segment{number, e.Name(), compressed})
		}
	}
	slices.SortFunc(closed, func(a, b segment) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.name, b.name))
	})
	// Where a crash left a segment and its compressed copy, the former counts.
	closed = slices.CompactFunc(closed, func(next, before segment) bool { return next.name == before.name+CompressedSuffix })
	var out []auditlog.Source
	for _, s := range closed {
		file := filepath.Join(dir, s.name)
		if s.compressed {
			out = append(out, auditlog.Source{Name: file, Open: func() (io.ReadCloser, error) { return openCompressed(file) }})
		} else {
			out = append(out, auditlog.FileSource(file))
		}
	}
	if active {
		out = append(out, auditlog.FileSource(path))
	}
	return out, nil
}

// openCompressed reads a compressed segment of a log of ours.
func openCompressed(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 256<<10))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &unzipped{Reader: z, file: f}, nil
}

type unzipped struct {
	*gzip.Reader
	file *os.File
}

func (u *unzipped) Close() error { return errors.Join(u.Reader.Close(), u.file.Close()) }
