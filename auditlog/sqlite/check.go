//go:build cgo

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// check derives anew what the database has beside the lines: its schema, its
// indexes, the columns of each row and the tree of hashes.
func (r *Reader) check(ctx context.Context, found auditlog.FoundFunc) error {
	c := checker{r: r, ctx: ctx, found: found}
	for _, err := range r.damage {
		c.report(err)
	}
	if r.tx == nil {
		return nil
	}
	if r.blank {
		found("schema_mismatch", 0, "the database is empty")
		return nil
	}
	for _, step := range []func() error{c.schema, c.integrity, c.columns, c.openings, c.places} {
		if err := c.report(r.unreadable(named(r.path, step()))); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// checker is one run of check.
type checker struct {
	r     *Reader
	ctx   context.Context
	found auditlog.FoundFunc
}

// report makes a finding of damage; other errors it returns.
func (c *checker) report(err error) error {
	var d *auditlog.DamagedError
	if !errors.As(err, &d) {
		return err
	}
	c.found(d.Finding, 0, d.Error())
	return nil
}

func (c *checker) schema() error {
	has, err := definitionOf(c.ctx, c.r.tx)
	if err != nil {
		return err
	}
	want, err := expected(c.ctx)
	if err != nil {
		return err
	}
	for _, difference := range has.differences(want) {
		c.found("schema_mismatch", 0, difference)
	}
	return nil
}

// integrity lets SQLite compare each index with its table, entry by entry, and
// look at every page.
func (c *checker) integrity() error {
	rows, err := c.r.tx.QueryContext(c.ctx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxDamage))
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return err
		}
		if text != "ok" {
			c.found("index_corrupt", 0, "SQLite: "+text)
		}
	}
	return rows.Err()
}

// The computed columns and the members that they are.
var computed = [...]struct{ name, member string }{
	{"ts", "timestamp"}, {"kind", "kind"}, {"method", "method"}, {"tool", "tool_name"},
	{"client", "client_id"}, {"outcome", "outcome"}, {"op", "audit_operation_id"},
}

// columns compares the computed columns of each row, and its number, with its
// line.
func (c *checker) columns() error {
	query := "SELECT seq,line"
	for _, column := range computed {
		query += "," + column.name
	}
	rows, err := c.r.tx.QueryContext(c.ctx, query+" FROM records ORDER BY seq")
	if err != nil {
		return err
	}
	defer rows.Close()
	var seq int64
	var text sql.RawBytes
	var columns [len(computed)]sql.NullString
	into := []any{&seq, &text}
	for i := range columns {
		into = append(into, &columns[i])
	}
	for line := 1; rows.Next(); line++ {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		c.row(line, seq, text, columns[:])
	}
	return rows.Err()
}

func (c *checker) row(line int, seq int64, text []byte, columns []sql.NullString) {
	record, fault := auditlog.ParseRecord(text)
	if fault != auditlog.LineOK {
		return // that is a finding already
	}
	if record.Line.Seal.Seq != uint64(seq) {
		c.found("derived_column_mismatch", line, fmt.Sprintf("the column seq is %d, but the record is number %d", seq, record.Line.Seal.Seq))
	}
	for i, column := range columns {
		member := record.Member(computed[i].member)
		want := record.Text(computed[i].member)
		if want == "" && len(member) > 0 && member[0] != '"' {
			want = string(member)
		}
		if column.Valid != (member != nil) || column.String != want {
			c.found("derived_column_mismatch", line, fmt.Sprintf("the column %s is %q, but the record says %q", computed[i].name, column.String, want))
		}
	}
}

// openings looks for those of records that are not there. The others stand in
// the lines, and are checked with them.
func (c *checker) openings() error {
	var n, first sql.NullInt64
	err := c.r.tx.QueryRowContext(c.ctx, "SELECT count(*),min(seq) FROM openings WHERE seq NOT IN (SELECT seq FROM records)").Scan(&n, &first)
	if err == nil && n.Int64 > 0 {
		c.found("opening_unbound", 0, fmt.Sprintf("%d openings belong to no record, the first to record %d", n.Int64, first.Int64))
	}
	return err
}

// places compares the position of each row with the lines before it, and the
// hashes with the tree over the leaves that the seals state.
func (c *checker) places() (err error) {
	lines, err := linesFrom(c.ctx, c.r.tx, math.MinInt64)
	if err != nil {
		return err
	}
	tree, err := c.tree()
	if err != nil {
		return errors.Join(err, lines.close())
	}
	defer func() { err = errors.Join(err, lines.close(), tree.stored.Close()) }()
	next, pos, erased := int64(0), int64(0), false
	for n := 1; ; n++ {
		switch err := lines.next(); {
		case err == io.EOF:
			return tree.end()
		case err != nil:
			return err
		}
		// What was erased leaves its place empty.
		if lines.seq == next && lines.pos != pos && !(erased && lines.pos > pos) {
			c.found("derived_column_mismatch", n, fmt.Sprintf("the column pos is %d, where %d bytes of lines lie before", lines.pos, pos))
		}
		next, pos = lines.seq+1, lines.pos+int64(len(lines.line))+1
		l, fault := auditlog.SplitLine(lines.line)
		erased = fault == auditlog.LineOK && l.Shortened()
		if err := tree.line(n, lines.seq, lines.line); err != nil {
			return err
		}
	}
}

// treeCheck compares the stored hashes, which it reads in their order.
type treeCheck struct {
	c      *checker
	stored *sql.Rows
	next   int64               // record
	over   bool                // what follows cannot be compared
	nodes  map[int64]tlog.Hash // that are needed for others
}

func (c *checker) tree() (*treeCheck, error) {
	stored, err := c.r.tx.QueryContext(c.ctx, "SELECT idx,h FROM hashes ORDER BY idx")
	return &treeCheck{c: c, stored: stored, nodes: map[int64]tlog.Hash{}}, err
}

// ReadHashes implements tlog.HashReader. Each node is asked for once.
func (t *treeCheck) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	list := make([]tlog.Hash, len(indexes))
	for i, idx := range indexes {
		list[i] = t.nodes[idx]
		delete(t.nodes, idx)
	}
	return list, nil
}

// line compares the hashes that a record adds. Where records are missing, or
// the log's beginning is elsewhere, the place of the rest is unknown; that
// records are missing is a finding already.
func (t *treeCheck) line(n int, seq int64, text []byte) error {
	if t.over {
		return nil
	}
	l, fault := auditlog.SplitLine(text)
	if fault != auditlog.LineOK || int64(l.Seal.Seq) != t.next || seq != t.next {
		t.over = true
		return nil
	}
	list, err := tlog.StoredHashesForRecordHash(seq, tlog.Hash(l.Seal.Leaf), t)
	if err != nil {
		return err
	}
	at := tlog.StoredHashIndex(0, seq)
	for i, h := range list {
		var idx int64
		var raw sql.RawBytes
		if t.stored.Next() {
			if err := t.stored.Scan(&idx, &raw); err != nil {
				return err
			}
		}
		if idx != at+int64(i) || string(raw) != string(h[:]) {
			t.over = true
			t.c.found("derived_column_mismatch", n, fmt.Sprintf("hash %d of the tree is missing or not that of the records", at+int64(i)))
			return t.stored.Err()
		}
	}
	last := len(list) - 1
	t.nodes[at+int64(last)] = list[last]
	t.next++
	return nil
}

func (t *treeCheck) end() error {
	if !t.over && t.stored.Next() {
		t.c.found("derived_column_mismatch", 0, "the tree has hashes behind those of the last record")
	}
	return t.stored.Err()
}
