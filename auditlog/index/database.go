package index

import (
	"database/sql"
	"errors"
	"fmt"
	"io"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// database is a log in SQLite; positions and cursors are numbers of records.
type database struct {
	db   *sql.DB
	path string
	id   uint64
	// openings says whether the database has a table of disclosed values.
	openings bool
}

// openDatabase opens a log in SQLite for reading.
func openDatabase(path string, id uint64) (segment, error) {
	db, err := openSQLite(path, "mode=ro&_query_only=1&_busy_timeout=10000")
	if err != nil {
		return nil, err
	}
	d := &database{db: db, path: path, id: id}
	var records, openings int
	err = db.QueryRow(`SELECT count(*) FILTER (WHERE name='records'), count(*) FILTER (WHERE name='openings') FROM sqlite_schema WHERE type='table'`).Scan(&records, &openings)
	if err == nil && records == 0 {
		err = errors.New("it has no table of records, so that it is no audit log")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("reading the database %s: %w", path, err), db.Close())
	}
	d.openings = openings > 0
	return d, nil
}

func (d *database) fileID() uint64 { return d.id }

func (d *database) Close() error { return d.db.Close() }

func (d *database) scan(cursor int64) (scanner, error) {
	rows, err := d.db.Query(`SELECT seq,line FROM records WHERE seq>=? ORDER BY seq`, cursor)
	if err != nil {
		return nil, fmt.Errorf("reading the database %s: %w", d.path, err)
	}
	return &rowScanner{rows: rows, path: d.path, at: cursor}, nil
}

func (d *database) line(dst []byte, pos int64, _ int) ([]byte, error) {
	var text sql.RawBytes
	rows, err := d.db.Query(`SELECT line FROM records WHERE seq=?`, pos)
	if err != nil {
		return nil, fmt.Errorf("reading the database %s: %w", d.path, err)
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, errors.Join(errShort, rows.Err())
	}
	if err := rows.Scan(&text); err != nil {
		return nil, fmt.Errorf("reading record %d of the database %s: %w", pos, d.path, err)
	}
	line := append(dst[:0], text...)
	if !d.openings {
		return line, nil
	}
	return d.disclose(line, pos)
}

// disclose puts the disclosed values of a record, if there are any, back into
// its line.
func (d *database) disclose(line []byte, seq int64) ([]byte, error) {
	rows, err := d.db.Query(`SELECT field,salt,value FROM openings WHERE seq=? ORDER BY field`, seq)
	if err != nil {
		return nil, fmt.Errorf("reading the database %s: %w", d.path, err)
	}
	defer rows.Close()
	var open []byte
	for rows.Next() {
		var field, value string
		var salt []byte
		if err := rows.Scan(&field, &salt, &value); err != nil {
			return nil, fmt.Errorf("reading record %d of the database %s: %w", seq, d.path, err)
		}
		if open = append(open, ','); len(open) == 1 {
			open[0] = '{'
		}
		open = canon.AppendString(open, field)
		open = append(open, `:["`...)
		open = saltText.AppendEncode(open, salt)
		open = append(append(append(open, `",`...), value...), ']')
	}
	if err := rows.Err(); err != nil || open == nil || len(line) == 0 {
		return line, err
	}
	line = append(line[:len(line)-1], `,"open":`...)
	return append(append(line, open...), "}}"...), nil
}

type rowScanner struct {
	rows *sql.Rows
	path string
	at   int64 // cursor
	text sql.RawBytes
}

func (s *rowScanner) next() (seq int64, line []byte, err error) {
	if !s.rows.Next() {
		if err := s.rows.Err(); err != nil {
			return 0, nil, fmt.Errorf("reading the database %s: %w", s.path, err)
		}
		return 0, nil, io.EOF
	}
	if err := s.rows.Scan(&seq, &s.text); err != nil {
		return 0, nil, fmt.Errorf("reading record %d of the database %s: %w", s.at, s.path, err)
	}
	s.at = seq + 1
	return seq, s.text, nil
}

func (s *rowScanner) cursor() int64 { return s.at }

func (s *rowScanner) Close() error { return s.rows.Close() }
