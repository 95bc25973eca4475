package index

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
)

// Dimension is what sums are kept by.
type Dimension int

// The dimensions. Their numbers are stored.
const (
	All Dimension = iota
	ByTool
	ByServer
	ByPrincipal
	ByClient
	ByMethod
	ByOutcome
	ByDecision
	dimensions
)

// latencyBounds are the upper bounds, in milliseconds, of the classes that
// durations are counted in; the last class has none.
var latencyBounds = [...]int64{1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 10_000, 20_000, 60_000}

// Latency counts durations by class.
type Latency [len(latencyBounds) + 1]int64

// latencyColumns lists the columns of a Latency, each with a suffix.
func latencyColumns(suffix string) string {
	names := make([]string, len(Latency{}))
	for i := range names {
		names[i] = fmt.Sprintf("l%d%s", i, suffix)
	}
	return strings.Join(names, ",")
}

func (l *Latency) count(ms int64) {
	for i, bound := range latencyBounds {
		if ms <= bound {
			l[i]++
			return
		}
	}
	l[len(l)-1]++
}

// Quantile estimates the duration that a share q of those counted does not
// exceed, between the bounds of its class; -1 if none was counted.
func (l *Latency) Quantile(q float64) time.Duration {
	var all int64
	for _, n := range l {
		all += n
	}
	if all == 0 {
		return -1
	}
	rank, below, low := q*float64(all), int64(0), float64(0)
	for i, n := range l {
		if i == len(latencyBounds) {
			break
		}
		high := float64(latencyBounds[i])
		if float64(below+n) >= rank && n > 0 {
			ms := low + (high-low)*(rank-float64(below))/float64(n)
			return time.Duration(ms * float64(time.Millisecond))
		}
		below, low = below+n, high
	}
	return time.Duration(low) * time.Millisecond
}

// Sum is what became of calls. A call is a closed operation, also one that was
// refused before it was forwarded; messages without an answer are none.
type Sum struct {
	Calls   int64
	Errors  int64 // all that went wrong; not those refused
	Denied  int64
	Limited int64 // refused by a rate limit
	Latency Latency
}

type sumKey struct {
	dim   Dimension
	hour  int64
	value string
}

type span struct{ first, last int64 }

// sums gathers what one batch adds to the hours of a segment.
type sums struct {
	segment int64
	of      map[sumKey]*Sum
	hours   map[int64]*span
}

func newSums(segment int64) *sums {
	return &sums{segment: segment, of: make(map[sumKey]*Sum), hours: make(map[int64]*span)}
}

func hourOf(at int64) int64 {
	const hour = int64(time.Hour)
	if at < 0 {
		return 0
	}
	return at / hour
}

func (s *sums) add(c *columns, pos int64) {
	hour := hourOf(c.at)
	if h := s.hours[hour]; h == nil {
		s.hours[hour] = &span{pos, pos}
	} else {
		h.first, h.last = min(h.first, pos), max(h.last, pos)
	}
	if c.kind != "intent" && c.kind != "outcome" && c.kind != "event" {
		return
	}
	var one Sum
	if c.outcome != "" {
		one.Calls = max(c.count, 1)
		switch c.outcome {
		case "success", "input_required":
		case "denied":
			one.Denied = one.Calls
		case "rate_limited":
			one.Limited = one.Calls
		default:
			one.Errors = one.Calls
		}
	}
	ms, timed := c.duration.(int64)
	timed = timed && c.kind == "outcome"
	for dim, value := range [dimensions]string{All: "", ByTool: c.tool, ByServer: c.server, ByPrincipal: c.principal, ByClient: c.client, ByMethod: c.method, ByOutcome: c.outcome, ByDecision: c.decision} {
		if value == "" && (Dimension(dim) == ByTool || Dimension(dim) >= ByOutcome) {
			continue
		}
		key := sumKey{Dimension(dim), hour, value}
		sum := s.of[key]
		if sum == nil {
			sum = new(Sum)
			s.of[key] = sum
		}
		sum.Calls += one.Calls
		sum.Errors += one.Errors
		sum.Denied += one.Denied
		sum.Limited += one.Limited
		if timed {
			sum.Latency.count(ms)
		}
	}
}

var addRollup = func() string {
	names := "calls,errors,denied,limited," + latencyColumns("")
	var set []string
	for name := range strings.SplitSeq(names, ",") {
		set = append(set, name+"="+name+"+excluded."+name)
	}
	return `INSERT INTO rollup(dim,hour,value,segment,` + names + `) VALUES(?,?,?,?` + strings.Repeat(",?", len(set)) +
		`) ON CONFLICT DO UPDATE SET ` + strings.Join(set, ",")
}()

const addHour = `INSERT INTO hours(hour,segment,first,last) VALUES(?,?,?,?)
ON CONFLICT DO UPDATE SET first=min(first,excluded.first),last=max(last,excluded.last)`

func (s *sums) store(ctx context.Context, tx *sql.Tx) error {
	if len(s.hours) == 0 {
		return nil
	}
	for hour, h := range s.hours {
		if _, err := tx.ExecContext(ctx, addHour, hour, s.segment, h.first, h.last); err != nil {
			return err
		}
	}
	insert, err := tx.PrepareContext(ctx, addRollup)
	if err != nil {
		return err
	}
	defer insert.Close()
	values := make([]any, 0, 8+len(Latency{}))
	for key, sum := range s.of {
		values = append(values[:0], int(key.dim), key.hour, key.value, s.segment, sum.Calls, sum.Errors, sum.Denied, sum.Limited)
		for _, n := range sum.Latency {
			values = append(values, n)
		}
		if _, err := insert.ExecContext(ctx, values...); err != nil {
			return err
		}
	}
	return nil
}
