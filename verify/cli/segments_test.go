package cli

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// rotate makes a log close its file after so many bytes.
func rotate(t *testing.T, log *auditlog.Log, r auditlog.Rotation) {
	t.Helper()
	if err := log.SetRotation(r); err != nil {
		t.Fatal(err)
	}
}

// segmented makes a log of several closed segments.
func segmented(t *testing.T, r auditlog.Rotation, calls int) (dir, path string) {
	t.Helper()
	clean(t)
	dir = t.TempDir()
	path = filepath.Join(dir, logName)
	log := openLog(t, path)
	rotate(t, log, r)
	for i := range calls {
		call(t, log, fmt.Sprintf("tool-%d", i), auditlog.Success, "")
	}
	// Segments are deleted in the background, once their leaves are kept.
	for deadline := time.Now().Add(10 * time.Second); r.KeepFiles > 0 && len(closedSegments(t, path)) > r.KeepFiles; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the surplus segments are never deleted")
		}
	}
	closeLog(t, log)
	return dir, path
}

// findingsOf lists the kinds that a report has.
func findingsOf(r auditlog.Report) string {
	var kinds []string
	for _, f := range r.Findings {
		kinds = append(kinds, f.Kind)
	}
	return strings.Join(kinds, " ")
}

func closedSegments(t *testing.T, path string) []string {
	t.Helper()
	names, err := segmentsOf(path)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestALogOfSegmentsVerifiesAsOne(t *testing.T) {
	dir, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 20)
	names := closedSegments(t, path)
	if len(names) < 4 {
		t.Fatalf("segments %v", names)
	}
	for _, arg := range []string{dir, path} {
		if r := verified(t, arg); r.Exit != 0 || len(r.Findings) > 0 || r.Kinds["segment_start"] != len(names) {
			t.Errorf("verify %s: %+v", arg, r)
		}
	}
	if r := verified(t, names...); r.Exit != 0 || strings.Trim(findingsOf(r), "outcome_missing ") != "" {
		t.Errorf("the closed segments alone: %+v", r)
	}
	if r := verified(t, append([]string{"--closed"}, names...)...); r.Exit != 0 {
		t.Errorf("--closed: %+v", r)
	}
	if r := verified(t, names[2]); r.Exit != 3 || !strings.HasPrefix(findingsOf(r), "partial_history") || strings.Contains(findingsOf(r), "segment") {
		t.Errorf("one segment: %+v", r)
	}
	if out, stderr, code := command(t, "show", "3", path); code != 0 || !strings.Contains(out, "tool-0") {
		t.Errorf("show of a record in a closed segment: exit %d %s %s", code, out, stderr)
	}
	whole, _, _ := command(t, "pubkey", names[0])
	if vkey, stderr, code := command(t, "pubkey", path); code != 0 || vkey != whole {
		t.Errorf("pubkey: exit %d %s %s, want %s", code, vkey, stderr, whole)
	}
	out, _, _ := command(t, "tail", "-n", "15", path)
	if strings.Count(out, "\n") != 15 || !strings.Contains(out, "tool-5 ") || !strings.HasPrefix(strings.Split(out, "\n")[14], "20") {
		t.Errorf("tail over segments: %s", out)
	}
}

func TestWhatIsDoneToClosedSegmentsIsFound(t *testing.T) {
	rename := func(from, to string) func(*testing.T) {
		return func(t *testing.T) {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	edit := func(t *testing.T, name string, f func([]byte) []byte) {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, name, f(data))
	}
	rows := []struct {
		row, name string
		do        func(t *testing.T, dir string, names []string)
		args      []string
		want      []string
		exit      int
	}{
		{row: "22", name: "end of a closed segment cut", do: func(t *testing.T, _ string, names []string) {
			edit(t, names[1], func(b []byte) []byte { return cutLinesOf(b, 3) })
		}, want: []string{"seq_gap", "segment_boundary"}, exit: 1},
		{row: "27", name: "first segment deleted", do: func(t *testing.T, _ string, names []string) { remove(t, names[0]) },
			want: []string{"segment_missing"}, exit: 1},
		{row: "28", name: "last closed segment deleted", do: func(t *testing.T, _ string, names []string) { remove(t, names[len(names)-1]) },
			want: []string{"segment_missing"}, exit: 1},
		{row: "28", name: "log deleted, its last segment too", do: func(t *testing.T, dir string, names []string) {
			remove(t, names[len(names)-1])
			remove(t, filepath.Join(dir, logName))
		}, want: []string{"segment_missing"}, exit: 1},
		{row: "30", name: "names exchanged", do: func(t *testing.T, _ string, names []string) {
			rename(names[1], names[1]+".x")(t)
			rename(names[2], names[1])(t)
			rename(names[1]+".x", names[2])(t)
		}, want: []string{"segment_gap", "seq_gap", "segment_boundary"}, exit: 1},
		{row: "34", name: "a segment twice", do: func(t *testing.T, dir string, names []string) {
			data, err := os.ReadFile(names[1])
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "audit.jsonl.000001.20990101T000000Z"), data)
		}, want: []string{"duplicate_record"}, exit: 1},
		{row: "35a", name: "an entry taken out of the manifest", do: func(t *testing.T, dir string, _ []string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(b []byte) []byte {
				m, err := auditlog.ParseManifest(b)
				if err != nil {
					t.Fatal(err)
				}
				m.Segments = append(m.Segments[:1], m.Segments[2:]...)
				return m.Encode()
			})
		}, want: []string{"manifest_mismatch"}, exit: 1},
		{row: "35a", name: "the last entry taken out", do: func(t *testing.T, dir string, _ []string) {
			edit(t, filepath.Join(dir, "manifest.json"), func(b []byte) []byte {
				m, err := auditlog.ParseManifest(b)
				if err != nil {
					t.Fatal(err)
				}
				m.Segments = m.Segments[:len(m.Segments)-1]
				return m.Encode()
			})
		}, want: []string{"manifest_mismatch"}, exit: 1},
		{row: "", name: "the manifest damaged", do: func(t *testing.T, dir string, _ []string) {
			write(t, filepath.Join(dir, "manifest.json"), []byte("{}\n"))
		}, want: []string{"manifest_mismatch"}, exit: 1},
		{row: "35b", name: "a segment renumbered", do: func(t *testing.T, _ string, names []string) {
			rename(names[1], strings.Replace(names[1], ".000001.", ".000009.", 1))(t)
		}, want: []string{"segment_missing"}, exit: 1},
		{row: "", name: "a closed segment emptied", do: func(t *testing.T, _ string, names []string) { write(t, names[1], nil) },
			want: []string{"empty_segment"}, exit: 1},
		{row: "", name: "a segment in place of a compressed one is no gzip", do: func(t *testing.T, _ string, names []string) {
			rename(names[1], names[1]+".gz")(t)
		}, exit: 2},
	}
	for _, row := range rows {
		t.Run(row.row+" "+row.name, func(t *testing.T) {
			dir, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 16)
			row.do(t, dir, closedSegments(t, path))
			out, stderr, code := command(t, append([]string{"verify", dir}, row.args...)...)
			found := len(row.want) == 0
			for _, want := range row.want {
				found = found || strings.Contains(out, want)
			}
			if code != row.exit || !found {
				t.Errorf("exit %d, want %d and %v:\n%s%s", code, row.exit, row.want, out, stderr)
			}
		})
	}
}

func cutLinesOf(b []byte, n int) []byte {
	lines := strings.SplitAfter(string(b), "\n")
	return []byte(strings.Join(lines[:len(lines)-1-n], ""))
}

func remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func TestAManifestThatWasKeptElsewhereFindsDeletedSegments(t *testing.T) {
	dir, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 8)
	kept := filepath.Join(t.TempDir(), "manifest.json")
	data, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, kept, data)
	log := openLog(t, path)
	rotate(t, log, auditlog.Rotation{Size: 4 << 10})
	for range 8 {
		call(t, log, "later", auditlog.Success, "")
	}
	closeLog(t, log)
	if r := verified(t, dir, "--manifest", kept); r.Exit != 0 {
		t.Errorf("an older manifest: %+v", r)
	}
	remove(t, closedSegments(t, path)[0])
	remove(t, filepath.Join(dir, "manifest.json"))
	if r := verified(t, dir); r.Exit != 3 || findingsOf(r) != "partial_history" {
		t.Errorf("without a manifest: %+v", r)
	}
	if r := verified(t, dir, "--manifest", kept); r.Exit != 1 || !strings.Contains(findingsOf(r), "segment_missing") {
		t.Errorf("with the one that was kept: %+v", r)
	}
}

func TestCompressedSegmentsVerifyAndABombIsRefused(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	log := openLog(t, path)
	rotate(t, log, auditlog.Rotation{Size: 4 << 10, Compress: true})
	for i := range 20 {
		call(t, log, fmt.Sprintf("tool-%d", i), auditlog.Success, "")
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		names := closedSegments(t, path)
		n := 0
		for _, name := range names {
			if strings.HasSuffix(name, ".gz") {
				n++
			}
		}
		if len(names) > 3 && n == len(names) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not compressed: %v", names)
		}
		call(t, log, "more", auditlog.Success, "")
		time.Sleep(20 * time.Millisecond)
	}
	closeLog(t, log)
	if r := verified(t, dir); r.Exit != 0 || len(r.Findings) > 0 {
		t.Errorf("verify: %+v", r)
	}
	if out, _, _ := command(t, "tail", "-n", "1000", path); !strings.Contains(out, "tool-0 ") {
		t.Errorf("tail: %s", out)
	}
	if out, _, code := command(t, "show", "3", path); code != 0 || !strings.Contains(out, "tool-0") {
		t.Errorf("show: %s", out)
	}
	names := closedSegments(t, path)

	// Row 70 of the tamper catalogue.
	bomb, err := os.Create(names[1])
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(bomb)
	zeros := make([]byte, 1<<20)
	for range 64 {
		if _, err := z.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := bomb.Close(); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := command(t, "verify", dir)
	if code != 2 || !strings.Contains(stderr, "manifest says") {
		t.Errorf("a bomb: exit %d %s", code, stderr)
	}
	remove(t, filepath.Join(dir, "manifest.json"))
	_, stderr, code = command(t, "verify", dir, "--max-segment", "1MiB")
	if code != 2 || !strings.Contains(stderr, "--max-segment") {
		t.Errorf("a bomb without a manifest: exit %d %s", code, stderr)
	}
	write(t, names[1], []byte("no gzip"))
	if _, stderr, code = command(t, "verify", dir); code != 2 || !strings.Contains(stderr, "no gzip file") {
		t.Errorf("no gzip file: exit %d %s", code, stderr)
	}
}

func TestRetentionIsReportedAsAPartialHistory(t *testing.T) {
	dir, path := segmented(t, auditlog.Rotation{Size: 4 << 10, KeepFiles: 2}, 30)
	names := closedSegments(t, path)
	if len(names) != 2 {
		t.Fatalf("kept %v", names)
	}
	r := verified(t, dir)
	if r.Exit != 3 || findingsOf(r) != "partial_history" || r.Retired == 0 || r.Retired != r.First ||
		!strings.Contains(r.Findings[0].Detail, "deleted by retention, as record") {
		t.Errorf("verify: %+v", r)
	}
	remove(t, names[0])
	if r := verified(t, dir); r.Exit != 1 || !strings.Contains(findingsOf(r), "segment_missing") {
		t.Errorf("a segment that was not retired is gone: %+v", r)
	}
}

func TestALogIsVerifiedWhileItIsRotated(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	log := openLog(t, path)
	rotate(t, log, auditlog.Rotation{Size: 4 << 10, Compress: true})
	call(t, log, "first", auditlog.Success, "")
	quit := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			default:
			}
			op, err := log.Begin(context.Background(), auditlog.Intent{Message: auditlog.Message{
				Direction: auditlog.ClientToServer, Transport: "stdio", Method: "ping", RequestID: "1", RequestIDType: "number"}})
			if err == nil {
				err = op.End(context.Background(), auditlog.Outcome{Result: auditlog.Success})
			}
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	for start := time.Now(); time.Since(start) < 2*time.Second; {
		r := verified(t, dir)
		for _, f := range r.Findings {
			if f.Class != "W" && f.Kind != "torn_tail" {
				t.Errorf("verify beside the writer: %+v", f)
			}
		}
	}
	close(quit)
	writer.Wait()
	closeLog(t, log)
	if r := verified(t, dir); r.Exit != 0 || r.Kinds["segment_start"] < 3 {
		t.Errorf("verify: %+v", r)
	}
}

func TestTailFollowsRotations(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	rotate(t, log, auditlog.Rotation{Size: 4 << 10})
	out, in := io.Pipe()
	root := New()
	root.SetOut(in)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"tail", "-f", path})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	// Several rotations lie between two looks of tail.
	const calls = 60
	for i := range calls {
		call(t, log, fmt.Sprintf("tool-%d", i), auditlog.Success, "")
		if i == 10 {
			time.Sleep(2 * pollInterval)
		}
	}
	lines := bufio.NewScanner(out)
	first := 0
	for i := 0; i < calls; i++ {
		if !lines.Scan() {
			t.Fatal("tail ended")
		}
		if i == 0 {
			if _, err := fmt.Sscanf(lines.Text()[strings.Index(lines.Text(), "tool-"):], "tool-%d", &first); err != nil {
				t.Fatal(err)
			}
			i = first
		}
		if !strings.Contains(lines.Text(), fmt.Sprintf("tool-%d ", i)) {
			t.Fatalf("want call %d, got %q", i, lines.Text())
		}
	}
	closeLog(t, log)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(closedSegments(t, path)); n < 6 {
		t.Errorf("only %d segments", n)
	}
}

func TestKeysAreRotatedBesideAWriter(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	log := openLog(t, path)
	call(t, log, "before", auditlog.Success, "")
	first, _, _ := command(t, "pubkey", path)
	vkey, stderr, code := command(t, "rotate-key", dir)
	if code != 0 || vkey == first || !strings.HasPrefix(vkey, "test/log/i0+") {
		t.Fatalf("rotate-key: exit %d %s %s", code, vkey, stderr)
	}
	call(t, log, "after", auditlog.Success, "")
	closeLog(t, log)
	for _, args := range [][]string{{dir}, {dir, "--pub", strings.TrimSpace(first)}} {
		if r := verified(t, args...); r.Exit != 0 || r.VKey+"\n" != vkey || r.Kinds["key_rotation"] != 1 {
			t.Errorf("verify %v: %+v", args, r)
		}
	}
	if _, stderr, code := command(t, "rotate-key", dir, "--key-id", "k1"); code != 1 || !strings.Contains(stderr, "choose another key id") {
		t.Errorf("rotate-key to an old id: exit %d %s", code, stderr)
	}
	if _, stderr, code := command(t, "rotate-key", filepath.Join(dir, "none.jsonl")); code != 1 || !strings.Contains(stderr, "there is no log") {
		t.Errorf("rotate-key without a log: exit %d %s", code, stderr)
	}
}

func TestVerifyOfThePathLeavesOutWhatWasGivenUp(t *testing.T) {
	dir, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 12)
	whole := read(t, path)
	write(t, path, whole[:len(whole)/2])
	if _, stderr, code := command(t, "recover", path, "--accept-chain-break", "a test did it"); code != 0 {
		t.Fatalf("recover: %d %s", code, stderr)
	}
	log := openLog(t, path)
	rotate(t, log, auditlog.Rotation{Size: 4 << 10})
	for range 12 {
		call(t, log, "after", auditlog.Success, "")
	}
	closeLog(t, log)
	for _, c := range []struct {
		target string
		code   int
	}{{path, 0}, {dir, 1}} {
		stdout, stderr, code := command(t, "verify", c.target)
		if (code == 0) != (c.code == 0) || !strings.Contains(stdout, "chain_break") {
			t.Errorf("verify %s: %d\n%s%s", c.target, code, stdout, stderr)
		}
	}
}
