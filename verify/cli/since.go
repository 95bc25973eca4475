package cli

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// sincePoint is where --since has a verification begin: at a record, at a time,
// or behind a cursor. The zero value is the log's beginning.
type sincePoint struct {
	set    bool
	cursor string // the path of a cursor
	seq    uint64
	bySeq  bool
	at     time.Time
}

// parseSince reads the value of --since. A plain number is a record's, whatever
// files there are.
func parseSince(text string, now time.Time) (p sincePoint, err error) {
	if text == "" {
		return p, nil
	}
	p.set = true
	if strings.Trim(text, "0123456789") == "" {
		if p.seq, err = strconv.ParseUint(text, 10, 53); err != nil {
			return p, usage("--since %s is no record's number", text)
		}
		p.bySeq = true
		return p, nil
	}
	if _, err := os.Stat(text); err == nil {
		p.cursor = text
		return p, nil
	}
	if p.at, err = moment("--since", text, now); err != nil {
		return p, usage("--since %q is neither a record's number, nor the file of a cursor, nor a time such as 2026-12-01, 2026-12-01T08:30:00Z or 24h", text)
	}
	return p, nil
}

// leaveOut drops the closed files that lie before a point as a whole: a file
// verifies alone, since its first record states what was before. It returns how
// many were dropped.
func (s *snapshot) leaveOut(p sincePoint) (int, error) {
	if !p.set || p.cursor != "" {
		return 0, nil
	}
	from, origin := 0, ""
	for i := len(s.files) - 1; i >= 0; i-- {
		first, err := firstRecord(s.files[i])
		if err != nil {
			return 0, err
		}
		if first == nil {
			// What it holds is not known, so it is read.
			continue
		}
		if origin == "" {
			origin = first.Text("origin")
		}
		if first.Text("origin") != origin && p.bySeq {
			from = i + 1 // the number is one of the newest chain
			break
		}
		if p.holds(first) {
			from = i
			break
		}
	}
	if from == 0 {
		return 0, nil
	}
	s.files = s.files[from:]
	first, err := firstRecord(s.files[0])
	if err != nil {
		return 0, err
	}
	if m, err := auditlog.ParseManifest(s.manifest); err == nil && first != nil {
		number, ok := first.Number("segment")
		m.Segments = slices.DeleteFunc(m.Segments, func(e auditlog.ManifestSegment) bool { return ok && e.Segment < number })
		s.manifest = m.Encode()
	}
	return from, nil
}

// holds reports whether a file that begins with a record has the point.
func (p sincePoint) holds(first *auditlog.Record) bool {
	if p.bySeq {
		return first.Line.Seal.Seq <= p.seq
	}
	return !first.Time().After(p.at)
}

// settled makes a reader of a file that may be written to. Where the file can
// be read at any place, so can what is returned.
func settled(r io.ReadCloser) io.ReadCloser {
	s := &settling{r: r}
	if at, ok := r.(placed); ok {
		return &settlingAt{settling: s, at: at}
	}
	return s
}

type placed interface {
	io.ReaderAt
	io.Seeker
}

type settlingAt struct {
	*settling
	at placed
}

func (s *settlingAt) ReadAt(p []byte, pos int64) (int, error) { return s.at.ReadAt(p, pos) }

func (s *settlingAt) Seek(offset int64, whence int) (int64, error) { return s.at.Seek(offset, whence) }

// ReadAt implements io.ReaderAt.
func (r *fromStart) ReadAt(p []byte, pos int64) (int, error) { return r.f.ReadAt(p, pos) }

// Seek implements io.Seeker.
func (r *fromStart) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		info, err := r.f.Stat()
		if err != nil {
			return 0, err
		}
		offset += info.Size()
	}
	if offset < 0 {
		return 0, fs.ErrInvalid
	}
	r.at = offset
	return offset, nil
}
