package auditlog_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// rotating is a setup whose log is rotated.
func rotating(r auditlog.Rotation) setup {
	return setup{change: func(c *auditlog.Config) { c.Rotation = r }}
}

// archives lists the closed segments of a log, oldest first.
func archives(t testing.TB, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + ".[0-9]*.*Z*")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, _, _, _, ok := auditlog.SplitArchiveName(filepath.Base(name))
		return !ok
	})
	slices.Sort(names)
	return slices.CompactFunc(names, func(next, before string) bool { return before+".gz" == next })
}

// plain reads a file of a log, decompressing a compressed segment. One that was
// listed may have been compressed since.
func plain(t testing.TB, name string) []byte {
	t.Helper()
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		name += ".gz"
	}
	data := read(t, name)
	if !strings.HasSuffix(name, ".gz") {
		return data
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err == nil {
		data, err = io.ReadAll(z)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return data
}

// files are all files of a log, oldest first.
func files(t testing.TB, path string) []string { return append(archives(t, path), path) }

// allKinds lists the kinds of all records of a log, with a bar between files.
func allKinds(t testing.TB, path string) string {
	t.Helper()
	var parts []string
	for _, name := range files(t, path) {
		parts = append(parts, strings.Join(kinds(t, name), " "))
	}
	return strings.Join(parts, " | ")
}

// verifyAll verifies all files of a log with its keys and its manifest, and
// fails the test at a finding that is not among the allowed ones.
func verifyAll(t testing.TB, path string, allowed ...string) *auditlog.Report {
	t.Helper()
	var sources []auditlog.Source
	for _, name := range files(t, path) {
		sources = append(sources, auditlog.Source{Name: name, Open: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(plain(t, name))), nil
		}})
	}
	opts := auditlog.VerifyOptions{Strict: true, Secret: []byte(testSecret)}
	if text, err := os.ReadFile(filepath.Join(filepath.Dir(path), "manifest.json")); err == nil {
		opts.Manifest = text
	}
	report, err := auditlog.Verify(t.Context(), sources, opts)
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	for _, f := range report.Findings {
		if !slices.Contains(allowed, f.Kind) {
			t.Errorf("verify: %+v", f)
		}
	}
	return report
}

// checkAll is check for a log of several files.
func checkAll(t testing.TB, path string) []parsed {
	t.Helper()
	verifyAll(t, path, "outcome_unknown", "gap")
	var list []parsed
	for _, name := range files(t, path) {
		list = append(list, records(t, name)...)
	}
	for i, r := range list {
		if r.seal.Seq != uint64(i) {
			t.Fatalf("record %d has seq %d", i, r.seal.Seq)
		}
	}
	return list
}

// clock is a time that a test moves.
type clock struct{ ns atomic.Int64 }

func newClock(at time.Time) *clock {
	c := new(clock)
	c.ns.Store(at.UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.ns.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func TestALogIsRotatedBySize(t *testing.T) {
	path := quickPath(t)
	s := rotating(auditlog.Rotation{Size: 6 << 10})
	l := s.open(t, path)
	for range 20 {
		call(t, l)
	}
	closed := len(archives(t, path))
	if closed < 3 || l.Status().Segment != uint64(closed) {
		t.Fatalf("%d closed segments, status %+v", closed, l.Status())
	}
	closeLog(t, l)
	list := checkAll(t, path)
	if open := openIntents(list); len(open) > 0 || count(list, "genesis") != 1 {
		t.Errorf("open %v: %s", open, allKinds(t, path))
	}
	for i, name := range archives(t, path) {
		k := kinds(t, name)
		if got := strings.Join(k[len(k)-3:], " "); got != "epoch_end checkpoint segment_end" || i > 0 && k[0] != "segment_start" {
			t.Errorf("%s: %v", name, k)
		}
		log, n, _, _, ok := auditlog.SplitArchiveName(filepath.Base(name))
		if !ok || log != "audit.jsonl" || n != uint64(i) {
			t.Errorf("the archive %d is called %s", i, name)
		}
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o600 || info.Size() > 16<<10 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	l = s.open(t, path)
	for range 20 {
		call(t, l)
	}
	closeLog(t, l)
	checkAll(t, path)
	if len(archives(t, path)) <= closed {
		t.Error("the log was not rotated after a restart")
	}
	// A writer without rotation goes on in the same log.
	l = setup{}.open(t, path)
	call(t, l)
	closeLog(t, l)
	checkAll(t, path)
}

func TestALogIsRotatedByHourAndDay(t *testing.T) {
	for period, step := range map[auditlog.Period]time.Duration{auditlog.Hourly: time.Hour, auditlog.Daily: 24 * time.Hour} {
		t.Run(period.String(), func(t *testing.T) {
			path := quickPath(t)
			c := newClock(time.Date(2026, 5, 25, 23, 59, 59, 0, time.UTC))
			s := setup{change: func(cfg *auditlog.Config) { cfg.Rotation.Every, cfg.Now = period, c.now }}
			l := s.open(t, path)
			call(t, l)
			c.advance(2 * time.Second)
			call(t, l)
			if n := len(archives(t, path)); n != 1 {
				t.Fatalf("%d closed segments after midnight", n)
			}
			c.advance(time.Minute)
			call(t, l)
			if n := len(archives(t, path)); n != 1 {
				t.Fatalf("%d closed segments a minute later", n)
			}
			c.advance(step)
			call(t, l)
			if n := len(archives(t, path)); n != 2 {
				t.Fatalf("%d closed segments after the next period", n)
			}
			closeLog(t, l)
			c.advance(step)
			// A log that was closed over the end of a period is rotated when it
			// is opened, whoever opens it.
			l = s.open(t, path)
			closeLog(t, l)
			if n := len(archives(t, path)); n != 3 {
				t.Fatalf("%d closed segments after a restart", n)
			}
			checkAll(t, path)
			if base := filepath.Base(archives(t, path)[0]); base != "audit.jsonl.000000.20260526T000001Z" {
				t.Errorf("the first archive is called %s", base)
			}
		})
	}
}

func TestAnIdleLogIsRotatedOnceAndThenLeftAlone(t *testing.T) {
	path := quickPath(t)
	c := newClock(time.Date(2026, 5, 25, 23, 59, 59, 900e6, time.UTC))
	l := setup{change: func(cfg *auditlog.Config) { cfg.Rotation.Every, cfg.Now = auditlog.Hourly, c.now }}.open(t, path)
	call(t, l)
	c.advance(200 * time.Millisecond)
	eventually(t, "the hour's segment is closed", func() bool { return l.Status().Segment == 1 })
	c.advance(3 * time.Hour)
	if _, err := l.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := len(archives(t, path)); n != 1 {
		t.Errorf("%d segments of an idle log", n)
	}
	closeLog(t, l)
	checkAll(t, path)
}

func TestAnOpenIntentIsClosedAcrossSegments(t *testing.T) {
	path := quickPath(t)
	s := rotating(auditlog.Rotation{Size: 4 << 10})
	l := s.open(t, path)
	op, err := l.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(context.Background(), anIntent()); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		call(t, l)
	}
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Fatal(err)
	}
	if len(archives(t, path)) < 3 {
		t.Fatal("the log was not rotated")
	}
	to := copyLog(t, path)
	closeLog(t, l)
	// The process is gone; the intent lies in a closed segment.
	closeLog(t, s.open(t, to))
	list := checkAll(t, to)
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
	unknown := 0
	for _, r := range list {
		if r.body["outcome"] == "unknown" && r.body["client_id"] == "desktop" {
			unknown++
		}
	}
	if unknown != 1 {
		t.Errorf("%d outcomes are unknown", unknown)
	}
}

// copyLog copies a log's folder as it is now, as a crash would leave it,
// except that no process is alive.
func copyLog(t testing.TB, path string) string {
	t.Helper()
	to := quickPath(t)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasSuffix(e.Name(), ".lock") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the manifest was just put in its place
		}
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(filepath.Dir(to), e.Name()), data)
	}
	if err := os.Mkdir(to+".runs", 0o700); err != nil {
		t.Fatal(err)
	}
	return to
}
