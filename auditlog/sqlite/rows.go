//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"encoding/base64"
	"errors"
	"io"
)

// lineRows reads record lines in the order of their seq, as they are exported:
// with their openings, without LF. It is not safe for concurrent use.
type lineRows struct {
	rows    *sql.Rows
	pending bool // columns holds a row that no record has been made of

	seq, pos int64
	line     []byte // valid until the next call of next
	open     []byte

	columns struct {
		seq, pos                 int64
		line, field, salt, value sql.RawBytes
	}
}

const selectLines = `SELECT r.seq,r.pos,r.line,o.field,o.salt,o.value
FROM records r LEFT JOIN openings o ON o.seq=r.seq WHERE r.seq>=? ORDER BY r.seq,o.field`

// linesFrom begins with the first record whose seq is at least from.
func linesFrom(ctx context.Context, q querier, from int64) (*lineRows, error) {
	rows, err := q.QueryContext(ctx, selectLines, from)
	if err != nil {
		return nil, err
	}
	return &lineRows{rows: rows}, nil
}

// next moves to the next record; io.EOF behind the last.
func (l *lineRows) next() error {
	c := &l.columns
	if !l.pending {
		if err := l.step(); err != nil {
			return err
		}
	}
	l.seq, l.pos = c.seq, c.pos
	l.line, l.open = append(l.line[:0], c.line...), l.open[:0]
	for {
		if c.field != nil {
			l.addOpening()
		}
		err := l.step()
		if err != nil && err != io.EOF {
			return err
		}
		if l.pending = err == nil; !l.pending || c.seq != l.seq {
			break
		}
	}
	if n := len(l.line); n > 0 && len(l.open) > 0 {
		l.line = append(l.line[:n-1], `,"open":{`...)
		l.line = append(append(l.line, l.open...), "}}"...)
	}
	return nil
}

func (l *lineRows) step() error {
	c := &l.columns
	if !l.rows.Next() {
		if err := l.rows.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	return l.rows.Scan(&c.seq, &c.pos, &c.line, &c.field, &c.salt, &c.value)
}

// addOpening adds a member of `open`. Field names are member names of records,
// which need no escapes.
func (l *lineRows) addOpening() {
	c := &l.columns
	if len(l.open) > 0 {
		l.open = append(l.open, ',')
	}
	l.open = append(append(append(l.open, '"'), c.field...), `":["`...)
	l.open = base64.RawURLEncoding.AppendEncode(l.open, c.salt)
	l.open = append(append(append(l.open, `",`...), c.value...), ']')
}

func (l *lineRows) close() error { return l.rows.Close() }

// end is the position behind the last record, and that record's seq plus one;
// both are 0 if there is none.
func end(ctx context.Context, q querier) (pos, next int64, err error) {
	var last sql.NullInt64
	if err := q.QueryRowContext(ctx, "SELECT max(seq) FROM records").Scan(&last); err != nil || !last.Valid {
		return 0, 0, err
	}
	rows, err := linesFrom(ctx, q, last.Int64)
	if err != nil {
		return 0, 0, err
	}
	err = rows.next()
	pos, next = rows.pos+int64(len(rows.line))+1, last.Int64+1
	return pos, next, errors.Join(err, rows.close())
}

// at finds the record in whose line, its LF included, a position lies: the
// last one that begins there or before. Positions grow with seq. It is
// sql.ErrNoRows before the first record.
func at(ctx context.Context, q querier, pos int64) (seq int64, err error) {
	var first, last sql.NullInt64
	if err := q.QueryRowContext(ctx, "SELECT min(seq),max(seq) FROM records").Scan(&first, &last); err != nil {
		return 0, err
	}
	found := false
	for lo, hi := first.Int64, last.Int64; first.Valid && lo <= hi; {
		mid := lo + (hi-lo)/2
		var there, begins int64
		err := q.QueryRowContext(ctx, "SELECT seq,pos FROM records WHERE seq<=? ORDER BY seq DESC LIMIT 1", mid).Scan(&there, &begins)
		if err != nil {
			return 0, err
		}
		if begins <= pos {
			seq, found, lo = there, true, mid+1
		} else {
			hi = there - 1
		}
	}
	if !found {
		return 0, sql.ErrNoRows
	}
	return seq, nil
}

// readAt is io.ReaderAt over all lines.
func readAt(ctx context.Context, q querier, p []byte, pos int64) (n int, err error) {
	if pos < 0 {
		return 0, errors.New("negative position")
	}
	seq, err := at(ctx, q, pos)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, io.EOF
	}
	if err != nil {
		return 0, err
	}
	rows, err := linesFrom(ctx, q, seq)
	if err != nil {
		return 0, err
	}
	defer func() {
		if closed := rows.close(); closed != nil {
			err = errors.Join(err, closed)
		}
	}()
	for begun := false; n < len(p); begun = true {
		if err := rows.next(); err != nil {
			return n, err
		}
		at := pos + int64(n)
		// Where a record was erased, its line is shorter than its place.
		for ; begun && at < rows.pos && n < len(p); at++ {
			p[n] = '\n'
			n++
		}
		line := append(rows.line, '\n')
		if skip := at - rows.pos; skip < int64(len(line)) && n < len(p) {
			n += copy(p[n:], line[max(skip, 0):])
		}
	}
	return n, nil
}
