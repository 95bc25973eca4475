package index

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Valued is the sum of one value of a dimension, over one step of time.
type Valued struct {
	At    time.Time // beginning of the step; zero without steps
	Value string
	Sum
}

// Range is what is summed up. From and To are rounded to hours: From ≤ hour < To.
type Range struct {
	Dimension Dimension
	From, To  time.Time // zero: all there is
	Step      int64     // hours; 0: one sum for all
	Values    []string  // only these; nil: all
	Most      int       // values, those with the most calls first; 0: all. Without steps only
}

// Sums adds up the hours of a range. With steps they come in the order of
// time, without in that of calls.
func (x *Index) Sums(ctx context.Context, r Range) (list []Valued, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	step := max(r.Step, 1)
	hour := `0`
	if r.Step > 0 {
		hour = `hour-hour%?`
	}
	var sum []string
	for name := range strings.SplitSeq("calls,errors,denied,limited,"+latencyColumns(""), ",") {
		sum = append(sum, "sum("+name+")")
	}
	query := `SELECT ` + hour + ` AS step,value,` + strings.Join(sum, ",") + ` FROM rollup WHERE dim=?` //nolint:gosec // names of columns
	var values []any
	if r.Step > 0 {
		values = append(values, step)
	}
	values = append(values, int(r.Dimension))
	if !r.From.IsZero() {
		query, values = query+` AND hour>=?`, append(values, hourOf(r.From.UnixNano()))
	}
	if !r.To.IsZero() {
		query, values = query+` AND hour<?`, append(values, hourOf(r.To.Add(time.Hour-1).UnixNano()))
	}
	if r.Values != nil {
		query += ` AND value IN (` + strings.TrimPrefix(strings.Repeat(",?", len(r.Values)), ",") + `)`
		for _, v := range r.Values {
			values = append(values, v[:min(len(v), maxText)])
		}
	}
	query += ` GROUP BY step,value HAVING sum(calls)>0`
	if r.Step > 0 {
		query += ` ORDER BY step`
	} else {
		query += ` ORDER BY sum(calls) DESC,value`
		if r.Most > 0 {
			query, values = query+` LIMIT ?`, append(values, r.Most)
		}
	}
	rows, err := x.r.QueryContext(uncancelled(ctx), query, values...)
	if err != nil {
		return nil, x.failed(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var v Valued
		var at int64
		into := []any{&at, &v.Value, &v.Calls, &v.Errors, &v.Denied, &v.Limited}
		for i := range v.Latency {
			into = append(into, &v.Latency[i])
		}
		if err := rows.Scan(into...); err != nil {
			return nil, x.failed(err)
		}
		if r.Step > 0 {
			v.At = time.Unix(at*3600, 0).UTC()
		}
		list = append(list, v)
	}
	if err := rows.Err(); err != nil {
		return nil, x.failed(err)
	}
	return list, nil
}

// Calls adds up the calls from a time on, to the second, for days that do not
// begin with an hour of UTC.
func (x *Index) Calls(ctx context.Context, from time.Time) (sum Sum, err error) {
	hour := from.Truncate(time.Hour)
	if !hour.Equal(from) {
		hour = hour.Add(time.Hour)
		x.mu.RLock()
		err := x.r.QueryRowContext(uncancelled(ctx), `SELECT count(*),ifnull(sum(outcome='denied'),0),ifnull(sum(outcome='rate_limited'),0),
ifnull(sum(outcome NOT IN ('success','input_required','denied','rate_limited')),0)
FROM records WHERE at>=? AND at<? AND outcome IS NOT NULL AND kind IN ('outcome','event')`, from.UnixNano(), hour.UnixNano()).
			Scan(&sum.Calls, &sum.Denied, &sum.Limited, &sum.Errors)
		x.mu.RUnlock()
		if err != nil {
			return sum, x.failed(err)
		}
	}
	list, err := x.Sums(ctx, Range{Dimension: All, From: hour})
	for _, v := range list {
		sum.Calls, sum.Denied, sum.Limited, sum.Errors = sum.Calls+v.Calls, sum.Denied+v.Denied, sum.Limited+v.Limited, sum.Errors+v.Errors
	}
	return sum, err
}

// Extent is what an index covers.
type Extent struct {
	Records     int64
	First, Last time.Time // hours of the oldest and newest record; zero: none
	Newest      Mark      // the record that was indexed last; zero: none
	Origin      string    // of the newest file
}

// Extent says what the index covers now.
func (x *Index) Extent(ctx context.Context) (e Extent, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ctx = uncancelled(ctx)
	var first, last int64
	err = x.r.QueryRowContext(ctx, `SELECT (SELECT ifnull(sum(records),0) FROM segments),(SELECT ifnull(min(hour),0) FROM hours WHERE hour>0),(SELECT ifnull(max(hour),0) FROM hours)`).Scan(&e.Records, &first, &last)
	if err == nil && e.Records > 0 {
		err = x.r.QueryRowContext(ctx, `SELECT id,ifnull(last_pos,0),origin FROM segments WHERE records>0 ORDER BY ord DESC LIMIT 1`).Scan(&e.Newest.Segment, &e.Newest.Pos, &e.Origin)
		e.First, e.Last = time.Unix(first*3600, 0).UTC(), time.Unix(last*3600, 0).UTC()
	}
	if err != nil {
		return e, x.failed(err)
	}
	return e, nil
}
