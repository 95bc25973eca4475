package jsonl

import (
	"errors"
	"os"
)

// renameLog gives the log's file another name. Windows renames no open file,
// so it is closed first.
func (s *Store) renameLog(to string) error {
	if s.log != nil {
		if err := s.log.Close(); err != nil {
			return err
		}
		s.log = nil
	}
	err := s.fs.Rename(s.path, to)
	if err == nil {
		return nil
	}
	return errors.Join(err, s.openLog(os.O_RDWR))
}
