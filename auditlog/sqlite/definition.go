//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	sqlite3 "github.com/mattn/go-sqlite3"
)

// definition is what a database is made of: the SQL text of each table, index,
// trigger and view, by type and name.
type definition map[string]string

// definitionOf reads the definition of a database. What ANALYZE keeps is left
// out: it holds no records and decides nothing but the plans of queries.
func definitionOf(ctx context.Context, q querier) (d definition, err error) {
	rows, err := q.QueryContext(ctx, "SELECT type,name,coalesce(sql,'') FROM sqlite_master")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	d = definition{}
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(name, "sqlite_stat") {
			d[kind+" "+name] = text
		}
	}
	return d, rows.Err()
}

// expected is the definition that the schema gives, as this SQLite keeps it.
func expected(ctx context.Context) (d definition, err error) {
	db := sql.OpenDB(&connector{":memory:", new(sqlite3.SQLiteDriver)})
	db.SetMaxOpenConns(1)
	defer db.Close()
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, err
	}
	return definitionOf(ctx, db)
}

// differences says, in a stable order, what of the schema a database lacks,
// has otherwise, or has beside it.
func (d definition) differences(want definition) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		text, ok := d[name]
		switch {
		case !ok:
			list = append(list, fmt.Sprintf("the %s is missing", name))
		case text != want[name]:
			list = append(list, fmt.Sprintf("the %s is not defined as it should be", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d)) {
		if _, ok := want[name]; !ok {
			list = append(list, fmt.Sprintf("the %s does not belong there", name))
		}
	}
	return list
}
