package auditlog

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// LeavesOf reads the leaf hashes of an origin from the files of its log, which
// are listed anew for each call, oldest first. It takes the stored leaves and
// checks nothing but their order: a tree made of them is compared with a signed
// root. A file that can be read at any place is searched, not read from its
// beginning.
func LeavesOf(origin string, list func() ([]Source, error)) Leaves {
	return func(ctx context.Context, from, to uint64, each func(Hash) error) error {
		sources, err := list()
		if err != nil {
			return err
		}
		next := from
		for _, s := range fileRuns(sources, origin, from, &err) {
			if next >= to {
				break
			}
			if next, err = readLeaves(ctx, s, next, to, each); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if next < to {
			return fmt.Errorf("%w: record %d of %s is not among its files", ErrLeafMissing, next, origin)
		}
		return nil
	}
}

// ErrLeafMissing is returned, wrapped, for a record that is not (or no longer) in the log's files.
var ErrLeafMissing = errors.New("a record is missing")

// fileRuns lists the sources of an origin that hold records from one seq on.
func fileRuns(sources []Source, origin string, from uint64, failed *error) (runs []Source) {
	for i := len(sources) - 1; i >= 0; i-- {
		have, first, err := firstOf(sources[i])
		if err != nil {
			*failed = err
			return nil
		}
		if have != origin {
			continue
		}
		runs = append([]Source{sources[i]}, runs...)
		if first <= from {
			break
		}
	}
	return runs
}

// firstOf reads the origin and the seq of a file's first record; an empty or
// foreign file has neither.
func firstOf(s Source) (origin string, seq uint64, err error) {
	r, err := s.Open()
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	line, err := NewReader(r, 0).Next()
	if errors.Is(err, io.EOF) || errors.Is(err, ErrLineTooLong) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}
	record, fault := ParseRecord(line)
	if fault != LineOK {
		return "", 0, nil
	}
	return record.Text("origin"), record.Line.Seal.Seq, nil
}

// readLeaves reads the leaves from a file up to to, and returns the next seq.
func readLeaves(ctx context.Context, s Source, next, to uint64, each func(Hash) error) (_ uint64, err error) {
	r, err := s.Open()
	if err != nil {
		return next, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var in io.Reader = r
	if at, ok := r.(seekable); ok {
		size, err := at.Seek(0, io.SeekEnd)
		if err != nil {
			return next, err
		}
		start := seekRecord(at, size, next)
		in = io.NewSectionReader(at, start, size-start)
	}
	var kids interner
	lines := NewReader(in, 0)
	for next < to {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return next, err
		}
		var l scanned
		splitFast(line, &l, &kids)
		switch {
		case !l.sealed():
			return next, fmt.Errorf("%s: where record %d should be, a line is no record (%s); run `mcp-audit verify`", s.Name, next, l.fault)
		case l.seal.Seq < next:
			continue
		case l.seal.Seq > next:
			return next, fmt.Errorf("%w: %s has record %d where record %d should be; run `mcp-audit verify`", ErrLeafMissing, s.Name, l.seal.Seq, next)
		}
		if err := each(l.seal.Leaf); err != nil {
			return next, err
		}
		if next++; next%4096 == 0 && ctx.Err() != nil {
			return next, ctx.Err()
		}
	}
	return next, nil
}

// seekRecord finds a place at or before the record of a seq, by halving. A
// place where nothing can be read is answered with one further to the front.
func seekRecord(r io.ReaderAt, size int64, seq uint64) int64 {
	const near = 1 << 20
	lo, hi := int64(0), size
	for hi-lo > near {
		mid := lo + (hi-lo)/2
		lines := NewReader(io.NewSectionReader(r, mid, size-mid), 0)
		if _, err := lines.Next(); err != nil {
			hi = mid
			continue
		}
		start := mid + lines.Consumed()
		line, err := lines.Next()
		var l scanned
		if err == nil {
			splitFast(line, &l, new(interner))
		}
		if err != nil || !l.sealed() || l.seal.Seq > seq {
			hi = mid
			continue
		}
		lo = start
	}
	return lo
}
