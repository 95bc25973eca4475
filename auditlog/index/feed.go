package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Position names a record for good: rotation, compression and erasure move
// records, but change neither their number nor their hash.
type Position struct {
	Origin string // of the log
	Seq    uint64
	Leaf   auditlog.Hash
}

// Feed gives what ended in a log, on from a position, in the order in which it
// ended: closed operations and events, with Own also the log's own records. An
// operation that is open is given when it is closed. The index has to be
// brought up to date between two calls for anything new. It is not safe for
// concurrent use.
type Feed struct {
	// Own adds the log's own records, such as starts, gaps and checkpoints.
	Own bool

	x     *Index
	at    Position
	begun bool
	// Where at was found last.
	segment, pos int64
}

// Feed makes a feed of what comes after a position; nil: of everything.
func (x *Index) Feed(after *Position) *Feed {
	f := &Feed{x: x, segment: -1}
	if after != nil {
		f.at, f.begun = *after, true
	}
	return f
}

// GoneError says that the log no longer has the record at a position, and does
// not begin right behind it either.
type GoneError struct {
	Position
	// First is the oldest record of the same origin that is left; Left is false
	// if there is none.
	First uint64
	Left  bool
	// Other says that another record has the position's number.
	Other bool
}

// Error implements error.
func (e *GoneError) Error() string {
	switch {
	case e.Other:
		return fmt.Sprintf("record %d of %s is another one now: the log was replaced or changed", e.Seq, e.Origin)
	case !e.Left:
		return fmt.Sprintf("the log has no records of %s any more", e.Origin)
	}
	return fmt.Sprintf("the records %d to %d of %s are not in the log any more", e.Seq+1, e.First-1, e.Origin)
}

// Next calls do for the next entries until it wants no more, and remembers the
// last one for which it returned no error. An entry is valid until do returns.
// A GoneError says that the feed cannot go on without a gap.
func (f *Feed) Next(ctx context.Context, do func(*Entry) (more bool, err error)) (err error) {
	f.x.mu.RLock()
	defer f.x.mu.RUnlock()
	tx, err := f.x.r.BeginTx(uncancelled(ctx), nil)
	if err != nil {
		return f.x.failed(err)
	}
	defer func() {
		// It was only read from.
		_ = tx.Rollback()
	}()
	q := query{x: f.x, ctx: ctx}
	if q.intents, err = tx.PrepareContext(uncancelled(ctx), selectIntent); err != nil {
		return f.x.failed(err)
	}
	defer func() { err = errors.Join(err, q.intents.Close()) }()
	from, err := f.find(ctx, tx)
	if err != nil {
		return err
	}
	condition := `r.kind IN ('outcome','event')`
	if f.Own {
		condition = `r.kind<>'intent'`
	}
	segments, err := segmentsOf(uncancelled(ctx), tx, "")
	if err != nil {
		return f.x.failed(err)
	}
	behind := f.begun
	for _, s := range segments {
		after := int64(-1)
		if behind {
			if s.id != from.segment {
				continue
			}
			behind, after = false, from.pos
		}
		q.do = func(e *Entry) error {
			more, err := do(e)
			if err != nil {
				return err
			}
			f.at, f.begun = Position{Origin: e.Origin, Seq: e.Seq, Leaf: e.Leaf}, true
			f.segment, f.pos = s.id, e.Pos
			if !more {
				return errLimit
			}
			return nil
		}
		err := q.segment(uncancelled(ctx), tx, s, selectEntries+condition+` AND r.pos>? ORDER BY r.pos`, []any{s.id, after})
		if errors.Is(err, errLimit) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// spot is a place to go on behind.
type spot struct{ segment, pos int64 }

// find looks the position up: where it was last, or anywhere.
func (f *Feed) find(ctx context.Context, tx *sql.Tx) (spot, error) {
	ctx = uncancelled(ctx)
	if !f.begun {
		return spot{}, nil
	}
	var leaf []byte
	if f.segment >= 0 {
		err := tx.QueryRowContext(ctx, `SELECT leaf FROM records WHERE segment=? AND pos=? AND seq=?`, f.segment, f.pos, int64(f.at.Seq)).Scan(&leaf)
		if err == nil && auditlog.Hash(leaf) == f.at.Leaf {
			return spot{f.segment, f.pos}, nil
		}
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return spot{}, f.x.failed(err)
		}
	}
	gone := &GoneError{Position: f.at}
	var at spot
	err := tx.QueryRowContext(ctx, `SELECT r.segment,r.pos,r.leaf FROM records r JOIN segments s ON s.id=r.segment WHERE s.origin=? AND r.seq=? ORDER BY s.ord LIMIT 1`,
		f.at.Origin, int64(f.at.Seq)).Scan(&at.segment, &at.pos, &leaf)
	switch {
	case err == nil && len(leaf) == len(f.at.Leaf) && auditlog.Hash(leaf) == f.at.Leaf:
		f.segment, f.pos = at.segment, at.pos
		return at, nil
	case err == nil:
		gone.Other, gone.Left = true, true
		return spot{}, gone
	case !errors.Is(err, sql.ErrNoRows):
		return spot{}, f.x.failed(err)
	}
	var first int64
	err = tx.QueryRowContext(ctx, `SELECT s.id,r.pos,r.seq FROM records r JOIN segments s ON s.id=r.segment WHERE s.origin=? ORDER BY s.ord,r.pos LIMIT 1`, f.at.Origin).
		Scan(&at.segment, &at.pos, &first)
	if errors.Is(err, sql.ErrNoRows) {
		return spot{}, gone
	}
	if err != nil {
		return spot{}, f.x.failed(err)
	}
	if uint64(first) == f.at.Seq+1 {
		// Its file was deleted, and nothing that was not given.
		return spot{at.segment, at.pos - 1}, nil
	}
	gone.First, gone.Left = uint64(first), true
	return spot{}, gone
}

// Skip makes a feed that cannot go on, as a GoneError said, begin with what is
// left of the log.
func (f *Feed) Skip(gone *GoneError) {
	f.begun, f.segment = false, -1
	if gone.Left && !gone.Other {
		// Begin with that origin, not with an older one before it.
		f.at, f.begun = Position{Origin: gone.Origin, Seq: gone.First - 1}, true
	}
}

// At is the position of the last entry that was given; ok is false if there is
// none yet.
func (f *Feed) At() (p Position, ok bool) { return f.at, f.begun }
