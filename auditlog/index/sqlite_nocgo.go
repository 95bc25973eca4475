//go:build !cgo

package index

import "database/sql"

// available is why no index can be opened.
var available = ErrNoCGO

func openSQLite(string, string) (*sql.DB, error) { return nil, ErrNoCGO }

func isDamaged(error) bool { return false }
