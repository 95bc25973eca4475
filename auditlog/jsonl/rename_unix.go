//go:build !windows

package jsonl

// renameLog gives the log's file another name.
func (s *Store) renameLog(to string) error { return s.fs.Rename(s.path, to) }
