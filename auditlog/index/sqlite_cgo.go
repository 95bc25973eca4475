//go:build cgo

package index

import (
	"database/sql"
	"errors"
	"net/url"

	"github.com/mattn/go-sqlite3"
)

// available is why no index can be opened.
var available error

// openSQLite opens a database with options in the form of a URL's query.
func openSQLite(path, options string) (*sql.DB, error) {
	return sql.Open("sqlite3", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+options)
}

// isDamaged reports whether an error says that a database is not what it
// should be, so that making it anew helps.
func isDamaged(err error) bool {
	var e sqlite3.Error
	if !errors.As(err, &e) {
		return errors.Is(err, errSchema)
	}
	return e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB || e.Code == sqlite3.ErrError || e.Code == sqlite3.ErrConstraint
}
