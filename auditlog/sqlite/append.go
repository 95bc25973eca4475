//go:build cgo

package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// inserts are the prepared statements of an append.
type inserts struct {
	record, opening, hash, read *sql.Stmt
}

func (i *inserts) prepare(ctx context.Context, db *sql.DB) (err error) {
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&i.record, "INSERT INTO records(seq,pos,line) VALUES(?,?,?)"},
		{&i.opening, "INSERT INTO openings(seq,field,salt,value) VALUES(?,?,?,?)"},
		{&i.hash, "INSERT INTO hashes(idx,h) VALUES(?,?)"},
		{&i.read, selectHash},
	} {
		if *p.stmt, err = db.PrepareContext(ctx, p.text); err != nil {
			return err
		}
	}
	return nil
}

func (i *inserts) close() error {
	var errs []error
	for _, stmt := range []*sql.Stmt{i.record, i.opening, i.hash, i.read} {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	*i = inserts{}
	return errors.Join(errs...)
}

// Append implements auditlog.Store: one transaction, so that either all lines
// are in the log or none is.
func (s *Store) Append(batch []byte, pos int64) error {
	if pos < s.end {
		return s.same(batch, pos)
	}
	if pos > s.end {
		return fmt.Errorf("%s ends at %d, so nothing can be written at %d", s.path, s.end, pos)
	}
	ctx := context.Background()
	if err := s.prepare(ctx); err != nil {
		return named(s.path, err)
	}
	next, err := s.appendAll(ctx, batch)
	if err != nil {
		return named(s.path, err)
	}
	s.end, s.next = pos+int64(len(batch)), next
	return nil
}

func (s *Store) appendAll(ctx context.Context, batch []byte) (next int64, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	a := appending{
		ctx: ctx, pos: s.end, next: s.next,
		into:  inserts{tx.StmtContext(ctx, s.insert.record), tx.StmtContext(ctx, s.insert.opening), tx.StmtContext(ctx, s.insert.hash), tx.StmtContext(ctx, s.insert.read)},
		fresh: map[int64]tlog.Hash{},
	}
	for len(batch) > 0 && err == nil {
		line, rest, whole := bytes.Cut(batch, []byte{'\n'})
		if !whole {
			err = errors.New("a batch does not end with a whole line")
			break
		}
		err = a.line(line)
		batch = rest
	}
	if err != nil {
		return 0, errors.Join(err, tx.Rollback())
	}
	return a.next, tx.Commit()
}

// same checks that what is to be written at a position before the end is what
// is there. After a failed flush the log writes its last part again; a database
// writes it itself, see moveAll.
func (s *Store) same(batch []byte, pos int64) error {
	there := make([]byte, len(batch))
	if _, err := s.ReadAt(there, pos); err != nil {
		return err
	}
	if !bytes.Equal(there, batch) {
		return fmt.Errorf("%s: other records are there than those to be written", s.path)
	}
	return nil
}

// appending is one transaction that appends lines.
type appending struct {
	ctx   context.Context
	into  inserts
	pos   int64
	next  int64
	fresh map[int64]tlog.Hash // hashes that this transaction added
}

func (a *appending) line(line []byte) error {
	l, fault := auditlog.SplitLine(line)
	if fault != auditlog.LineOK {
		return fmt.Errorf("a line to be written is no sealed record (%s)", fault)
	}
	seq := int64(l.Seal.Seq)
	if seq != a.next && a.next > 0 {
		return fmt.Errorf("record %d is to be written behind record %d", seq, a.next-1)
	}
	text := line
	if l.Open != nil {
		text = line[:len(line)-len(`,"open":}`)-len(l.Open)]
		text = append(text[:len(text):len(text)], '}')
		if err := a.openings(seq, l.Open); err != nil {
			return err
		}
	}
	if _, err := a.into.record.ExecContext(a.ctx, seq, a.pos, string(text)); err != nil {
		return err
	}
	a.pos += int64(len(line)) + 1
	a.next = seq + 1
	return a.hash(seq, tlog.Hash(l.Seal.Leaf))
}

// openings keeps the members of a line's `open`: a salt and a value each.
func (a *appending) openings(seq int64, open []byte) (err error) {
	whole := auditlog.ObjectMembers(open, func(name, pair []byte) bool {
		salt, value, ok := splitOpening(pair)
		if !ok {
			err = fmt.Errorf("record %d: the opening %q is malformed", seq, name)
			return false
		}
		_, err = a.into.opening.ExecContext(a.ctx, seq, string(name), salt, string(value))
		return err == nil
	})
	if err == nil && !whole {
		err = fmt.Errorf("record %d: its openings are malformed", seq)
	}
	return err
}

// hash adds a leaf to the tree. A log whose beginning is elsewhere has no left
// part of the tree to continue, so only its leaves are kept.
func (a *appending) hash(seq int64, leaf tlog.Hash) error {
	list, err := tlog.StoredHashesForRecordHash(seq, leaf, tlog.HashReaderFunc(a.hashes))
	if errors.Is(err, sql.ErrNoRows) {
		list, err = []tlog.Hash{leaf}, nil
	}
	if err != nil {
		return err
	}
	at := tlog.StoredHashIndex(0, seq)
	for i, h := range list {
		if _, err := a.into.hash.ExecContext(a.ctx, at+int64(i), h[:]); err != nil {
			return err
		}
		a.fresh[at+int64(i)] = h
	}
	return nil
}

// hashes reads hashes of the tree.
func (a *appending) hashes(indexes []int64) ([]tlog.Hash, error) {
	list := make([]tlog.Hash, len(indexes))
	for i, idx := range indexes {
		if h, ok := a.fresh[idx]; ok {
			list[i] = h
			continue
		}
		h, err := scanHash(a.into.read.QueryRowContext(a.ctx, idx), idx)
		if err != nil {
			return nil, err
		}
		list[i] = h
	}
	return list, nil
}

const selectHash = "SELECT h FROM hashes WHERE idx=?"

func scanHash(row *sql.Row, idx int64) (h tlog.Hash, err error) {
	var raw []byte
	if err := row.Scan(&raw); err != nil {
		return h, err
	}
	if len(raw) != tlog.HashSize {
		return h, fmt.Errorf("hash %d of the tree has %d bytes", idx, len(raw))
	}
	return tlog.Hash(raw), nil
}

// Truncate implements auditlog.Store. A transaction leaves nothing half
// written, so there is only something to cut if rows were added that are no
// records. The triggers that forbid it are made anew in the same transaction.
func (s *Store) Truncate(size int64) error {
	ctx := context.Background()
	var err error
	if s.blank {
		return nil
	}
	if s.end, s.next, err = end(ctx, s.db); err != nil {
		return named(s.path, err)
	}
	if size == s.end {
		return nil
	}
	if size > s.end {
		return fmt.Errorf("%s ends at %d, so it cannot be cut to %d", s.path, s.end, size)
	}
	seq, err := at(ctx, s.db, size)
	if err != nil {
		return named(s.path, err)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return named(s.path, err)
	}
	_, err = tx.ExecContext(ctx, "DROP TRIGGER records_no_delete;DROP TRIGGER hashes_no_delete")
	for _, table := range []struct {
		del  string
		from int64
	}{
		{"DELETE FROM records WHERE seq>=?", seq},
		{"DELETE FROM openings WHERE seq>=?", seq},
		{"DELETE FROM hashes WHERE idx>=?", tlog.StoredHashIndex(0, seq)},
	} {
		if err == nil {
			_, err = tx.ExecContext(ctx, table.del, table.from)
		}
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, strings.TrimSpace(deleteTriggers))
	}
	if err != nil {
		return named(s.path, errors.Join(err, tx.Rollback()))
	}
	if err := tx.Commit(); err != nil {
		return named(s.path, err)
	}
	return named(s.path, s.lookAnew(ctx))
}
