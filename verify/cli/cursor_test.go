package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

// growing is a log that a test writes to in several runs.
func growing(t *testing.T, path string, r auditlog.Rotation, calls int) {
	t.Helper()
	log := openLog(t, path)
	rotate(t, log, r)
	for i := range calls {
		call(t, log, fmt.Sprintf("tool-%d", i), auditlog.Success, "")
	}
	closeLog(t, log)
}

// needsStore skips a test of a database where the program has none.
func needsStore(t *testing.T, file string) {
	t.Helper()
	if file == databaseName && sqlite.Available() != nil {
		t.Skip("built without cgo")
	}
}

func TestVerifyGoesOnBehindItsCursor(t *testing.T) {
	for name, setup := range map[string]struct {
		file     string
		rotation auditlog.Rotation
	}{
		"lines":      {file: logName},
		"segments":   {file: logName, rotation: auditlog.Rotation{Size: 4 << 10}},
		"compressed": {file: logName, rotation: auditlog.Rotation{Size: 4 << 10, Compress: true}},
		"retention":  {file: logName, rotation: auditlog.Rotation{Size: 4 << 10, KeepFiles: 9}},
		"database":   {file: databaseName},
	} {
		t.Run(name, func(t *testing.T) {
			needsStore(t, setup.file)
			home := clean(t)
			path := filepath.Join(t.TempDir(), setup.file)
			cursor := filepath.Join(t.TempDir(), "audit.cursor")
			seen := uint64(0)
			for round := range 4 {
				growing(t, path, setup.rotation, 10)
				r := verified(t, path, "--cursor", cursor)
				full := verified(t, path)
				if r.Exit != full.Exit || findingsOf(r) != findingsOf(full) || r.Watermarks.Records != full.Watermarks.Records ||
					r.Watermarks.Checkpointed != full.Watermarks.Checkpointed || r.First != full.First || r.MAC != full.MAC {
					t.Fatalf("round %d: %+v\nin full %+v", round, r, full)
				}
				if round == 0 {
					if r.Resumed != nil || r.CursorUnused != "" {
						t.Errorf("the first run: %+v %q", r.Resumed, r.CursorUnused)
					}
				} else if r.Resumed == nil || r.Resumed.Records != seen || r.Records != r.Watermarks.Records-seen {
					t.Errorf("round %d: %+v, %d records of %d, %q", round, r.Resumed, r.Records, r.Watermarks.Records, r.CursorUnused)
				}
				seen = r.Watermarks.Records
			}
			if info, err := os.Stat(filepath.Join(home, ".config", "mcp-audit", "cursor.key")); err != nil || info.Mode() != 0o600 {
				t.Errorf("the key of cursors: %v %v", info, err)
			}
			if info, err := os.Stat(cursor); err != nil || info.Mode() != 0o600 {
				t.Errorf("the cursor: %v %v", info, err)
			}
			// Nothing new: nothing is read, and all is said as before.
			r := verified(t, path, "--since", cursor)
			if r.Resumed == nil || r.Records != 0 || r.Watermarks.Records != seen || r.MAC != "checked" {
				t.Errorf("nothing new: %+v", r)
			}
			stdout, _, _ := command(t, "verify", path, "--cursor", cursor)
			if !strings.Contains(stdout, fmt.Sprintf("resumed: behind record %d", seen-1)) || !strings.Contains(stdout, "did not read it again") {
				t.Error(stdout)
			}
		})
	}
}

func TestACursorFindsALogThatWasCutReplacedOrEdited(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	cursor := filepath.Join(t.TempDir(), "audit.cursor")
	growing(t, path, auditlog.Rotation{}, 20)
	if r := verified(t, path, "--cursor", cursor); r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	before, err := os.ReadFile(cursor)
	if err != nil {
		t.Fatal(err)
	}
	growing(t, path, auditlog.Rotation{}, 5)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(whole, []byte("\n"))
	changed := func(i int) []byte {
		out := bytes.Replace(whole, lines[i], bytes.Replace(lines[i], []byte("desktop"), []byte("toaster"), 1), 1)
		if bytes.Equal(out, whole) {
			out = bytes.Replace(whole, lines[i], bytes.Replace(lines[i], []byte("tool-"), []byte("fool-"), 1), 1)
		}
		if bytes.Equal(out, whole) {
			t.Fatalf("line %d was not changed: %s", i, lines[i])
		}
		return out
	}
	for name, c := range map[string]struct {
		log  []byte
		exit int
		want string
	}{
		"cut below the cursor":    {bytes.Join(lines[:20], nil), 4, "tail_truncated"},
		"edited behind":           {changed(len(lines) - 5), 1, "content_modified"},
		"edited before":           {changed(5), 0, ""},
		"another log's beginning": {append(bytes.Clone(lines[1]), whole...), 1, "genesis_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			write(t, path, c.log)
			write(t, cursor, before)
			r := verified(t, path, "--cursor", cursor)
			if r.Exit != c.exit || !strings.Contains(findingsOf(r), c.want) {
				t.Errorf("exit %d %s, unused %q", r.Exit, findingsOf(r), r.CursorUnused)
			}
			now, err := os.ReadFile(cursor)
			if err != nil {
				t.Fatal(err)
			}
			if c.exit != 0 && !bytes.Equal(now, before) {
				t.Error("the cursor was moved over a fault")
			}
		})
	}
	// What was edited before the cursor is found in full.
	write(t, path, changed(5))
	if r := verified(t, path); r.Exit != 1 || !strings.Contains(findingsOf(r), "content_modified") {
		t.Errorf("in full: %d %s", r.Exit, findingsOf(r))
	}
}

func TestAnErasureBeforeACursorIsSaidBehindIt(t *testing.T) {
	for name, rotation := range map[string]auditlog.Rotation{logName: {}, "segments": {Size: 4 << 10}, databaseName: {}} {
		t.Run(name, func(t *testing.T) {
			needsStore(t, name)
			clean(t)
			file := name
			if name == "segments" {
				file = logName
			}
			path := filepath.Join(t.TempDir(), file)
			cursor := filepath.Join(t.TempDir(), "audit.cursor")
			growing(t, path, rotation, 10)
			if r := verified(t, path, "--cursor", cursor); r.Exit != 0 {
				t.Fatalf("%+v", r)
			}
			if _, stderr, code := command(t, "erase", path, "--seq", "3", "--whole", "--reason", "request 7", "--authorised-by", "privacy officer"); code != 0 {
				t.Fatal(stderr)
			}
			growing(t, path, rotation, 5)
			full := verified(t, path)
			for _, args := range [][]string{{"--since", cursor}, {"--since", cursor, "--max-erasures", "0"}} {
				r := verified(t, append([]string{path}, args...)...)
				limited := len(args) > 2
				if r.Resumed == nil || !limited && (r.Exit != 0 || findingsOf(r) != findingsOf(full)) || limited && r.Exit != 1 {
					t.Errorf("%v: exit %d %s, resumed %+v %q; in full %s", args, r.Exit, findingsOf(r), r.Resumed, r.CursorUnused, findingsOf(full))
				}
			}
			if r := verified(t, path, "--cursor", cursor); r.Exit != 0 {
				t.Errorf("%+v", r)
			}
			if r := verified(t, path, "--since", cursor, "--max-erasures", "0"); r.Resumed == nil || r.Exit != 1 {
				t.Errorf("erasures are forgotten: %+v", r)
			}
		})
	}
}

func TestACursorThatCannotBeUsedIsSaid(t *testing.T) {
	home := clean(t)
	path := filepath.Join(t.TempDir(), logName)
	cursor := filepath.Join(t.TempDir(), "audit.cursor")
	growing(t, path, auditlog.Rotation{}, 5)
	verified(t, path, "--cursor", cursor)
	good, err := os.ReadFile(cursor)
	if err != nil {
		t.Fatal(err)
	}
	write(t, cursor, bytes.Replace(good, []byte(`"records":`), []byte(`"records":1`), 1))
	if _, stderr, code := command(t, "verify", path, "--since", cursor); code != 2 || !strings.Contains(stderr, "it was changed, or made with another key") {
		t.Errorf("--since: %d %s", code, stderr)
	}
	r := verified(t, path, "--cursor", cursor)
	if r.Exit != 0 || r.Resumed != nil || !strings.Contains(r.CursorUnused, "it was changed") {
		t.Errorf("--cursor: %+v", r)
	}
	if r := verified(t, path, "--cursor", cursor); r.Resumed == nil {
		t.Errorf("the cursor was not made anew: %q", r.CursorUnused)
	}
	if r := verified(t, path, "--cursor", cursor, "--strict"); r.Resumed != nil || !strings.Contains(r.CursorUnused, "--strict") {
		t.Errorf("--strict: %+v", r)
	}
	key := filepath.Join(home, ".config", "mcp-audit", "cursor.key")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := command(t, "verify", path, "--since", cursor); code != 2 || !strings.Contains(stderr, "chmod 600") {
		t.Errorf("a key that others can read: %d %s", code, stderr)
	}
	for _, args := range [][]string{
		{"--since", "tomorrow"}, {"--since", "99999999999999999999"},
	} {
		if _, stderr, code := command(t, append([]string{"verify", path}, args...)...); code != 2 || !strings.Contains(stderr, "--since") {
			t.Errorf("%v: %d %s", args, code, stderr)
		}
	}
	growing(t, filepath.Join(filepath.Dir(path), "other.jsonl"), auditlog.Rotation{}, 1)
	if _, stderr, code := command(t, "verify", filepath.Dir(path), "--cursor", cursor); code != 2 || !strings.Contains(stderr, "path of one") {
		t.Errorf("two logs: %d %s", code, stderr)
	}
}

func TestSinceBeginsWithTheFileThatHasThePoint(t *testing.T) {
	_, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 20)
	names := closedSegments(t, path)
	if len(names) < 4 {
		t.Fatal(names)
	}
	first, err := firstRecord(names[3])
	if err != nil {
		t.Fatal(err)
	}
	seq := first.Line.Seal.Seq
	full := verified(t, path)
	for _, since := range []string{strconv.FormatUint(seq, 10), strconv.FormatUint(seq+1, 10)} {
		r := verified(t, path, "--since", since)
		if r.Exit != 3 || findingsOf(r) != "partial_history" || r.First != seq || r.Records != full.Records-seq ||
			!strings.Contains(r.Findings[0].Detail, "as was asked: older files, 3 of them") {
			t.Errorf("--since %s: %+v", since, r)
		}
	}
	for _, since := range []string{"0", "1h", "2001-01-01"} {
		if r := verified(t, path, "--since", since); r.Exit != 0 || r.Records != full.Records {
			t.Errorf("--since %s: %+v", since, r)
		}
	}
	at := first.Time().Add(time.Nanosecond).Format(time.RFC3339Nano)
	if r := verified(t, path, "--since", at); r.Exit != 3 || r.First < seq {
		t.Errorf("--since %s: %+v", at, r)
	}
	// Of the files that are read, each must be there.
	remove(t, names[len(names)-1])
	if r := verified(t, path, "--since", strconv.FormatUint(seq, 10)); r.Exit != 1 || !strings.Contains(findingsOf(r), "segment_missing") {
		t.Errorf("a later segment is gone: %+v", r)
	}
}
