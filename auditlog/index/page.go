package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mark is the place of a record within the index, to go on from. It holds until
// the index is made anew.
type Mark struct{ Segment, Pos int64 }

// String is a mark in the form that ParseMark reads.
func (m Mark) String() string {
	return strconv.FormatInt(m.Segment, 10) + "." + strconv.FormatInt(m.Pos, 10)
}

// ParseMark reads a mark.
func ParseMark(text string) (m Mark, err error) {
	a, b, found := strings.Cut(text, ".")
	if found {
		if m.Segment, err = strconv.ParseInt(a, 10, 64); err == nil {
			m.Pos, err = strconv.ParseInt(b, 10, 64)
		}
	}
	if err != nil || !found || m.Segment < 1 || m.Pos < 0 {
		return Mark{}, fmt.Errorf("%q is no mark of an entry", text)
	}
	return m, nil
}

// Walk says where a page begins and when it ends.
type Walk struct {
	Before   Mark      // entries older than this; zero: from the newest on
	After    Mark      // entries newer than this; zero: to the oldest
	Deadline time.Time // when to stop looking, found or not; zero: never
}

// Page is how far a walk came.
type Page struct {
	// End is where the next page begins, if there is more.
	End  Mark
	More bool
	// Late says that it stopped at the deadline.
	Late bool
}

// windowRecords is about how many records are looked at between two looks at
// the clock.
const windowRecords = 20_000

// Page goes through entries, newest first, and calls do for each that the
// filter wants, until it took f.Limit of them. It goes by place and never
// counts what it passes over, so that a page costs the same wherever it is.
// Filter.Newest is of no account.
func (x *Index) Page(ctx context.Context, f Filter, w Walk, do func(*Entry) (took bool, err error)) (p Page, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var at Mark // of the entry that was looked at last
	given, limit := 0, f.Limit
	f.Limit = 0
	q := query{x: x, ctx: ctx, filter: f, do: func(e *Entry) error {
		if limit > 0 && given == limit {
			p.More = true
			return errLimit
		}
		at = e.Mark
		took, err := do(e)
		if took {
			given++
		}
		if err == nil && late(w.Deadline) {
			p.Late, p.More = true, true
			err = errLimit
		}
		return err
	}}
	ctx = uncancelled(ctx)
	tx, err := x.r.BeginTx(ctx, nil)
	if err != nil {
		return p, x.failed(err)
	}
	defer func() {
		// It was only read from.
		_ = tx.Rollback()
	}()
	if q.intents, err = tx.PrepareContext(ctx, selectIntent); err != nil {
		return p, x.failed(err)
	}
	defer func() { err = errors.Join(err, q.intents.Close()) }()
	segments, err := segmentsOf(ctx, tx, " DESC")
	if err != nil {
		return p, x.failed(err)
	}
	if segments, err = between(segments, w); err != nil {
		return p, err
	}
	ranges, bounded, err := f.ranges(ctx, tx)
	if err != nil {
		return p, x.failed(err)
	}
	condition, values := f.where()
	statement := selectEntries + `r.pos>=? AND r.pos<? AND ` + condition + ` ORDER BY r.pos DESC`
	for _, s := range segments {
		parts := []span{{0, s.next}}
		if bounded {
			parts = ranges[s.id]
		}
		step := max(s.next/max(s.records, 1), 1) * windowRecords
		for _, part := range parts {
			low, high := part.first, part.last+1
			if s.id == w.Before.Segment {
				high = min(high, w.Before.Pos)
			}
			if s.id == w.After.Segment {
				low = max(low, w.After.Pos+1)
			}
			for high > low {
				from := max(high-step, low)
				err := q.segment(ctx, tx, s, statement, append([]any{s.id, from, high}, values...))
				if errors.Is(err, errLimit) {
					p.End = at
					return p, nil
				}
				if err != nil {
					return p, err
				}
				high = from
				if err := q.ctx.Err(); err != nil {
					return p, err
				}
				if late(w.Deadline) {
					p.End, p.More, p.Late = Mark{s.id, from}, true, true
					return p, nil
				}
			}
		}
	}
	return p, nil
}

func late(deadline time.Time) bool { return !deadline.IsZero() && time.Now().After(deadline) }

// ErrMark is returned, wrapped, for a mark of records that are not there any
// more: deleted by retention, or of an index that was made anew.
var ErrMark = errors.New("the log's index has no such place any more; begin anew")

// between keeps the segments, newest first, that a walk goes through.
func between(segments []origin, w Walk) ([]origin, error) {
	find := func(id int64) int { return slices.IndexFunc(segments, func(s origin) bool { return s.id == id }) }
	if w.After != (Mark{}) {
		// If it is gone, all that is there is newer.
		if i := find(w.After.Segment); i >= 0 {
			segments = segments[:i+1]
		}
	}
	if w.Before != (Mark{}) {
		i := find(w.Before.Segment)
		if i < 0 {
			return nil, fmt.Errorf("%w: %s", ErrMark, w.Before)
		}
		segments = segments[i:]
	}
	return segments, nil
}

// ranges finds the places, newest first, outside of which nothing fits the
// filter. bounded is false if it could be anywhere.
func (f *Filter) ranges(ctx context.Context, tx *sql.Tx) (ranges map[int64][]span, bounded bool, err error) {
	query, values := `SELECT segment,first,last FROM hours h WHERE 1`, []any(nil)
	if !f.Since.IsZero() {
		query, values, bounded = query+` AND hour>=?`, append(values, hourOf(f.Since.UnixNano())), true
	}
	if !f.Until.IsZero() {
		query, values, bounded = query+` AND hour<=?`, append(values, hourOf(f.Until.UnixNano())), true
	}
	if !f.Own {
		for dim, list := range map[Dimension][]string{ByTool: f.Tools, ByServer: f.Servers, ByPrincipal: f.Principals, ByClient: f.Clients, ByMethod: f.Methods, ByOutcome: f.Outcomes, ByDecision: f.Decisions} {
			if len(list) != 1 || strings.Contains(list[0], "*") {
				continue
			}
			query += ` AND EXISTS(SELECT 1 FROM rollup r WHERE r.dim=? AND r.hour=h.hour AND r.value=? AND r.segment=h.segment)`
			values, bounded = append(values, int(dim), list[0][:min(len(list[0]), maxText)]), true
		}
	}
	if !bounded {
		return nil, false, nil
	}
	rows, err := tx.QueryContext(ctx, query+` ORDER BY segment,last DESC`, values...)
	if err != nil {
		return nil, true, err
	}
	defer rows.Close()
	ranges = make(map[int64][]span)
	for rows.Next() {
		var segment int64
		var s span
		if err := rows.Scan(&segment, &s.first, &s.last); err != nil {
			return nil, true, err
		}
		list := ranges[segment]
		if n := len(list); n > 0 && s.last >= list[n-1].first {
			// The hours overlap, since a clock was set back.
			list[n-1].first = min(list[n-1].first, s.first)
			continue
		}
		ranges[segment] = append(list, s)
	}
	return ranges, true, rows.Err()
}
