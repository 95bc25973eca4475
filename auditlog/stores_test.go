package auditlog_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// The tests that do not look into the files of a store run on both: see
// TestTheOtherStore.

// storeVariable names the store that a run of the tests uses, if it is not jsonl.
const storeVariable = "AUDITLOG_TEST_STORE"

func logName() string {
	if os.Getenv(storeVariable) == "sqlite" {
		return "audit.db"
	}
	return "audit.jsonl"
}

// isDatabase tells a log in a database, closed ones too, from other files.
func isDatabase(path string) bool { return databaseName.MatchString(path) }

var databaseName = regexp.MustCompile(`\.db(\.\d{6}\.\d{8}T\d{6}Z)?$`)

// databases is what the tests do with logs in databases; nil without cgo.
var databases struct {
	store  func(path string, fs fsys.FS) (auditlog.Store, error)
	export func(t testing.TB, path string) []byte
	load   func(t testing.TB, path string, lines []byte)
	source func(t testing.TB, path string) auditlog.Source
}

func storeAt(path string, fs fsys.FS) (auditlog.Store, error) {
	if isDatabase(path) {
		return databases.store(path, fs)
	}
	return jsonl.New(path, jsonl.Options{FS: fs})
}

// exported is the text of a log's lines.
func exported(t testing.TB, path string) []byte { return databases.export(t, path) }

// importLines makes a database of lines as they are, whatever they are.
func importLines(t testing.TB, path string, lines []byte) { databases.load(t, path, lines) }

func sourceOf(t testing.TB, path string) auditlog.Source {
	if isDatabase(path) {
		return databases.source(t, path)
	}
	return auditlog.FileSource(path)
}
