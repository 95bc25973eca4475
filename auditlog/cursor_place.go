package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// errNotThere says that a log has no record that continues a cursor's chain
// where the cursor was made.
var errNotThere = errors.New("the log does not have the record that it was made at")

// cursorPlace is where a log goes on behind a cursor.
type cursorPlace struct {
	at    int    // the source with the record that the cursor was made at
	base  int64  // the byte behind that record
	first uint64 // the first record of the origin that is still there
}

// place finds the record that the cursor was made at.
func (c *Cursor) place(ctx context.Context, sources []Source, maxLine int) (p cursorPlace, err error) {
	p.at = -1
	begin := uint64(0) // of the source at p.at
	for i, s := range sources {
		origin, first, err := firstOf(s)
		if err != nil {
			return p, err
		}
		if origin != c.s.Origin || first >= c.s.Size {
			continue
		}
		if p.at < 0 {
			p.first = first
		}
		// Of a file that was given twice the second copy is read, and found.
		if p.at < 0 || first > begin {
			p.at, begin = i, first
		}
	}
	if p.at < 0 {
		return p, errNotThere
	}
	p.base, err = c.find(ctx, sources[p.at], maxLine)
	return p, err
}

// find returns the offset behind the record that the cursor was made at.
func (c *Cursor) find(ctx context.Context, s Source, maxLine int) (base int64, err error) {
	r, err := s.Open()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var in io.Reader = r
	start := int64(0)
	if at, ok := r.(seekable); ok {
		size, err := at.Seek(0, io.SeekEnd)
		if err != nil {
			return 0, err
		}
		start = seekRecord(at, size, c.s.Size-1)
		in = io.NewSectionReader(at, start, size-start)
	}
	lines := NewReader(in, maxLine)
	var kids interner
	for n := 1; ; n++ {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return 0, errNotThere
		}
		if errors.Is(err, ErrLineTooLong) {
			continue
		}
		if err != nil {
			return 0, err
		}
		var l scanned
		splitFast(line, &l, &kids)
		switch {
		case !l.sealed() || l.seal.Seq < c.s.Size-1:
		case l.seal.Seq == c.s.Size-1 && l.seal.Chain.String() == c.s.Chain:
			return start + lines.Consumed(), nil
		default:
			return 0, errNotThere
		}
		if n%4096 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

type seekable interface {
	io.ReaderAt
	io.Seeker
}

// behind is a source without its first bytes.
func behind(s Source, base int64) Source {
	open := s.Open
	s.Open = func() (io.ReadCloser, error) {
		r, err := open()
		if err != nil {
			return nil, err
		}
		if at, ok := r.(io.Seeker); ok {
			_, err = at.Seek(base, io.SeekStart)
		} else {
			_, err = io.CopyN(io.Discard, r, base)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("going to byte %d: %w", base, err), r.Close())
		}
		return r, nil
	}
	return s
}

// goOn goes on behind the options' cursor if that is possible, and else has
// the log verified from its beginning, and the cursor compared with it.
func (j *judge) goOn(ctx context.Context, sources []Source) (*judge, []Source, error) {
	c := j.opts.Cursor
	if c == nil {
		return j, sources, nil
	}
	unused := c.unfit(j)
	if unused == "" {
		p, err := c.place(ctx, sources, j.opts.MaxLine)
		switch {
		case errors.Is(err, errNotThere):
			unused = err.Error()
		case err != nil:
			return nil, nil, fmt.Errorf("going to the cursor: %w", err)
		default:
			rest := append([]Source{behind(sources[p.at], p.base)}, sources[p.at+1:]...)
			again, err := newJudge(rest, j.opts)
			if err != nil {
				return nil, nil, err
			}
			return again, rest, again.restore(c, p, sources[:p.at])
		}
	}
	j.report.CursorUnused = unused
	j.holdCursor(c, j.opts.CursorName)
	return j, sources, nil
}
