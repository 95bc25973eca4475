//go:build !cgo

package index

import "database/sql"

func openSQLite(string, string) (*sql.DB, error) { return nil, ErrNoCGO }

func isDamaged(error) bool { return false }
