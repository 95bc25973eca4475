//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"net/url"
	"path/filepath"
	"strings"

	sqlite3 "github.com/mattn/go-sqlite3"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/dbfile"
)

// Available reports why the package cannot be used in this program: nil.
func Available() error { return nil }

// busyWait is how long a statement waits for a lock that another program has
// taken by SQLite's own means.
const busyWait = "5000"

// connector opens connections to one database. Each is set up by pragmas,
// which must hold from the first statement on.
type connector struct {
	dsn    string
	driver *sqlite3.SQLiteDriver
}

func (c *connector) Connect(context.Context) (driver.Conn, error) { return c.driver.Open(c.dsn) }
func (c *connector) Driver() driver.Driver                        { return c.driver }

// connect prepares a database of one connection; nothing is opened yet. mode
// is that of SQLite's file URIs: rw or ro. The path is absolute and the file
// exists.
func connect(path, mode string, pragmas ...string) *sql.DB {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed
	}
	at := url.URL{Scheme: "file", Path: slashed, RawQuery: "mode=" + mode + "&_busy_timeout=" + busyWait + "&_txlock=immediate"}
	if mode == "ro" {
		at.RawQuery = "mode=ro&_busy_timeout=" + busyWait + "&_query_only=1"
	}
	// A database may come from anywhere: nothing in it may run code, and its
	// pages are not believed.
	pragmas = append([]string{"trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"}, pragmas...)
	dbfile.Note(path)
	db := sql.OpenDB(&connector{at.String(), &sqlite3.SQLiteDriver{ConnectHook: func(c *sqlite3.SQLiteConn) error {
		for _, pragma := range pragmas {
			if _, err := c.Exec("PRAGMA "+pragma, nil); err != nil {
				return err
			}
		}
		return nil
	}}})
	db.SetMaxOpenConns(1)
	return db
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
