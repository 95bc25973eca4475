package dbfile

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestADatabaseIsLookedAtOnce(t *testing.T) {
	dir := t.TempDir()
	looks := 0
	look := func(is bool, err error) func() (bool, error) {
		return func() (bool, error) { looks++; return is, err }
	}
	file, database, noted, odd := filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "a.db"), filepath.Join(dir, "b.db"), filepath.Join(dir, "c.db")
	Note(noted)
	for range 3 {
		for path, want := range map[string]bool{file: false, database: true, noted: true} {
			if is, err := Is(path, look(want, nil)); is != want || err != nil {
				t.Errorf("%s: %v %v", path, is, err)
			}
		}
	}
	if looks != 4 {
		t.Errorf("%d looks", looks)
	}
	if _, err := Is(odd, look(true, errors.New("unreadable"))); err == nil {
		t.Error("no error")
	}
	if is, err := Is(odd, look(false, nil)); is || err != nil {
		t.Errorf("an error was remembered: %v %v", is, err)
	}
}
