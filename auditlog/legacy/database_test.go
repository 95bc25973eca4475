//go:build cgo

package legacy

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// database makes a file with the table of the format, by its documented
// columns, and the entries of some lines.
func database(t *testing.T, columns []string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a b?.db")
	address := "file:" + strings.NewReplacer("?", "%3f", " ", "%20").Replace(path)
	db, err := sql.Open("sqlite3", address)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var defs []string
	for _, c := range columns {
		kind := "TEXT"
		if c == "duration_ms" {
			kind = "INTEGER"
		}
		if c == "id" {
			kind = "TEXT PRIMARY KEY"
		}
		defs = append(defs, c+" "+kind)
	}
	if _, err := db.Exec("CREATE TABLE audit_entries(" + strings.Join(defs, ",") + ")"); err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		o, v := parseObject([]byte(line))
		if v != "" {
			t.Fatal(v)
		}
		values := make([]any, len(columns))
		for i, c := range columns {
			text, ok := o.text(c)
			if raw := o.get(c); raw != nil && !ok {
				text = string(raw)
			}
			values[i] = text
		}
		if _, err := db.Exec("INSERT INTO audit_entries VALUES(?"+strings.Repeat(",?", len(columns)-1)+")", values...); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func change(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+strings.NewReplacer("?", "%3f", " ", "%20").Replace(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func TestDatabasesAreReadOnlyAndJudgedAsLinesAre(t *testing.T) {
	failed := entryLine(t, 3, func(m map[string]string) {
		delete(m, "result")
		m["error"] = `{"code":-32603,"message":"no"}`
		m["principal"] = `{"client_id":"c","issuer":"i","subject":"s"}`
		m["policy"] = `{"decision":"deny"}`
	})
	columns := entryMembers
	lines := []string{entryLine(t, 1, nil), entryLine(t, 2, nil), failed}
	check := func(statement string, exit int, want ...string) {
		t.Helper()
		path := database(t, columns, lines...)
		if statement != "" {
			change(t, path, statement)
		}
		if found, err := DetectDatabase(t.Context(), path); err != nil || !found {
			t.Fatal(found, err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := VerifyDatabase(t.Context(), path, withSecret())
		if err != nil {
			t.Fatal(err)
		}
		expect(t, r, exit, want...)
		if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
			t.Error("the database was changed", err)
		}
	}
	check("", auditlog.ExitClean)
	check("UPDATE audit_entries SET result='[]' WHERE rowid=2", auditlog.ExitTampered, "legacy_conflict T")
	check("UPDATE audit_entries SET integrity=''", auditlog.ExitClean, "legacy_only W")
	check("UPDATE audit_entries SET integrity=NULL WHERE rowid=2", auditlog.ExitTampered, "legacy_only W", "downgrade T")
	check("UPDATE audit_entries SET integrity='', signature=''", auditlog.ExitTampered, "unsigned T")
	check("UPDATE audit_entries SET policy='{\"decision\":\"deny\",\"DECISION\":\"allow\"}' WHERE rowid=3", auditlog.ExitTampered, "shadow_key T")
	check("UPDATE audit_entries SET params='{' WHERE rowid=1", auditlog.ExitTampered, "malformed_line T")
	check("UPDATE audit_entries SET duration_ms='18.5' WHERE rowid=1", auditlog.ExitTampered, "malformed_line T")
	check("ALTER TABLE audit_entries ADD COLUMN note TEXT", auditlog.ExitTampered, "unknown_member T")
	check("DELETE FROM audit_entries", auditlog.ExitTampered, "empty_log T")
	// The columns of a first version, with the older signature alone.
	columns = []string{"id", "timestamp", "direction", "transport", "method", "request_id", "tool_name", "params", "result", "error", "duration_ms", "client_id", "server_id", "signature"}
	check("", auditlog.ExitClean, "legacy_only W")
}

func TestOtherDatabasesAreNotTaken(t *testing.T) {
	path := database(t, entryMembers)
	change(t, path, "CREATE TABLE records(seq INTEGER PRIMARY KEY)")
	if found, err := DetectDatabase(t.Context(), path); err != nil || found {
		t.Error(found, err)
	}
	path = database(t, []string{"id", "duration_ms"})
	if _, err := VerifyDatabase(t.Context(), path, withSecret()); err == nil || !strings.Contains(err.Error(), "no column timestamp") {
		t.Error(err)
	}
	junk := filepath.Join(t.TempDir(), "x.db")
	if err := os.WriteFile(junk, []byte("SQLite format 3\x00 and then nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := DetectDatabase(t.Context(), junk); err == nil {
		t.Error("a broken database was read")
	}
}
