package index

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// maxOpen is how many files of a log are kept open for reading lines.
const maxOpen = 8

// Lines reads records from a log by their places. It takes no lock and is not
// safe for concurrent use.
type Lines struct {
	open []opened // the most recently used last
}

type opened struct {
	path string
	file uint64
	s    segment
}

// Read reads the record at a place into dst, which it returns, perhaps
// enlarged, for the next call; the record points into it. A StaleError says
// that another record lies there. changed reports that the record's bytes are
// not those that its own hash was made of: it was changed after it was written.
func (l *Lines) Read(dst []byte, p *Place) (r auditlog.Record, buf []byte, changed bool, err error) {
	stale := func(why string) (auditlog.Record, []byte, bool, error) {
		return auditlog.Record{}, dst, false, &StaleError{p.Path, p.Line, why}
	}
	s, err := l.segment(p)
	if err != nil {
		return auditlog.Record{}, dst, false, err
	}
	line, err := s.line(dst, p.Pos, p.Len)
	if errors.Is(err, errShort) {
		return stale(err.Error())
	}
	if err != nil {
		return auditlog.Record{}, dst, false, fmt.Errorf("line %d: %w", p.Line, err)
	}
	r, fault := auditlog.ParseRecord(line)
	switch {
	case fault != auditlog.LineOK && fault != auditlog.LineExtraMember:
		return stale(string(fault))
	case r.Line.Seal.Seq != p.Seq:
		return stale(fmt.Sprintf("it is record %d, not %d", r.Line.Seal.Seq, p.Seq))
	case r.Line.Seal.Leaf != p.Leaf:
		return stale(fmt.Sprintf("record %d has another hash", p.Seq))
	}
	return r, line, r.Line.LeafHash() != r.Line.Seal.Leaf && !r.Line.Erased(), nil
}

// segment opens the file of a place, or finds it open.
func (l *Lines) segment(p *Place) (segment, error) {
	for i, o := range l.open {
		if o.path == p.Path && o.file == p.File {
			copy(l.open[i:], l.open[i+1:])
			l.open[len(l.open)-1] = o
			return o.s, nil
		}
	}
	s, err := locate(p)
	if err != nil {
		return nil, err
	}
	if len(l.open) == maxOpen {
		if err := l.open[0].s.Close(); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		l.open = append(l.open[:0], l.open[1:]...)
	}
	l.open = append(l.open, opened{p.Path, p.File, s})
	return s, nil
}

// locate opens the file of a place. The log may have been rotated since it was
// indexed: then the file has another name in the same folder.
func locate(p *Place) (segment, error) {
	s, err := openSegment(p.Path)
	if err == nil && (p.File == 0 || s.fileID() == p.File) {
		return s, nil
	}
	if err == nil {
		if err := s.Close(); err != nil {
			return nil, err
		}
	}
	siblings, globbed := filepath.Glob(escapeGlob(p.Path) + ".*")
	for _, path := range siblings {
		info, err := os.Lstat(path)
		if err == nil && info.Mode().IsRegular() && fileID(info) == p.File {
			return openSegment(path)
		}
	}
	if err = errors.Join(err, globbed); err == nil {
		err = &StaleError{p.Path, p.Line, "the file was replaced"}
	}
	return nil, err
}

// escapeGlob takes the meaning from the characters of a pattern.
func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `[*]`, `?`, `[?]`, `[`, `[[]`).Replace(path)
}

// Close closes the files.
func (l *Lines) Close() error {
	var errs []error
	for _, o := range l.open {
		errs = append(errs, o.s.Close())
	}
	l.open = nil
	return errors.Join(errs...)
}
