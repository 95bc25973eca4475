package tests

import (
	"bytes"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/mattn/go-sqlite3"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// calls makes n calls, numbered from the first on.
func calls(t *testing.T, caddy *harness.Caddy, first, n int) {
	t.Helper()
	for i := first; i < first+n; i++ {
		if answer := caddy.Post(t, call(fmt.Sprint(i), "echo", fmt.Sprintf(`{"m":"call %d"}`, i))); !strings.Contains(answer.Body, fmt.Sprint("call ", i)) {
			t.Fatalf("call %d: %+v", i, answer)
		}
	}
}

// copyFolder copies the files of a folder, so that a copy can be tampered with.
func copyFolder(t *testing.T, from string) (to string) {
	t.Helper()
	to = t.TempDir()
	copyInto(t, from, to)
	return to
}

func copyInto(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			write(t, filepath.Join(to, e.Name()), read(t, filepath.Join(from, e.Name())))
		}
	}
}

// rawLines are the record lines of a log, wherever it is kept.
func rawLines(t *testing.T, log string) []byte {
	t.Helper()
	stdout, stderr, code := harness.Run(t, harness.CLI(t, t.TempDir(), "export", "--format", "lines", log))
	if code != 0 {
		t.Fatalf("mcp-audit export: %s", stderr)
	}
	return []byte(stdout)
}

// LOG-3: 100 calls, then one thing at a time is done to a copy. The head that
// was kept outside the log is given to verify.
func TestTamperMatrix(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: "client_id desk-7"})
	calls(t, caddy, 0, 97)
	caddy.Stop(t)
	earlier := copyFolder(t, filepath.Dir(caddy.Log))
	caddy.Start(t)
	calls(t, caddy, 97, 3)
	caddy.Stop(t)
	folder := filepath.Dir(caddy.Log)
	head := filepath.Join(t.TempDir(), "head.checkpoint")
	write(t, head, read(t, caddy.Log+".checkpoint"))

	verify := func(t *testing.T, dir string, args ...string) harness.Report {
		t.Helper()
		args = append(args, "--keys", filepath.Join(dir, "keys.json"), "--anchor", head)
		return harness.Verify(t, append([]string{filepath.Join(dir, "audit.jsonl")}, args...)...)
	}
	if r := verify(t, folder); r.Exit != 0 || r.Records < 200 {
		t.Fatalf("the untouched log: %s", r)
	}
	const at = 50
	edit := func(old, with string) func([][]byte) [][]byte {
		return func(l [][]byte) [][]byte {
			for i := at; i < len(l); i++ {
				if bytes.Contains(l[i], []byte(old)) {
					l[i] = bytes.Replace(l[i], []byte(old), []byte(with), 1)
					return l
				}
			}
			panic("no line has " + old)
		}
	}
	cases := []struct {
		name   string
		change func([][]byte) [][]byte
		want   []string
		exit   int
		line   int // of the first finding; 0: any
	}{
		{"one byte flipped", func(l [][]byte) [][]byte { l[at][30] ^= 1; return l }, []string{"content_modified"}, 1, at + 1},
		{"a record deleted", func(l [][]byte) [][]byte { return slices.Delete(l, at, at+1) }, []string{"seq_gap"}, 1, at + 1},
		{"two swapped", func(l [][]byte) [][]byte { l[at], l[at+1] = l[at+1], l[at]; return l }, []string{"seq_gap"}, 1, at + 1},
		{"one duplicated", func(l [][]byte) [][]byte { return slices.Insert(l, at, l[at]) }, []string{"duplicate_record"}, 1, at + 2},
		{"the last five deleted", func(l [][]byte) [][]byte { return l[:len(l)-5] }, []string{"tail_truncated"}, 4, 0},
		{"the first 95 records", func(l [][]byte) [][]byte { return l[:95] }, []string{"tail_truncated"}, 4, 0},
		{"a result edited", edit(`"result":{"content":[{"text":"call`, `"result":{"content":[{"text":"cell`), []string{"content_modified"}, 1, 0},
		{"the actor edited", edit("desk-7", "desk-8"), []string{"content_modified"}, 1, 0},
		{"the time edited", edit(`"timestamp":"20`, `"timestamp":"21`), []string{"content_modified"}, 1, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dir := copyFolder(t, folder)
			log := filepath.Join(dir, "audit.jsonl")
			write(t, log, bytes.Join(c.change(linesOf(t, log)), nil))
			r := verify(t, dir)
			if r.Exit != c.exit || !r.Has(c.want...) {
				t.Errorf("want exit %d and %q: %s", c.exit, c.want, r)
			} else if first := r.Findings[0]; c.line > 0 && first.Line != c.line {
				t.Errorf("the first bad position is line %d, want %d: %s", first.Line, c.line, r)
			}
		})
	}
	t.Run("the proxy refuses the first 95 records", func(t *testing.T) {
		again := harness.Prepare(t, harness.Site{Upstream: u.Address, Log: filepath.Join(copyFolder(t, folder), "audit.jsonl")})
		write(t, again.Log, bytes.Join(linesOf(t, again.Log)[:95], nil))
		if text := again.StartFails(t); !strings.Contains(text, "tail_truncated") {
			t.Errorf("the proxy says\n%s", text)
		}
	})
	t.Run("an earlier log with its state", func(t *testing.T) {
		dir := copyFolder(t, earlier)
		again := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Log: filepath.Join(dir, "audit.jsonl")})
		calls(t, again, 200, 8)
		again.Stop(t)
		if r := verify(t, dir); r.Exit != 4 || !r.Has("anchor_mismatch") {
			t.Errorf("%s", r)
		}
	})
}

// LOG-3, the last segment deleted, with the manifest and with the head alone.
func TestADeletedSegmentIsFound(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Output: "rotate_size 16KiB"})
	calls(t, caddy, 0, 60)
	caddy.Stop(t)
	folder := filepath.Dir(caddy.Log)
	head := filepath.Join(t.TempDir(), "head.checkpoint")
	write(t, head, read(t, caddy.Log+".checkpoint"))
	closed, err := filepath.Glob(caddy.Log + ".0*Z")
	if err != nil || len(closed) < 2 {
		t.Fatalf("closed segments %v, %v", closed, err)
	}
	harness.VerifyClean(t, caddy.Log)
	last := filepath.Base(closed[len(closed)-1])
	for _, c := range []struct {
		name   string
		remove []string
		want   string
		exit   int
	}{
		{"the last closed one", []string{last}, "segment_missing", 1},
		{"the one that is written to", []string{"audit.jsonl"}, "tail_truncated", 4},
		{"both, and the manifest", []string{"audit.jsonl", last, "manifest.json"}, "tail_truncated", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := copyFolder(t, folder)
			for _, name := range c.remove {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			r := harness.Verify(t, dir, "--keys", filepath.Join(dir, "keys.json"), "--anchor", head)
			if r.Exit != c.exit || !r.Has(c.want) {
				t.Errorf("%s", r)
			}
		})
	}
}

// attacked opens a database as somebody who may write to its file.
func attacked(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// LOG-6 with SQLite.
func TestTamperMatrixOfADatabase(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Store: "sqlite"})
	calls(t, caddy, 0, 40)
	caddy.Stop(t)
	folder := filepath.Dir(caddy.Log)
	head := filepath.Join(t.TempDir(), "head.checkpoint")
	write(t, head, read(t, caddy.Log+".checkpoint"))
	verify := func(t *testing.T, log string) harness.Report {
		t.Helper()
		return harness.Verify(t, log, "--keys", filepath.Join(folder, "keys.json"), "--anchor", head)
	}
	if r := verify(t, caddy.Log); r.Exit != 0 || len(r.Findings) > 0 || r.Records < 80 {
		t.Fatalf("the untouched log: %s", r)
	}
	const off = `DROP TRIGGER records_no_update; DROP TRIGGER records_no_delete; DROP TRIGGER hashes_no_update; DROP TRIGGER hashes_no_delete`
	on := triggers(t, caddy.Log)
	cases := []struct {
		name       string
		statements []string
		want       []string
		exit       int
	}{
		{"UPDATE", []string{off, `UPDATE records SET line=replace(line,'"outcome":"success"','"outcome":"denied"') WHERE seq=50`, `UPDATE records SET line=replace(line,'call','cell') WHERE seq=51`, on}, []string{"content_modified"}, 1},
		{"UPDATE past the triggers", []string{`INSERT OR REPLACE INTO records(seq,pos,line) SELECT seq,pos,replace(line,'"kind"','"kimd"') FROM records WHERE seq=50`}, []string{"content_modified"}, 1},
		{"DELETE", []string{off, `DELETE FROM records WHERE seq=50`, on}, []string{"seq_gap"}, 1},
		{"two swapped", []string{off, `UPDATE records SET line=CASE seq WHEN 50 THEN (SELECT line FROM records WHERE seq=51) ELSE (SELECT line FROM records WHERE seq=50) END WHERE seq IN (50,51)`, on}, []string{"seq_gap", "derived_column_mismatch"}, 1},
		{"the last five deleted", []string{off, `DELETE FROM hashes WHERE idx>=(SELECT 2*(max(seq)-4) FROM records)-64`, `DELETE FROM records WHERE seq>(SELECT max(seq)-5 FROM records)`, on}, []string{"tail_truncated"}, -1},
		{"a row put back", []string{off, `CREATE TEMP TABLE kept AS SELECT seq,pos,line FROM records WHERE seq=50`, `DELETE FROM records WHERE seq=50`, `INSERT INTO records(seq,pos,line) SELECT seq,pos,line FROM kept`, on}, nil, 0},
		{"another row put back under its id", []string{off, `CREATE TEMP TABLE kept AS SELECT seq,pos,line FROM records WHERE seq=49`, `DELETE FROM records WHERE seq=50`, `INSERT INTO records(seq,pos,line) SELECT 50,pos,line FROM kept`, on}, []string{"seq_gap", "duplicate_record"}, 1},
		{"a trigger dropped", []string{`DROP TRIGGER records_no_delete`}, []string{"schema_mismatch"}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			log := filepath.Join(copyFolder(t, folder), "audit.db")
			attacked(t, log, c.statements...)
			r := verify(t, log)
			if c.exit >= 0 && r.Exit != c.exit || r.Exit == 0 && c.exit != 0 || len(c.want) > 0 && !r.Has(c.want...) || c.exit == 0 && len(r.Findings) > 0 {
				t.Errorf("want exit %d and %q: %s", c.exit, c.want, r)
			}
		})
	}
	t.Run("VACUUM INTO", func(t *testing.T) {
		dir := copyFolder(t, folder)
		copied := filepath.Join(t.TempDir(), "copy.db")
		attacked(t, filepath.Join(dir, "audit.db"), fmt.Sprintf("VACUUM INTO '%s'", copied))
		if r := verify(t, copied); r.Exit != 0 || len(r.Findings) > 0 {
			t.Errorf("%s", r)
		}
		attacked(t, copied, `INSERT OR REPLACE INTO records(seq,pos,line) SELECT seq,pos,replace(line,'call','cell') FROM records WHERE line LIKE '%call%'`)
		if r := verify(t, copied); r.Exit != 1 || !r.Has("content_modified") {
			t.Errorf("an edited copy: %s", r)
		}
	})
	t.Run("exported as lines", func(t *testing.T) {
		lines := filepath.Join(t.TempDir(), "exported.jsonl")
		text := rawLines(t, caddy.Log)
		write(t, lines, text)
		whole := verify(t, caddy.Log)
		if r := verify(t, lines); r.Exit != 0 || len(r.Findings) > 0 || r.Records != whole.Records {
			t.Errorf("%s, want %s", r, whole)
		}
		write(t, lines, bytes.Replace(text, []byte("call 7"), []byte("call 8"), 1))
		if r := verify(t, lines); r.Exit != 1 || !r.Has("content_modified") {
			t.Errorf("edited: %s", r)
		}
	})
}

// triggers are the statements that make a log's triggers.
func triggers(t *testing.T, path string) string {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "audit.db")
	write(t, copied, read(t, path))
	db, err := sql.Open("sqlite3", copied)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var text string
	if err := db.QueryRow(`SELECT group_concat(sql,';') FROM sqlite_master WHERE type='trigger'`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// LOG-6: another machine has the log and the public key, and keys change in
// mid-log.
func TestKeySeparation(t *testing.T) {
	for _, store := range []string{"jsonl", "sqlite"} {
		t.Run(store, func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Store: store})
			calls(t, caddy, 0, 5)
			folder := filepath.Dir(caddy.Log)
			keys := filepath.Join(folder, "keys.json")
			first := read(t, keys)
			vkey, stderr, code := harness.Run(t, harness.CLI(t, folder, "pubkey", caddy.Log))
			if code != 0 {
				t.Fatal(stderr)
			}
			if _, stderr, code := harness.Run(t, harness.CLI(t, folder, "rotate-key", caddy.Log)); code != 0 {
				t.Fatal(stderr)
			}
			calls(t, caddy, 5, 5)
			caddy.Stop(t)

			elsewhere := filepath.Join(t.TempDir(), filepath.Base(caddy.Log))
			write(t, elsewhere, read(t, caddy.Log))
			if r := harness.Verify(t, elsewhere, "--pub", strings.TrimSpace(vkey)); r.Exit != 0 || len(r.Findings) > 0 || r.Kinds["key_rotation"] != 1 {
				t.Errorf("with the first public key: %s", r)
			}
			if r := harness.Verify(t, elsewhere, "--keys", keys); r.Exit != 0 || len(r.Findings) > 0 || r.MAC != "checked" {
				t.Errorf("with both keys: %s", r)
			}
			old := filepath.Join(t.TempDir(), "keys.json")
			write(t, old, first)
			if r := harness.Verify(t, elsewhere, "--keys", old); r.Exit != 1 || !r.Has("unknown_key") {
				t.Errorf("a record sealed with an unlisted key: %s", r)
			}
		})
	}
}
