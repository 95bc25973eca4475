//go:build cgo

package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// attack opens a database as somebody does who can write the file.
func attack(t testing.TB, path string) *sql.DB {
	t.Helper()
	db := connect(path, "rw", "trusted_schema=ON")
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func must(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// sample makes a closed log of a few calls.
func sample(t testing.TB, calls int) string {
	t.Helper()
	path := dbPath(t)
	l := openLog(t, path, Options{})
	for range calls {
		call(t, l)
	}
	closeLog(t, l)
	return path
}

func kinds(r *auditlog.Report) (list []string) {
	for _, f := range r.Findings {
		list = append(list, f.Kind)
	}
	return list
}

func TestTamperingWithADatabaseIsFound(t *testing.T) {
	const dropAll = "DROP TRIGGER records_no_update;DROP TRIGGER records_no_delete;DROP TRIGGER hashes_no_update;DROP TRIGGER hashes_no_delete;"
	const makeAll = noUpdateTriggers + deleteTriggers
	cases := []struct {
		name string
		want []string
		sql  string
	}{
		{"row 64: INSERT OR REPLACE", []string{"content_modified", "chain_broken"},
			`INSERT OR REPLACE INTO records(seq,pos,line) SELECT seq,pos,replace(line,'"success"','"tool_error"') FROM records WHERE outcome='success' LIMIT 1`},
		{"INSERT OR REPLACE of a hash", []string{"derived_column_mismatch"}, `INSERT OR REPLACE INTO hashes VALUES(3,zeroblob(32))`},
		{"a trigger dropped", []string{"schema_mismatch"}, `DROP TRIGGER records_no_delete`},
		{"a trigger that does nothing", []string{"schema_mismatch"},
			`DROP TRIGGER records_no_delete;CREATE TRIGGER records_no_delete BEFORE DELETE ON records BEGIN SELECT 1;END`},
		{"a further trigger", []string{"schema_mismatch"}, `CREATE TRIGGER more AFTER INSERT ON records BEGIN SELECT 1;END`},
		{"an index dropped", []string{"schema_mismatch"}, `DROP INDEX records_tool`},
		{"a view that shows something else", []string{"schema_mismatch"}, `DROP VIEW audit_entries;CREATE VIEW audit_entries AS SELECT 1`},
		{"a column that is computed otherwise", []string{"schema_mismatch"},
			`PRAGMA writable_schema=ON;UPDATE sqlite_master SET sql=replace(sql,'$.tool_name','$.method') WHERE name='records'`},
		{"a record deleted", []string{"seq_gap"}, dropAll + `DELETE FROM records WHERE seq=5;` + makeAll},
		{"a record renumbered", []string{"derived_column_mismatch"}, dropAll + `UPDATE records SET seq=1000 WHERE seq=(SELECT max(seq) FROM records);` + makeAll},
		{"a position changed", []string{"derived_column_mismatch"}, `UPDATE records SET pos=pos+1 WHERE seq=4`},
		{"a hash deleted", []string{"derived_column_mismatch"}, dropAll + `DELETE FROM hashes WHERE idx=2;` + makeAll},
		{"hashes added", []string{"derived_column_mismatch"}, `INSERT INTO hashes SELECT max(idx)+1,zeroblob(32) FROM hashes`},
		{"an opening of no record", []string{"opening_unbound"}, `INSERT INTO openings VALUES(1000,'params',zeroblob(16),'1')`},
		{"an opening without a commitment", []string{"opening_unbound"}, `INSERT INTO openings VALUES(3,'params',zeroblob(16),'1')`},
		{"a line feed in a line", []string{"malformed_line", "unsealed_record", "content_modified"}, dropAll + `UPDATE records SET line=line||char(10) WHERE seq=3;` + makeAll},
		{"everything deleted", []string{"empty_log"}, dropAll + `DELETE FROM records;DELETE FROM hashes;` + makeAll},
		{"no table any more", []string{"schema_mismatch"}, `DROP VIEW audit_entries;DROP TABLE records`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := sample(t, 6)
			db := attack(t, path)
			must(t, db, c.sql)
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			r := verify(t, path)
			if !slices.ContainsFunc(kinds(r), func(kind string) bool { return slices.Contains(c.want, kind) }) || r.Exit != auditlog.ExitTampered {
				t.Errorf("exit %d, want %v: %+v", r.Exit, c.want, r.Findings)
			}
		})
	}
}

func TestWhatQueriesNeedIsNoTampering(t *testing.T) {
	path := sample(t, 6)
	db := attack(t, path)
	must(t, db, "ANALYZE;PRAGMA optimize;VACUUM")
	copied := dbPath(t)
	must(t, db, "VACUUM INTO ?", copied)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, copied} {
		if r := verify(t, path); len(r.Findings) > 0 {
			t.Errorf("%+v", r.Findings)
		}
	}
	l := openLog(t, path, Options{})
	call(t, l)
	closeLog(t, l)
	if r := verify(t, path); len(r.Findings) > 0 {
		t.Errorf("%+v", r.Findings)
	}
}

func TestTheTriggersForbidChanges(t *testing.T) {
	db := attack(t, sample(t, 2))
	for _, query := range []string{
		"UPDATE records SET line='{}' WHERE seq=1", "DELETE FROM records", "UPDATE hashes SET h=zeroblob(32)", "DELETE FROM hashes WHERE idx=1",
	} {
		if _, err := db.Exec(query); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// Row 65: a page of an index is edited, so that a row is not found by it.
func TestAnEditedIndexPageIsFound(t *testing.T) {
	path := sample(t, 3)
	var root, size int
	db := attack(t, path)
	if err := db.QueryRow("SELECT rootpage,(SELECT * FROM pragma_page_size) FROM sqlite_master WHERE name='records_tool'").Scan(&root, &size); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := data[(root-1)*size : root*size]
	at := bytes.Index(page, []byte("read_file"))
	if at < 0 {
		t.Fatal("the page is not that of the index")
	}
	page[at+8] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, path); !slices.Contains(kinds(r), "index_corrupt") || r.Exit != auditlog.ExitTampered {
		t.Errorf("exit %d, %+v", r.Exit, r.Findings)
	}
}

// Row 66: what lies in the -wal file is not copied, or is that of another log.
func TestAMissingOrForeignWalIsFoundWithAnAnchor(t *testing.T) {
	path, other := dbPath(t), dbPath(t)
	l, stranger := openLog(t, path, Options{}), openLog(t, other, Options{})
	defer closeLog(t, l)
	defer closeLog(t, stranger)
	store := attack(t, path)
	must(t, store, "PRAGMA wal_checkpoint(TRUNCATE)")
	for range 5 {
		call(t, l)
		call(t, stranger)
	}
	note, err := l.Checkpoint(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	whole, bare, foreign := dbPath(t), dbPath(t), dbPath(t)
	// In a process of its own: see the package's documentation.
	for _, args := range [][]string{{path, whole}, {path + "-wal", whole + "-wal"}, {path, bare}, {path, foreign}, {other + "-wal", foreign + "-wal"}} {
		if out, err := exec.Command("cp", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	check := func(path string) *auditlog.Report {
		r, err := OpenReader(path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		report, err := auditlog.Verify(context.Background(), []auditlog.Source{r.Source()}, auditlog.VerifyOptions{
			Secret: []byte(testSecret), Anchors: []auditlog.Anchor{{Name: "held", Note: note}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if r := check(whole); r.Exit != 0 || r.Records < 10 {
		t.Errorf("whole: exit %d, %+v", r.Exit, r.Findings)
	}
	if r := check(bare); !slices.Contains(kinds(r), "tail_truncated") || r.Exit != auditlog.ExitDiverges {
		t.Errorf("without -wal: exit %d, %+v", r.Exit, r.Findings)
	}
	if r := check(foreign); r.Exit == 0 {
		t.Errorf("foreign -wal: exit %d, %+v", r.Exit, r.Findings)
	}
}

// Whatever byte of the file is changed: it is found, or it changed nothing that
// can be read.
func TestEveryChangedByteIsFoundOrWithoutEffect(t *testing.T) {
	path := sample(t, 3)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clean, entries := lines(t, path), view(t, path)
	edited := filepath.Join(t.TempDir(), "edited.db")
	step, found := 61, 0
	if testing.Short() {
		step = 499
	}
	for at := 0; at < len(data); at += step {
		data[at] ^= 1
		if err := os.WriteFile(edited, data, 0o600); err != nil {
			t.Fatal(err)
		}
		data[at] ^= 1
		r, err := OpenReader(edited)
		if err != nil {
			found++
			continue
		}
		report, err := auditlog.Verify(context.Background(), []auditlog.Source{r.Source()}, auditlog.VerifyOptions{Secret: []byte(testSecret)})
		if closed := r.Close(); closed != nil {
			t.Fatal(closed)
		}
		switch {
		case err != nil || report.Exit != 0:
			found++
		case !bytes.Equal(lines(t, edited), clean):
			t.Errorf("byte %d: changed lines were not found", at)
		case view(t, edited) != entries:
			t.Errorf("byte %d: changed entries were not found", at)
		}
		for _, suffix := range companions {
			_ = os.Remove(edited + suffix)
		}
	}
	t.Logf("%d of %d changes were found", found, len(data)/step)
}

// view is everything that audit_entries shows.
func view(t testing.TB, path string) string {
	t.Helper()
	db := connect(path, "ro")
	defer db.Close()
	rows, err := db.Query("SELECT * FROM audit_entries ORDER BY id")
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for rows.Next() {
		cells, into := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range cells {
			into[i] = &cells[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for i, cell := range cells {
			if cell.Valid {
				fmt.Fprintf(&out, "%s=%s ", names[i], cell.String)
			}
		}
		out.WriteByte('\n')
	}
	if rows.Err() != nil {
		return rows.Err().Error()
	}
	return out.String()
}

func TestADatabaseTamperedWithWhileOpenIsNotContinued(t *testing.T) {
	cases := map[string]struct {
		finding string
		do      func(t *testing.T, path string)
	}{
		"removed": {"log_replaced", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}},
		"replaced": {"log_replaced", func(t *testing.T, path string) {
			if err := os.Rename(sample(t, 3), path); err != nil {
				t.Fatal(err)
			}
		}},
		"records deleted": {"tail_truncated", func(t *testing.T, path string) {
			must(t, attack(t, path), "DROP TRIGGER records_no_delete;DELETE FROM records WHERE seq>2;"+
				"CREATE TRIGGER records_no_delete BEFORE DELETE ON records BEGIN SELECT RAISE(ABORT,'append-only');END")
		}},
		"a trigger dropped": {"schema_mismatch", func(t *testing.T, path string) {
			must(t, attack(t, path), "DROP TRIGGER records_no_delete")
		}},
		"a record added": {"seq_gap", func(t *testing.T, path string) {
			must(t, attack(t, path), "INSERT INTO records(seq,pos,line) SELECT (SELECT max(seq)+1 FROM records),(SELECT max(pos) FROM records)+length((SELECT line FROM records ORDER BY seq DESC LIMIT 1))+1,line FROM records WHERE seq=1")
		}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := dbPath(t)
			l := openLog(t, path, Options{})
			call(t, l)
			c.do(t, path)
			_, err := l.Event(context.Background(), auditlog.Event{Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "x"}})
			var refused *auditlog.RefusedError
			if !errors.As(err, &refused) || refused.Finding != c.finding {
				t.Errorf("want %s: %v", c.finding, err)
			}
			_ = l.Close(context.Background())
		})
	}
}
