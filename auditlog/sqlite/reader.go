//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Reader reads a log's database as it was at one moment, in one read
// transaction. It takes no lock that a writer waits for, and changes nothing.
// It is not safe for concurrent use.
//
// While a Reader stays at one moment, SQLite's own log file (DB-wal) grows with
// what is written meanwhile: Close it, or call Refresh from time to time.
type Reader struct {
	path  string
	db    *sql.DB
	tx    *sql.Tx
	blank bool // there is no table (yet)
	open  map[*lineReader]bool
	// damage is why nothing, or not everything, can be read.
	damage []error
}

// OpenReader opens the database at path for reading. A database that is
// damaged can be opened; then its source has few or no lines, and Check says why.
func OpenReader(path string) (*Reader, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w", path, auditlog.ErrNotRegular)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	r := &Reader{path: path, db: connect(abs, "ro"), open: map[*lineReader]bool{}}
	if err := r.Refresh(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Refresh moves the reader to the present. It ends what Lines returned.
func (r *Reader) Refresh() error {
	if err := r.leave(); err != nil {
		return err
	}
	ctx := context.Background()
	tx, err := r.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		// The transaction begins with its first reading.
		r.tx = tx
		var n int
		err = tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&n)
		r.blank = err == nil && n == 0
	} else {
		r.blank = true
	}
	return r.noteDamage(named(r.path, err))
}

// noteDamage keeps an error that the verifier reports as a finding; others it
// returns.
func (r *Reader) noteDamage(err error) error {
	if !isDamaged(err) {
		return err
	}
	if len(r.damage) < maxDamage {
		r.damage = append(r.damage, err)
	}
	return nil
}

// maxDamage bounds how many unreadable places are reported.
const maxDamage = 100

func (r *Reader) leave() error {
	if r.tx == nil {
		return nil
	}
	var errs []error
	for l := range r.open {
		errs = append(errs, l.Close())
	}
	err := errors.Join(append(errs, r.tx.Rollback())...)
	r.tx, r.damage = nil, nil
	return err
}

// Close ends the transaction and closes the database.
func (r *Reader) Close() error { return errors.Join(r.leave(), r.db.Close()) }

// Size is the number of bytes of all lines.
func (r *Reader) Size() (int64, error) {
	if r.blank {
		return 0, nil
	}
	size, _, err := end(context.Background(), r.tx)
	return size, named(r.path, err)
}

// ReadAt reads the lines as one text, as io.ReaderAt.
func (r *Reader) ReadAt(p []byte, pos int64) (int, error) {
	if r.blank {
		return 0, io.EOF
	}
	n, err := readAt(context.Background(), r.tx, p, pos)
	return n, named(r.path, err)
}

// Lines reads all lines in order, each with its LF: byte for byte what a JSONL
// log of the same records holds. Rows that a damaged page hides are passed over.
func (r *Reader) Lines() (io.ReadCloser, error) {
	l := &lineReader{r: r, from: math.MinInt64}
	r.open[l] = true
	return l, nil
}

// ReadHashes implements tlog.HashReader over the log's Merkle tree, so that a
// proof needs no pass over the records. What it returns is as stored; a proof
// made of it is to be checked against a signed checkpoint.
func (r *Reader) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	if r.blank {
		return nil, fmt.Errorf("%s has no records", r.path)
	}
	list := make([]tlog.Hash, len(indexes))
	for i, idx := range indexes {
		h, err := scanHash(r.tx.QueryRowContext(context.Background(), selectHash, idx), idx)
		if err != nil {
			return nil, fmt.Errorf("reading hash %d of the tree: %w", idx, named(r.path, err))
		}
		list[i] = h
	}
	return list, nil
}

// Source is the log for verification. The Reader must stay open meanwhile.
func (r *Reader) Source() auditlog.Source {
	return auditlog.Source{Name: r.path, Open: r.Lines, Check: r.check}
}

// lineReader is the io.Reader of Reader.Lines.
type lineReader struct {
	r    *Reader
	rows *lineRows
	from int64 // seq to begin with
	jump int64 // how far to look behind what cannot be read
	rest []byte
	err  error
}

func (l *lineReader) Read(p []byte) (n int, err error) {
	for n < len(p) && l.err == nil {
		if len(l.rest) == 0 {
			if l.err = l.fill(); l.err != nil {
				break
			}
		}
		c := copy(p[n:], l.rest)
		l.rest, n = l.rest[c:], n+c
	}
	if n > 0 {
		return n, nil
	}
	return 0, l.err
}

// fill gets the next line.
func (l *lineReader) fill() (err error) {
	for l.r.tx != nil && !l.r.blank {
		if l.rows == nil {
			l.rows, err = linesFrom(context.Background(), l.r.tx, l.from)
		}
		if err == nil {
			err = l.rows.next()
		}
		if err == nil {
			l.from, l.jump = l.rows.seq+1, 0
			l.rows.line = append(l.rows.line, '\n')
			l.rest = l.rows.line
			return nil
		}
		if err == io.EOF {
			return err
		}
		if err := l.r.noteDamage(l.r.unreadable(named(l.r.path, err))); err != nil {
			return err
		}
		if !l.skip() {
			break
		}
		err = nil
	}
	return io.EOF
}

// unreadable makes damage of the error of a database that has no such table or
// column.
func (r *Reader) unreadable(err error) error {
	if isSchemaError(err) {
		return damaged("schema_mismatch", "the records cannot be read: %w", err)
	}
	return err
}

// skip goes on behind rows that cannot be read, in growing steps.
func (l *lineReader) skip() bool {
	if l.rows == nil {
		return false
	}
	_ = l.rows.close()
	l.rows = nil
	l.jump = max(2*l.jump, 1)
	l.from = max(l.from, 0) + l.jump
	return l.jump < 1<<40
}

func (l *lineReader) Close() error {
	delete(l.r.open, l)
	l.err = fs.ErrClosed
	if l.rows == nil {
		return nil
	}
	return l.rows.close()
}
