package index

import (
	"context"
	"database/sql"
	"errors"
	"time"
)

// Found is one record, as the index knows it.
type Found struct {
	Place
	Mark   Mark
	Kind   string
	At     time.Time
	Origin string
}

const selectFound = `SELECT r.pos,r.len,r.line,r.seq,r.leaf,r.kind,r.at,s.id,s.path,s.file,s.origin FROM records r JOIN segments s ON s.id=r.segment WHERE `

const nextSegment = `r.segment=(SELECT id FROM segments WHERE ord>(SELECT ord FROM segments WHERE id=?) AND records>0 ORDER BY ord LIMIT 1)`

// Operation finds the records of an operation, in the order of the log, at
// most 16.
func (x *Index) Operation(ctx context.Context, id string) ([]Found, error) {
	return x.find(ctx, selectFound+`r.op=? ORDER BY s.ord,r.pos LIMIT 16`, operationKey(id))
}

// Before and After find the records next to one, at most n, nearest first.
func (x *Index) Before(ctx context.Context, m Mark, n int) ([]Found, error) {
	found, err := x.find(ctx, selectFound+`r.segment=? AND r.pos<? ORDER BY r.pos DESC LIMIT ?`, m.Segment, m.Pos, n)
	if err != nil || len(found) == n {
		return found, err
	}
	more, err := x.find(ctx, selectFound+`r.segment=(SELECT id FROM segments WHERE ord<(SELECT ord FROM segments WHERE id=?) AND records>0 ORDER BY ord DESC LIMIT 1)
ORDER BY r.pos DESC LIMIT ?`, m.Segment, n-len(found))
	return append(found, more...), err
}

// After is like Before.
func (x *Index) After(ctx context.Context, m Mark, n int) ([]Found, error) {
	found, err := x.find(ctx, selectFound+`r.segment=? AND r.pos>? ORDER BY r.pos LIMIT ?`, m.Segment, m.Pos, n)
	if err != nil || len(found) == n {
		return found, err
	}
	more, err := x.find(ctx, selectFound+nextSegment+` ORDER BY r.pos LIMIT ?`, m.Segment, n-len(found))
	return append(found, more...), err
}

// Seq finds the newest record with a number.
func (x *Index) Seq(ctx context.Context, seq uint64) (*Found, error) {
	x.mu.RLock()
	segments, err := x.segments(ctx)
	x.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	for _, s := range segments {
		// Within a file that was not tampered with, numbers grow with places.
		low, high := int64(0), s.next
		for low < high {
			at, err := x.find(ctx, selectFound+`r.segment=? AND r.pos>=? ORDER BY r.pos LIMIT 1`, s.id, low+(high-low)/2)
			if err != nil {
				return nil, err
			}
			switch {
			case len(at) == 0 || at[0].Seq > seq:
				high = low + (high-low)/2
			case at[0].Seq == seq:
				return &at[0], nil
			default:
				low = at[0].Pos + 1
			}
		}
	}
	return nil, nil
}

func (x *Index) segments(ctx context.Context) (_ []origin, err error) {
	ctx = uncancelled(ctx)
	tx, err := x.r.BeginTx(ctx, nil)
	if err != nil {
		return nil, x.failed(err)
	}
	defer func() {
		// It was only read from.
		_ = tx.Rollback()
	}()
	list, err := segmentsOf(ctx, tx, " DESC")
	if err != nil {
		return nil, x.failed(err)
	}
	return list, nil
}

// Checkpoint finds the first checkpoint record behind a record, among the next
// windowRecords.
func (x *Index) Checkpoint(ctx context.Context, m Mark) (*Found, error) {
	for range 64 {
		found, err := x.find(ctx, `SELECT * FROM (`+selectFound+`r.segment=? AND r.pos>? ORDER BY r.pos LIMIT ?) WHERE kind='checkpoint' LIMIT 1`, m.Segment, m.Pos, windowRecords)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 {
			return &found[0], nil
		}
		next, err := x.find(ctx, selectFound+nextSegment+` ORDER BY r.pos LIMIT 1`, m.Segment)
		if err != nil || len(next) == 0 {
			return nil, err
		}
		if next[0].Kind == "checkpoint" {
			return &next[0], nil
		}
		m = next[0].Mark
	}
	return nil, nil
}

func (x *Index) find(ctx context.Context, statement string, values ...any) (list []Found, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	rows, err := x.r.QueryContext(uncancelled(ctx), statement, values...)
	if err != nil {
		return nil, x.failed(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var f Found
		var seq, at, file int64
		var leaf sql.RawBytes
		if err := rows.Scan(&f.Pos, &f.Len, &f.Line, &seq, &leaf, &f.Kind, &at, &f.Mark.Segment, &f.Path, &file, &f.Origin); err != nil {
			return nil, x.failed(err)
		}
		f.Seq, f.File, f.At, f.Mark.Pos = uint64(seq), uint64(file), time.Unix(0, at).UTC(), f.Pos
		copy(f.Leaf[:], leaf)
		list = append(list, f)
	}
	if err := rows.Err(); err != nil {
		return nil, x.failed(err)
	}
	return list, nil
}

// Span lists the records behind one mark and up to another, in the same file,
// that are of operations or messages, at most n.
func (x *Index) Span(ctx context.Context, from, to Mark, n int) ([]Found, error) {
	return x.find(ctx, selectFound+`r.segment=? AND r.pos>? AND r.pos<? AND r.kind IN ('intent','event') ORDER BY r.pos LIMIT ?`, from.Segment, from.Pos, to.Pos, n)
}
