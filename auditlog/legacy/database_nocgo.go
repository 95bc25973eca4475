//go:build !cgo

package legacy

import "context"

// DetectDatabase needs SQLite, which this build has not: ErrNoDatabase.
func DetectDatabase(context.Context, string) (bool, error) { return false, ErrNoDatabase }

func readRows(context.Context, string, func(row)) ([]string, error) { return nil, ErrNoDatabase }
