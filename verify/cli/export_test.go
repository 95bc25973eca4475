//go:build cgo

package cli

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// exported runs export and returns its rows.
func exported(t *testing.T, args ...string) (rows []map[string]any) {
	t.Helper()
	stdout, stderr, code := command(t, append([]string{"export"}, args...)...)
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		var row map[string]any
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		rows = append(rows, row)
	}
	return rows
}

func toolsOf(rows []map[string]any) string {
	var names []string
	for _, r := range rows {
		names = append(names, fmt.Sprint(r["tool_name"]))
	}
	return strings.Join(names, " ")
}

func TestExportOfTheWorkedExample(t *testing.T) {
	clean(t)
	path := vector(t)
	for _, format := range []string{"jsonl", "csv", "ocsf", "cef", "syslog"} {
		stdout, stderr, code := command(t, "export", "--format", format, "--hostname", "gateway-1", path)
		if code != 0 || stderr != "" {
			t.Fatalf("%s: exit %d: %s", format, code, stderr)
		}
		golden(t, "export-"+format, filepath.Dir(path), strings.ReplaceAll(stdout, Version(), "VERSION"))
	}
	stdout, _, _ := command(t, "export", "--format", "syslog", "--framing", "octet", path)
	length, rest, _ := strings.Cut(stdout, " ")
	if n, err := strconv.Atoi(length); err != nil || n != len(rest) {
		t.Errorf("octet counting: %v: %s", err, stdout)
	}
}

func TestExportFilters(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "read_file", auditlog.Success, "")
	time.Sleep(2 * time.Millisecond)
	between := time.Now().UTC().Format(time.RFC3339Nano)
	time.Sleep(2 * time.Millisecond)
	call(t, log, "write_file", auditlog.ToolError, "it said Ünique \"words\"")
	call(t, log, "list_files", auditlog.Denied, "")
	closeLog(t, log)
	for args, want := range map[string]string{
		"":                              "read_file write_file list_files",
		"--tool read_file":              "read_file",
		"--tool *_file":                 "read_file write_file",
		"--outcome denied":              "list_files",
		"--outcome tool_error --all":    "write_file",
		"--since " + between:            "write_file list_files",
		"--until " + between:            "read_file",
		"--since 1h":                    "read_file write_file list_files",
		"--until 7d":                    "",
		"--client local --server files": "read_file write_file list_files",
		"--server elsewhere":            "",
		"--method tools/call":           "read_file write_file list_files",
		"--principal nobody":            "",
		"--decision deny":               "",
		"--text ünique":                 "write_file",
		"--text WORDS\"":                "write_file",
		"--text nowhere":                "",
		"--rebuild --tool read_file":    "read_file",
	} {
		if got := toolsOf(exported(t, append(strings.Fields(args), path)...)); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	kinds := map[any]bool{}
	for _, r := range exported(t, "--all", filepath.Dir(path)) {
		kinds[r["kind"]] = true
		if r["seq"] == nil || len(fmt.Sprint(r["leaf"])) != 43 || r["origin"] == nil {
			t.Errorf("%v", r)
		}
	}
	if !kinds["genesis"] || !kinds["operation"] || !kinds["stop"] {
		t.Errorf("%v", kinds)
	}
}

func TestExportMistakes(t *testing.T) {
	clean(t)
	path := vector(t)
	for args, want := range map[string]string{
		"--format xml":                          "--format takes jsonl, csv",
		"--framing tcp":                         "neither lf nor octet",
		"--outcome fine":                        "--outcome takes success",
		"--decision maybe":                      "takes allow, deny",
		"--since yesterday":                     "24h or 7d",
		"--since 2026-02-02 --until 2026-02-01": "is not before",
		"-o " + path:                            "would overwrite",
		"-o " + filepath.Dir(path) + "/missing/x.csv": "give another file with -o",
	} {
		_, stderr, code := command(t, append(append([]string{"export"}, strings.Fields(args)...), path)...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
	keys := keysBeside(path)
	write(t, keys, []byte("{}"))
	if _, stderr, code := command(t, "index", "--rebuild", "--index", keys, path); code != 2 || !strings.Contains(stderr, "is no index") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if _, stderr, code := command(t, "export", filepath.Join(t.TempDir(), "none.jsonl")); code != 2 || !strings.Contains(stderr, "none.jsonl") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestExportToAFile(t *testing.T) {
	clean(t)
	path := vector(t)
	out := filepath.Join(t.TempDir(), "rows.csv")
	write(t, out, []byte("old"))
	if stdout, stderr, code := command(t, "export", "--format", "csv", "-o", out, path); code != 0 || stdout != "" || stderr != "" {
		t.Fatalf("exit %d: %s %s", code, stdout, stderr)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := csv.NewReader(bytes.NewReader(data)).ReadAll(); err != nil || len(rows) != 2 {
		t.Errorf("%v: %q", err, rows)
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(out)); len(entries) != 1 {
		t.Errorf("%d files", len(entries))
	}
}

func TestAChangedRecordIsExportedAndNamed(t *testing.T) {
	clean(t)
	path := vector(t)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, bytes.Replace(data, []byte(`"text":"ok"`), []byte(`"text":"no"`), 1))
	stdout, stderr, code := command(t, "export", path)
	if code != 1 || !strings.Contains(stdout, `"text":"no"`) || !strings.Contains(stderr, "seq 2") || !strings.Contains(stderr, "line 3") || !strings.Contains(stderr, path) {
		t.Errorf("exit %d: %s %s", code, stdout, stderr)
	}
}

func TestIndexCommand(t *testing.T) {
	clean(t)
	path := vector(t)
	for args, want := range map[string]string{"": "3 records", "--rebuild": "3 records, 3 of them new"} {
		stdout, stderr, code := command(t, append(append([]string{"index"}, strings.Fields(args)...), path)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("exit %d: %s %s", code, stdout, stderr)
		}
	}
	write(t, path+".index", []byte(strings.Repeat("damaged ", 2000)))
	stdout, stderr, code := command(t, "index", path)
	if code != 0 || !strings.Contains(stderr, "note: the index") || !strings.Contains(stderr, "made anew") || !strings.Contains(stdout, "3 of them new") {
		t.Errorf("exit %d: %s %s", code, stdout, stderr)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere.index")
	if stdout, _, code := command(t, "index", "--index", elsewhere, path); code != 0 || !strings.Contains(stdout, elsewhere) {
		t.Errorf("exit %d: %s", code, stdout)
	}
}

// The segments of a rotated log are one log, whether the folder or the active
// file is named, and a call may begin in one and end in the next.
func TestExportReadsClosedSegmentsInOrder(t *testing.T) {
	clean(t)
	source := vector(t)
	data, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
	path := filepath.Join(t.TempDir(), logName)
	write(t, path+".000000.20261201T000000Z", data[:cut])
	write(t, path, data[cut:])
	for _, where := range []string{path, filepath.Dir(path)} {
		rows := exported(t, where)
		if len(rows) != 1 || rows[0]["kind"] != "operation" || rows[0]["intent_seq"] != 1.0 || rows[0]["params"] == nil || rows[0]["result"] == nil {
			t.Errorf("%s: %v", where, rows)
		}
	}
}

// Exports go on beside a writer, and neither disturbs the other.
func TestExportDuringWrites(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "first", auditlog.Success, "")
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				call(t, log, "read_file", auditlog.Success, "")
				time.Sleep(time.Millisecond)
			}
		}
	})
	last := 0
	for range 8 {
		rows := exported(t, "--outcome", "success", path)
		if len(rows) < last || len(rows) == 0 {
			t.Errorf("%d rows after %d", len(rows), last)
		}
		last = len(rows)
	}
	close(stop)
	writer.Wait()
	closeLog(t, log)
	if n := len(exported(t, "--outcome", "success", path)); n < last {
		t.Errorf("%d rows after %d", n, last)
	}
	if r := verified(t, path); r.Exit != 0 {
		t.Errorf("the log was disturbed: %+v", r)
	}
}

func TestMoments(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "2026-11-30": now.Add(-36 * time.Hour), "2026-12-01T11:00:00+01:00": now.Add(-2 * time.Hour),
		"90m": now.Add(-90 * time.Minute), "7d": now.Add(-7 * 24 * time.Hour), "2026-12-01 11:30": now.Add(-30 * time.Minute),
	} {
		if got, err := moment("--since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-1h", "d", "x", "2026-13-01", "99999999d"} {
		if got, err := moment("--since", text, now); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestLinesAreExportedAsTheyAre(t *testing.T) {
	for _, name := range []string{logName, databaseName} {
		clean(t)
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		growing(t, path, auditlog.Rotation{}, 5)
		out := filepath.Join(t.TempDir(), "lines.jsonl")
		if _, stderr, code := command(t, "export", "--format", "lines", "-o", out, path); code != 0 {
			t.Fatal(stderr)
		}
		a, b := verified(t, path), verified(t, out, "--keys", keysBeside(path))
		if b.Exit != 0 || a.Records != b.Records || a.Watermarks.Checkpointed != b.Watermarks.Checkpointed {
			t.Errorf("%s: %+v\n%+v", name, a, b)
		}
		for _, args := range [][]string{{"--tool", "x"}, {"--since", "1h"}, {"--no-payloads"}} {
			if _, stderr, code := command(t, append([]string{"export", "--format", "lines", path}, args...)...); code != 2 || !strings.Contains(stderr, args[0]) {
				t.Errorf("%v: %d %s", args, code, stderr)
			}
		}
	}
	_, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, 8)
	if _, stderr, code := command(t, "export", "--format", "lines", path); code != 2 || !strings.Contains(stderr, "files, which verify apart") {
		t.Errorf("several files: %d %s", code, stderr)
	}
}

func TestAnExportIsRecordedWhereThatIsAsked(t *testing.T) {
	for _, format := range []string{"csv", formatLines} {
		clean(t)
		path := filepath.Join(t.TempDir(), logName)
		log := openLog(t, path)
		call(t, log, "read_file", auditlog.Success, "")
		args := []string{"export", path, "--format", format, "--record"}
		if format == "csv" {
			args = append(args, "--tool", "read_*", "--text", "s3cret")
		}
		if _, stderr, code := command(t, args...); code != 0 {
			t.Fatal(stderr)
		}
		closeLog(t, log)
		r := verified(t, path)
		if r.Exit != 0 || r.Kinds["access"] != 1 || r.Kinds["start"] != 2 {
			t.Errorf("%+v", r)
		}
		text := readLines(t, path)
		if strings.Contains(text, "s3cret") || !strings.Contains(text, `"action":"export"`) || !strings.Contains(text, `"actor":"`+actorName()) {
			t.Error(text)
		}
		if format == "csv" && !strings.Contains(text, `--tool [read_*]`) {
			t.Error(text)
		}
		// Without the keys there is no record, and no export.
		remove(t, keysBeside(path))
		stdout, stderr, code := command(t, args...)
		if code == 0 || stdout != "" || !strings.Contains(stderr, "keys") {
			t.Errorf("exit %d %q %s", code, stdout, stderr)
		}
	}
}

func TestExportReadsCompressedSegments(t *testing.T) {
	const calls = 20
	_, path := segmented(t, auditlog.Rotation{Size: 4 << 10}, calls)
	check := func(when string) {
		t.Helper()
		rows := exported(t, path)
		if len(rows) != calls {
			t.Errorf("%s: %d rows: %s", when, len(rows), toolsOf(rows))
		}
	}
	check("before")
	for _, name := range closedSegments(t, path) {
		text := read(t, name)
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		if _, err := z.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, name+".gz", packed.Bytes())
		remove(t, name)
	}
	check("with an index from before")
	remove(t, path+".index")
	check("with a new index")
}
