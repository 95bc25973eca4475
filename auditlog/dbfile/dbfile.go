// Package dbfile tells SQLite databases from other files without costing SQLite
// its locks: while a process has a database open, it must not open and close the
// file by other means, since POSIX gives up all locks of a process on a file
// when it closes any descriptor of it.
//
// So what was found to be a database, or was opened as one, is remembered for
// the life of the process, by its path.
package dbfile

import (
	"path/filepath"
	"sync"
)

var (
	mu    sync.Mutex
	known = make(map[string]struct{})
)

// Note remembers that a file is a database. It is called before the database is
// opened, and waits for a look that is going on.
func Note(path string) {
	mu.Lock()
	defer mu.Unlock()
	known[key(path)] = struct{}{}
}

// Is reports whether a file is a database: by what is remembered, else by look,
// which may open the file and has to close it. What look finds is remembered.
func Is(path string, look func() (bool, error)) (bool, error) {
	mu.Lock()
	defer mu.Unlock()
	if _, ok := known[key(path)]; ok {
		return true, nil
	}
	is, err := look()
	if is && err == nil {
		known[key(path)] = struct{}{}
	}
	return is, err
}

func key(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}
