//go:build cgo

package index

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// pages reads all pages of a filter and returns the seqs of their entries.
func pages(t *testing.T, x *Index, f Filter, w Walk) (seqs []uint64) {
	t.Helper()
	for range 10_000 {
		n := 0
		p, err := x.Page(t.Context(), f, w, func(e *Entry) (bool, error) {
			n++
			seqs = append(seqs, e.Seq)
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if f.Limit > 0 && n > f.Limit {
			t.Fatalf("a page of %d entries, the limit is %d", n, f.Limit)
		}
		if !p.More {
			return seqs
		}
		w.Before = p.End
	}
	t.Fatal("the pages have no end")
	return nil
}

// What pages show, whatever their size, is what Each shows.
func TestPagesAreTheWholeListNewestFirst(t *testing.T) {
	log, path := newLog(t)
	for i := range 230 {
		tool := "read_file"
		if i%23 == 0 {
			tool = "rare"
		}
		call(t, log, tool, []string{"alice", "bob", "carol"}[i%3], auditlog.Success)
		if i%50 == 0 {
			begin(t, log, "open_"+tool, "alice")
		}
	}
	x := openIndex(t, path)
	update(t, x, path)
	for name, f := range map[string]Filter{
		"all": {}, "own": {Own: true}, "tool": {Tools: []string{"rare"}}, "glob": {Tools: []string{"r*"}}, "two": {Principals: []string{"alice", "bob"}},
		"who": {Principals: []string{"carol"}, Tools: []string{"rare"}}, "none": {Clients: []string{"nobody"}}, "open": {Tools: []string{"open_rare"}},
		"outcome": {Outcomes: []string{"success"}}, "decision": {Decisions: []string{"allow"}}, "neither": {Outcomes: []string{"denied"}},
		"since": {Since: time.Now().Add(-time.Hour)}, "until": {Until: time.Now().Add(time.Hour)}, "future": {Since: time.Now().Add(2 * time.Hour)},
	} {
		var want []uint64
		newest := f
		newest.Newest = true
		if err := x.Each(t.Context(), newest, func(e *Entry) error { want = append(want, e.Seq); return nil }); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{0, 1, 7, 1000} {
			f.Limit = limit
			if got := pages(t, x, f, Walk{}); !slices.Equal(got, want) {
				t.Errorf("%s by %d: %d entries, want %d", name, limit, len(got), len(want))
			}
		}
		// A walk that stops at once still comes to its end.
		f.Limit = 0
		if got := pages(t, x, f, Walk{Deadline: time.Unix(1, 0)}); !slices.Equal(got, want) {
			t.Errorf("%s, late: %d entries, want %d", name, len(got), len(want))
		}
	}
	e, err := x.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	call(t, log, "new", "alice", auditlog.Success)
	update(t, x, path)
	if got := pages(t, x, Filter{}, Walk{After: e.Newest}); len(got) != 1 {
		t.Errorf("%d entries behind the mark", len(got))
	}
	if _, err := x.Page(t.Context(), Filter{}, Walk{Before: Mark{99, 1}}, nil); !errors.Is(err, ErrMark) {
		t.Errorf("a mark of nowhere: %v", err)
	}
	for _, text := range []string{"", "1", "a.b", "1.-1", "0.5", "1.2.3"} {
		if _, err := ParseMark(text); err == nil {
			t.Errorf("mark %q", text)
		}
	}
}

func TestSumsAreWhatTheRecordsSay(t *testing.T) {
	log, path := newLog(t)
	for range 10 {
		call(t, log, "read_file", "alice", auditlog.Success)
	}
	for range 3 {
		call(t, log, "read_file", "bob", auditlog.ToolError)
	}
	call(t, log, "send", "bob", auditlog.Denied)
	call(t, log, "send", "bob", auditlog.RateLimited)
	begin(t, log, "send", "alice")
	if _, err := log.Event(t.Context(), auditlog.Event{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", ClientID: "desktop"}, Result: auditlog.Denied, Count: 40,
	}); err != nil {
		t.Fatal(err)
	}
	x := openIndex(t, path)
	update(t, x, path)
	sums := func(r Range) map[string]Sum {
		t.Helper()
		list, err := x.Sums(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]Sum{}
		for _, v := range list {
			v.Latency = Latency{}
			got[v.Value] = v.Sum
		}
		return got
	}
	for name, c := range map[string]struct {
		r    Range
		want map[string]Sum
	}{
		"all":  {Range{}, map[string]Sum{"": {Calls: 55, Errors: 3, Denied: 41, Limited: 1}}},
		"tool": {Range{Dimension: ByTool}, map[string]Sum{"read_file": {Calls: 13, Errors: 3}, "send": {Calls: 2, Denied: 1, Limited: 1}}},
		"who":  {Range{Dimension: ByPrincipal, Values: []string{"bob"}}, map[string]Sum{"bob": {Calls: 5, Errors: 3, Denied: 1, Limited: 1}}},
		"most": {Range{Dimension: ByTool, Most: 1}, map[string]Sum{"read_file": {Calls: 13, Errors: 3}}},
		"past": {Range{To: time.Now().Add(-48 * time.Hour)}, map[string]Sum{}},
		"step": {Range{Step: 24 * 365 * 100}, map[string]Sum{"": {Calls: 55, Errors: 3, Denied: 41, Limited: 1}}},
	} {
		if got := sums(c.r); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// A day that begins within an hour counts what is behind its beginning.
	for ago, want := range map[time.Duration]int64{59 * time.Minute: 55, 25*time.Hour + 13*time.Minute: 55, -time.Minute: 0} {
		if sum, err := x.Calls(t.Context(), time.Now().Add(-ago)); err != nil || sum.Calls != want && want == 0 {
			t.Errorf("%v ago: %+v %v", ago, sum, err)
		}
	}
	// What is forgotten is not counted any more.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Update(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if got := sums(Range{}); len(got) != 0 {
		t.Errorf("of a log that is gone: %v", got)
	}
}

func TestQuantilesAreWithinTheirClass(t *testing.T) {
	var l Latency
	if l.Quantile(0.5) != -1 {
		t.Error("of nothing")
	}
	for ms := range int64(100) {
		l.count(ms)
	}
	for q, want := range map[float64][2]int64{0.5: {45, 55}, 0.95: {90, 100}, 0.99: {95, 100}, 0: {0, 1}} {
		if got := l.Quantile(q).Milliseconds(); got < want[0] || got > want[1] {
			t.Errorf("%v: %d ms", q, got)
		}
	}
	l.count(1 << 40)
	if got := l.Quantile(1); got != 60*time.Second {
		t.Errorf("beyond the last class: %v", got)
	}
}

func TestRecordsAreFoundByNumberAndNeighbours(t *testing.T) {
	log, path := newLog(t)
	for range 40 {
		call(t, log, "read_file", "alice", auditlog.Success)
	}
	x := openIndex(t, path)
	update(t, x, path)
	e, err := x.Extent(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(e.Records) {
		f, err := x.Seq(t.Context(), seq)
		if err != nil || f == nil || f.Seq != seq {
			t.Fatalf("record %d: %+v %v", seq, f, err)
		}
		before, err := x.Before(t.Context(), f.Mark, 1)
		if err != nil || (seq > 0) != (len(before) == 1) || seq > 0 && before[0].Seq != seq-1 {
			t.Errorf("before %d: %+v %v", seq, before, err)
		}
		after, err := x.After(t.Context(), f.Mark, 1)
		if err != nil || len(after) == 1 && after[0].Seq != seq+1 || len(after) == 0 && int64(seq) != e.Records-1 {
			t.Errorf("after %d: %+v %v", seq, after, err)
		}
	}
	if f, err := x.Seq(t.Context(), uint64(e.Records)); f != nil || err != nil {
		t.Errorf("a record beyond the end: %+v %v", f, err)
	}
	op := entries(t, x, Filter{Limit: 1})[0]
	if found, err := x.Operation(t.Context(), op.Operation); err != nil || len(found) != 2 || found[1].Seq != op.Seq {
		t.Errorf("%+v %v", found, err)
	}
}

// Between two updates a file that did not change is not opened.
func TestFilesThatDidNotChangeAreNotOpened(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	x := openIndex(t, path)
	update(t, x, path)
	if _, ok := x.asBefore(path); !ok {
		t.Error("it is opened again")
	}
	call(t, log, "read_file", "alice", auditlog.Success)
	if _, ok := x.asBefore(path); ok {
		t.Error("it grew, and is not opened")
	}
	if report := update(t, x, path); report.Added != 2 {
		t.Errorf("%+v", report)
	}
	moved := path + ".moved"
	move(t, path, moved)
	if report := update(t, x, moved); report.Added != 0 || report.Records != 6 {
		t.Errorf("moved: %+v", report)
	}
	if report := update(t, x, moved); report.Added != 0 || report.Records != 6 {
		t.Errorf("again: %+v", report)
	}
}

// What another process makes of the index meanwhile is no reason to forget a
// file that did not change.
func TestTwoProcessesMayUpdateDifferentFiles(t *testing.T) {
	log, path := newLog(t)
	call(t, log, "read_file", "alice", auditlog.Success)
	other, second := newLog(t)
	call(t, other, "send", "bob", auditlog.Success)
	one, two := openIndex(t, path), openIndex(t, path)
	update(t, one, path, second)
	if report := update(t, two, second); report.Records != 4 {
		t.Errorf("%+v", report)
	}
	for range 2 {
		if report := update(t, one, path, second); report.Records != 8 {
			t.Errorf("%+v", report)
		}
	}
	update(t, two, path)
	update(t, two, path, second)
	if report := update(t, one, path, second); report.Records != 8 || len(entries(t, one, Filter{})) != 2 {
		t.Errorf("%+v", report)
	}
}
