//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

var _ auditlog.EraserStore = (*Store)(nil)

// Record implements auditlog.EraserStore.
func (s *Store) Record(seq uint64) ([]byte, error) {
	ctx := context.Background()
	if err := s.prepare(ctx); err != nil {
		return nil, named(s.path, err)
	}
	rows, err := linesFrom(ctx, s.db, int64(seq))
	if err != nil {
		return nil, named(s.path, err)
	}
	err = rows.next()
	line := append([]byte(nil), rows.line...)
	found := rows.seq == int64(seq)
	if err = errors.Join(err, rows.close()); errors.Is(err, io.EOF) || err == nil && !found {
		return nil, fs.ErrNotExist
	}
	return line, named(s.path, err)
}

// Erase implements auditlog.EraserStore: one transaction, in which the trigger
// that forbids it is dropped and made anew. secure_delete overwrites what the
// pages had; then the write-ahead log, which still has it, is emptied. The
// copy of the reference system's format goes with a whole record, and the row's
// position stays.
func (s *Store) Erase(seq uint64, line []byte) error {
	l, fault := auditlog.SplitLine(line)
	if fault != auditlog.LineOK || l.Seal.Seq != seq {
		return fmt.Errorf("what is to take the place of record %d is no record of that number (%s)", seq, fault)
	}
	text := auditlog.AppendLine(nil, l.Body(), &l.Seal, nil)
	ctx := context.Background()
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return named(s.path, err)
	}
	err = eraseRow(ctx, tx, seq, string(text[:len(text)-1]), l.Open)
	if err != nil {
		return named(s.path, errors.Join(err, tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		return named(s.path, err)
	}
	return s.emptyWAL(ctx)
}

func eraseRow(ctx context.Context, tx *sql.Tx, seq uint64, text string, open []byte) error {
	var had string
	if err := tx.QueryRowContext(ctx, "SELECT line FROM records WHERE seq=?", int64(seq)).Scan(&had); err != nil {
		return err
	}
	if had != text {
		for _, statement := range []string{"DROP TRIGGER records_no_update", "UPDATE records SET line=?,v2=NULL WHERE seq=?", recordsNoUpdate} {
			var args []any
			if statement[0] == 'U' {
				args = []any{text, int64(seq)}
			}
			if _, err := tx.ExecContext(ctx, statement, args...); err != nil {
				return err
			}
		}
	}
	kept := map[string]bool{}
	auditlog.ObjectMembers(open, func(name, _ []byte) bool {
		kept[string(name)] = true
		return true
	})
	fields, err := fieldsOf(ctx, tx, seq)
	if err != nil {
		return err
	}
	for _, field := range fields {
		if kept[field] {
			continue
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM openings WHERE seq=? AND field=?", int64(seq), field); err != nil {
			return err
		}
	}
	return nil
}

func fieldsOf(ctx context.Context, tx *sql.Tx, seq uint64) (fields []string, err error) {
	rows, err := tx.QueryContext(ctx, "SELECT field FROM openings WHERE seq=?", int64(seq))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var field string
		if err := rows.Scan(&field); err != nil {
			return nil, err
		}
		fields = append(fields, field)
	}
	return fields, rows.Err()
}

// emptyWAL moves the write-ahead log into the database and cuts it to nothing.
func (s *Store) emptyWAL(ctx context.Context) error {
	var busy, size, moved int
	if err := s.db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &size, &moved); err != nil {
		return named(s.path, err)
	}
	if busy != 0 {
		return fmt.Errorf("%s: what was erased is still in %s-wal, because a reader holds it; end the reader, and run the command again", s.path, s.path)
	}
	return nil
}
