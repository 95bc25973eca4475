//go:build cgo

package index

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// A log in SQLite is indexed by the numbers of its records, and its disclosed
// values are part of what is read.
func TestALogInSQLiteIsIndexed(t *testing.T) {
	data, err := os.ReadFile("../testdata/evidence-vector.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.db")
	db, err := openSQLite(path, "mode=rwc&_journal_mode=WAL")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE records(seq INTEGER PRIMARY KEY,line TEXT NOT NULL) STRICT;
CREATE TABLE openings(seq INTEGER,field TEXT,salt BLOB NOT NULL,value TEXT NOT NULL,PRIMARY KEY(seq,field)) STRICT,WITHOUT ROWID;`); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
	add := func(seq int) {
		line := lines[seq]
		r, _ := auditlog.ParseRecord(line)
		if len(r.Line.Open) > 0 {
			at := bytes.LastIndex(line, []byte(`,"open":`))
			line = append(bytes.Clone(line[:at]), '}')
			auditlog.ObjectMembers(r.Line.Open, func(name, pair []byte) bool {
				salt, err := saltText.DecodeString(string(pair[2:24]))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := db.Exec(`INSERT INTO openings VALUES(?,?,?,?)`, seq, string(name), salt, string(pair[26:len(pair)-1])); err != nil {
					t.Fatal(err)
				}
				return true
			})
		}
		if _, err := db.Exec(`INSERT INTO records VALUES(?,?)`, seq, string(line)); err != nil {
			t.Fatal(err)
		}
	}
	add(0)
	add(1)
	x := openIndex(t, path)
	if report := update(t, x, path); report.Added != 2 {
		t.Errorf("%+v", report)
	}
	add(2)
	if report := update(t, x, path); report.Added != 1 || len(report.Notes) > 0 {
		t.Errorf("%+v", report)
	}
	list := entries(t, x, Filter{})
	if len(list) != 1 || list[0].Seq != 2 || list[0].Intent == nil {
		t.Fatalf("%+v", list)
	}
	var reader Lines
	defer reader.Close()
	for seq, p := range map[int]*Place{1: list[0].Intent, 2: &list[0].Place} {
		r, _, changed, err := reader.Read(nil, p)
		if err != nil || changed || !bytes.Equal(r.Raw, lines[seq]) {
			t.Errorf("record %d: %v %v\n%s\n%s", seq, err, changed, r.Raw, lines[seq])
		}
	}
	if _, err := db.Exec(`DELETE FROM records WHERE seq=2`); err != nil {
		t.Fatal(err)
	}
	if report := update(t, x, path); len(report.Notes) != 1 || report.Records != 2 {
		t.Errorf("cut: %+v", report)
	}
}
