package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
)

// statsAnswer has the figures of the reference system, and more.
type statsAnswer struct {
	TotalToday int64   `json:"total_today"` // calls, by the local day
	ErrorRate  float64 `json:"error_rate"`  // share of all retained calls that did not succeed
	TopTools   []named `json:"top_tools"`   // over all retained records

	Total       int64     `json:"total"`
	Errors      int64     `json:"errors"`
	Denied      int64     `json:"denied"`
	RateLimited int64     `json:"rate_limited"`
	ErrorsToday int64     `json:"errors_today"`
	DeniedToday int64     `json:"denied_today"`
	Day         time.Time `json:"day"` // when today began
	From        time.Time `json:"from,omitzero"`
	To          time.Time `json:"to,omitzero"`
	Records     int64     `json:"records"` // in the index
	P50         *float64  `json:"p50_ms,omitempty"`
	P95         *float64  `json:"p95_ms,omitempty"`
	P99         *float64  `json:"p99_ms,omitempty"`
	Behind      bool      `json:"behind,omitempty"`
}

type named struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

const topTools = 10

// sumCache keeps answers for a moment, so that several readers cost what one
// does.
type sumCache struct {
	mu   sync.Mutex
	kept map[string]cachedSum
}

type cachedSum struct {
	at time.Time
	v  any
}

const (
	cacheTime  = time.Second
	mostCached = 64
)

func (c *sumCache) get(key string, compute func() (any, error)) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.kept[key]; ok && time.Since(kept.at) < cacheTime {
		return kept.v, nil
	}
	v, err := compute()
	if err != nil {
		return nil, err
	}
	if c.kept == nil || len(c.kept) >= mostCached {
		c.kept = make(map[string]cachedSum)
	}
	c.kept[key] = cachedSum{time.Now(), v}
	return v, nil
}

func (h *Handler) serveStats(w http.ResponseWriter, r *http.Request) error {
	for name := range r.URL.Query() {
		return badRequest("there is no parameter %q", name)
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	v, err := h.sums.get("", func() (any, error) { return h.stats(r.Context(), x, time.Now()) })
	if err != nil {
		return err
	}
	a := *v.(*statsAnswer)
	a.Behind, _, _ = h.follower.state()
	return answer(w, &a)
}

func (h *Handler) stats(ctx context.Context, x *index.Index, now time.Time) (*statsAnswer, error) {
	local := now.In(h.o.Day)
	a := &statsAnswer{TopTools: []named{}, Day: time.Date(local.Year(), local.Month(), local.Day(), 0, 0, 0, 0, h.o.Day)}
	extent, err := x.Extent(ctx)
	if err != nil {
		return nil, err
	}
	a.Records = extent.Records
	if extent.Records > 0 {
		a.From, a.To = extent.First, extent.Last.Add(time.Hour)
	}
	today, err := x.Calls(ctx, a.Day)
	if err != nil {
		return nil, err
	}
	a.TotalToday, a.ErrorsToday, a.DeniedToday = today.Calls, today.Errors, today.Denied
	all, err := x.Sums(ctx, index.Range{Dimension: index.All})
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		a.Total, a.Errors, a.Denied, a.RateLimited = v.Calls, v.Errors, v.Denied, v.Limited
		a.ErrorRate = float64(v.Errors+v.Denied+v.Limited) / float64(v.Calls)
		a.P50, a.P95, a.P99 = quantile(&v.Latency, 0.5), quantile(&v.Latency, 0.95), quantile(&v.Latency, 0.99)
	}
	tools, err := x.Sums(ctx, index.Range{Dimension: index.ByTool, Most: topTools})
	if err != nil {
		return nil, err
	}
	for _, v := range tools {
		a.TopTools = append(a.TopTools, named{v.Value, v.Calls})
	}
	return a, nil
}

// quantile is in milliseconds; nil: nothing was timed.
func quantile(l *index.Latency, q float64) *float64 {
	d := l.Quantile(q)
	if d < 0 {
		return nil
	}
	ms := float64(d) / float64(time.Millisecond)
	return &ms
}

// seriesAnswer is what a chart shows: sums by step of time, for the values of a
// dimension that have the most calls.
type seriesAnswer struct {
	By    string    `json:"by"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Step  int64     `json:"step_s"`
	Times []int64   `json:"times"` // beginnings of the steps, in seconds since 1970
	// Series has one for each value; that of a dimension "all" has no name.
	Series []series `json:"series"`
	// Others is the number of values that are not shown.
	Others bool `json:"others"`
}

type series struct {
	Name    string     `json:"name"`
	Calls   []int64    `json:"calls"`
	Errors  []int64    `json:"errors"`
	Denied  []int64    `json:"denied"` // also those refused by a rate limit
	P50     []*float64 `json:"p50_ms"`
	P95     []*float64 `json:"p95_ms"`
	P99     []*float64 `json:"p99_ms"`
	Total   int64      `json:"total"`
	Failed  int64      `json:"total_errors"`
	Refused int64      `json:"total_denied"`
	AllP50  *float64   `json:"all_p50_ms"`
	AllP95  *float64   `json:"all_p95_ms"`
	AllP99  *float64   `json:"all_p99_ms"`
}

var dimensions = map[string]index.Dimension{
	"all": index.All, "tool": index.ByTool, "server": index.ByServer, "principal": index.ByPrincipal, "client": index.ByClient, "method": index.ByMethod,
}

const (
	mostSeries = 8
	mostSteps  = 400
)

func (h *Handler) serveSeries(w http.ResponseWriter, r *http.Request) error {
	values := r.URL.Query()
	by, from, to, err := parseSeries(values, time.Now())
	if err != nil {
		return err
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	v, err := h.sums.get(values.Encode(), func() (any, error) { return h.series(r.Context(), x, by, from, to) })
	if err != nil {
		return err
	}
	return answer(w, v)
}

func parseSeries(values url.Values, now time.Time) (by string, from, to time.Time, err error) {
	by, to = "all", now.UTC().Truncate(time.Hour).Add(time.Hour)
	from = to.Add(-24 * time.Hour)
	for name, list := range values {
		switch v := list[0]; {
		case v == "":
		case name == "by":
			if _, ok := dimensions[v]; !ok {
				return by, from, to, badRequest("by is all, tool, server, principal, client or method, not %q", v)
			}
			by = v
		case name == "from":
			if from, err = moment(name, v); err != nil {
				return by, from, to, err
			}
		case name == "to":
			if to, err = moment(name, v); err != nil {
				return by, from, to, err
			}
		case name == "hours":
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > 24*366*10 {
				return by, from, to, badRequest("hours is a number from 1 to 87840, not %q", v)
			}
			from = to.Add(-time.Duration(n) * time.Hour)
		default:
			return by, from, to, badRequest("there is no parameter %q", name)
		}
	}
	from, to = from.Truncate(time.Hour), to.Add(time.Hour-1).Truncate(time.Hour)
	if !from.Before(to) {
		return by, from, to, badRequest("from is not before to")
	}
	return by, from, to, nil
}

func (h *Handler) series(ctx context.Context, x *index.Index, by string, from, to time.Time) (*seriesAnswer, error) {
	step := int64(1)
	for _, step = range []int64{1, 3, 6, 12, 24, 24 * 7, 24 * 30, 24 * 365} {
		if int64(to.Sub(from)/time.Hour)/step <= mostSteps {
			break
		}
	}
	from = time.Unix(from.Unix()/(step*3600)*step*3600, 0).UTC()
	a := &seriesAnswer{By: by, From: from, To: to, Step: step * 3600, Times: []int64{}, Series: []series{}}
	at := make(map[int64]int)
	for t := from.Unix(); t < to.Unix(); t += a.Step {
		at[t] = len(a.Times)
		a.Times = append(a.Times, t)
	}
	top, err := x.Sums(ctx, index.Range{Dimension: dimensions[by], From: from, To: to, Most: mostSeries + 1})
	if err != nil {
		return nil, err
	}
	if a.Others = len(top) > mostSeries; a.Others {
		top = top[:mostSeries]
	}
	names := make([]string, 0, len(top))
	n := len(a.Times)
	for _, v := range top {
		names = append(names, v.Value)
		a.Series = append(a.Series, series{
			Name: v.Value, Calls: make([]int64, n), Errors: make([]int64, n), Denied: make([]int64, n),
			P50: make([]*float64, n), P95: make([]*float64, n), P99: make([]*float64, n),
			Total: v.Calls, Failed: v.Errors, Refused: v.Denied + v.Limited,
			AllP50: quantile(&v.Latency, 0.5), AllP95: quantile(&v.Latency, 0.95), AllP99: quantile(&v.Latency, 0.99),
		})
	}
	if len(names) == 0 {
		return a, nil
	}
	steps, err := x.Sums(ctx, index.Range{Dimension: dimensions[by], From: from, To: to, Step: step, Values: names})
	if err != nil {
		return nil, err
	}
	for _, v := range steps {
		i, ok := at[v.At.Unix()]
		j := slices.Index(names, v.Value)
		if !ok || j < 0 {
			continue
		}
		s := &a.Series[j]
		s.Calls[i], s.Errors[i], s.Denied[i] = v.Calls, v.Errors, v.Denied+v.Limited
		s.P50[i], s.P95[i], s.P99[i] = quantile(&v.Latency, 0.5), quantile(&v.Latency, 0.95), quantile(&v.Latency, 0.99)
	}
	return a, nil
}
