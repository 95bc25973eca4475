//go:build cgo

package auditlog_test

import (
	"bytes"
	"database/sql"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

func init() {
	databases.store = func(path string, fs fsys.FS) (auditlog.Store, error) {
		return sqlite.New(path, sqlite.Options{FS: fs})
	}
	databases.export = func(t testing.TB, path string) []byte {
		r := openReader(t, path)
		lines, err := r.Lines()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(lines)
		if err != nil {
			t.Fatal(err)
		}
		if err := lines.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		return data
	}
	databases.source = func(t testing.TB, path string) auditlog.Source {
		r := openReader(t, path)
		t.Cleanup(func() { _ = r.Close() })
		return r.Source()
	}
	databases.load = func(t testing.TB, path string, data []byte) {
		if !bytes.HasSuffix(data, []byte("\n")) {
			t.Skip("a database has no half line")
		}
		var lines []string
		for line := range bytes.Lines(data) {
			lines = append(lines, strings.TrimSuffix(string(line), "\n"))
		}
		if err := forge(t, path, lines); err != nil {
			t.Skip("a database cannot hold these lines:", err)
		}
	}
	auditlog.DatabaseOf = func(t testing.TB, name string, lines []string) (auditlog.Source, error) {
		path := filepath.Join(t.TempDir(), name+".db")
		if err := forge(t, path, lines); err != nil {
			return auditlog.Source{}, err
		}
		return databases.source(t, path), nil
	}
}

func openReader(t testing.TB, path string) *sqlite.Reader {
	t.Helper()
	r, err := sqlite.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// attack opens a database as an attacker would who knows it well.
func attack(t testing.TB, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// forge makes a database whose rows are the given lines, with everything else
// as it should be for them. A row's number is that in its seal where the rows
// before allow it.
func forge(t testing.TB, path string, lines []string) (err error) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(path + suffix)
	}
	if err := os.WriteFile(path, pattern(t), 0o600); err != nil {
		t.Fatal(err)
	}
	db := attack(t, path)
	defer func() { _ = db.Close() }()
	must(t, db, "PRAGMA synchronous=OFF")
	triggers := dropTriggers(t, db)
	for _, table := range []string{"records", "openings", "hashes"} {
		must(t, db, "DELETE FROM "+table)
	}
	next, pos, tree := int64(0), 0, true
	for _, line := range lines {
		l, fault := auditlog.SplitLine([]byte(line))
		seq := next
		if fault == auditlog.LineOK || fault == auditlog.LineExtraMember {
			seq = max(next, int64(l.Seal.Seq))
		}
		text := line
		if fault == auditlog.LineOK && l.Open != nil {
			text = strings.TrimSuffix(line, `,"open":`+string(l.Open)+"}") + "}"
			whole := auditlog.ObjectMembers(l.Open, func(name, pair []byte) bool {
				salt, decodeErr := base64.RawURLEncoding.DecodeString(string(pair[2:24]))
				if decodeErr != nil {
					err = decodeErr
					return false
				}
				must(t, db, "INSERT INTO openings VALUES(?,?,?,?)", seq, string(name), salt, string(pair[26:len(pair)-1]))
				return true
			})
			if !whole {
				return errors.New("malformed openings")
			}
		}
		if err != nil {
			return err
		}
		if _, err := db.Exec("INSERT INTO records(seq,pos,line) VALUES(?,?,?)", seq, pos, text); err != nil {
			return err
		}
		if tree = tree && fault == auditlog.LineOK && int64(l.Seal.Seq) == seq && seq == next; tree {
			list, err := tlog.StoredHashesForRecordHash(seq, tlog.Hash(l.Seal.Leaf), tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
				out := make([]tlog.Hash, len(indexes))
				for i, idx := range indexes {
					var h []byte
					if err := db.QueryRow("SELECT h FROM hashes WHERE idx=?", idx).Scan(&h); err != nil {
						return nil, err
					}
					out[i] = tlog.Hash(h)
				}
				return out, nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			for i, h := range list {
				must(t, db, "INSERT INTO hashes VALUES(?,?)", tlog.StoredHashIndex(0, seq)+int64(i), h[:])
			}
		}
		pos += len(line) + 1
		next = seq + 1
	}
	for _, text := range triggers {
		must(t, db, text)
	}
	must(t, db, "PRAGMA wal_checkpoint(TRUNCATE)")
	return nil
}

// pattern is a database of the product's making, as bytes.
func pattern(t testing.TB) []byte {
	patternOnce.Do(func() {
		path := filepath.Join(t.TempDir(), "pattern.db")
		closeLog(t, setup{}.open(t, path))
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		patternBytes = data
	})
	return patternBytes
}

var (
	patternOnce  sync.Once
	patternBytes []byte
)

// dropTriggers removes the triggers and returns how they are made.
func dropTriggers(t testing.TB, db *sql.DB) (texts []string) {
	t.Helper()
	rows, err := db.Query("SELECT name,sql FROM sqlite_master WHERE type='trigger'")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			t.Fatal(err)
		}
		names, texts = append(names, name), append(texts, text)
	}
	if err := rows.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		must(t, db, "DROP TRIGGER "+name)
	}
	return texts
}

func must(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// otherStore lists the tests that do not look into a store's files.
const otherStore = `^(TestALogBeginsAndEndsInOrder|TestCloseEndsWhatIsOpen|` +
	`TestCheckpointsComeByNumberAndByTime|TestConfigurationChangesAreRecorded|TestTwoLogsOfOneProcessShareAFile|` +
	`TestUnencodableTextsNeverBreakARecord|TestManyProcessesShareOneLogWithoutGapOrFork|TestNothingAcknowledgedIsLostWhenProcessesAreKilled|` +
	`TestNoWriteThatFailsOrKillsLosesWhatWasAcknowledged|` +
	`TestAStartOnALargeLogReadsOnlyItsEnd|TestRecover.*|TestRecordsRemovedBeforeABreakAreFound|TestAStartOnATamperedLogIsRefused|` +
	`TestTheWrongKeyIsRefused|TestAnIntentOfADeadProcessIsClosedAsUnknown|TestAnOpenIntentBeforeTheStateIsClosedToo|` +
	`TestTwoOpenersCloseADeadIntentOnce|TestTheIntentOfALivingProcessIsLeftAlone)$`

// The tests of this package run once more, with their logs in SQLite.
func TestTheOtherStore(t *testing.T) {
	if os.Getenv(storeVariable) != "" {
		t.Skip("this is that run")
	}
	args := []string{"-test.run", otherStore, "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), storeVariable+"=sqlite")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := bytes.Count(out, []byte("\n--- PASS")); n < 17 {
		t.Errorf("only %d tests ran:\n%s", n, out)
	}
}
