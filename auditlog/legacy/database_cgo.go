//go:build cgo

package legacy

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"
)

// tableName is the table of a P4ST4S database.
const tableName = "audit_entries"

// open opens a database so that nothing can be written to it.
func open(path string) (*sql.DB, error) {
	address := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: "mode=ro&_query_only=1"}
	return sql.Open("sqlite3", address.String())
}

// DetectDatabase reports whether a SQLite file is a P4ST4S database. One of
// this product has a view of the same name, which does not count.
func DetectDatabase(ctx context.Context, path string) (found bool, err error) {
	db, err := open(path)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables int
	err = db.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_master WHERE type='table' AND name=? AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE type='table' AND name='records')`, tableName).Scan(&tables)
	if err != nil {
		return false, fmt.Errorf("%s is no readable SQLite database: %w", path, err)
	}
	return tables == 1, nil
}

// readRows calls each for every row, in the order of insertion, and returns
// the columns that the format does not know.
func readRows(ctx context.Context, path string, each func(row)) (unknown []string, err error) {
	db, err := open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	there, err := columnsOf(ctx, db)
	if err != nil {
		return nil, err
	}
	known := slices.Concat(requiredColumns, laterColumns)
	for _, name := range there {
		if !slices.Contains(known, name) {
			unknown = append(unknown, name)
		}
	}
	return unknown, scanRows(ctx, db, there, each)
}

func scanRows(ctx context.Context, db *sql.DB, there []string, each func(row)) (err error) {
	var names, selects []string
	for _, name := range slices.Concat(requiredColumns, laterColumns) {
		if slices.Contains(there, name) {
			names = append(names, name)
			// BLOBs and numbers become the text that they stand for.
			selects = append(selects, "CAST("+name+" AS TEXT)")
		} else if slices.Contains(requiredColumns, name) {
			return fmt.Errorf("its table %s has no column %s", tableName, name)
		}
	}
	rows, err := db.QueryContext(ctx, "SELECT "+strings.Join(selects, ",")+" FROM "+tableName+" ORDER BY rowid")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	values := make([]sql.NullString, len(names))
	into := make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		r := make(row, len(names))
		for i, name := range names {
			if values[i].Valid {
				r[name] = values[i].String
			}
		}
		each(r)
	}
	return rows.Err()
}

func columnsOf(ctx context.Context, db *sql.DB) (names []string, err error) {
	rows, err := db.QueryContext(ctx, "SELECT name FROM pragma_table_info(?)", tableName)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
