package index

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Report says what an update did.
type Report struct {
	Added   int64    // records indexed by this update
	Records int64    // records in the index
	Faults  int64    // lines of the log that are no records
	Notes   []string // sentences about what was made anew, and about faults
}

// batch is how many lines one transaction indexes, of an update that is gentle
// fewer. Between two, other processes get their turn.
const (
	batch       = 10_000
	gentleBatch = 1000
)

// Update indexes what the files of a log, oldest first, have gained. Records
// of files that are gone or were rewritten are forgotten, and indexed anew from
// what is there now. It reads up to the last whole line of each file, takes no
// lock of the log, and needs memory for one line. An index found to be damaged
// is made anew, once.
func (x *Index) Update(ctx context.Context, files []string) (*Report, error) {
	return x.UpdateGently(ctx, files, nil)
}

// UpdateGently is Update for a program that has other work: it calls pause
// after each few thousand lines, with the time that they took.
func (x *Index) UpdateGently(ctx context.Context, files []string, pause func(took time.Duration)) (*Report, error) {
	x.mu.RLock()
	report, err := x.update(ctx, files, pause)
	x.mu.RUnlock()
	if err == nil || !isDamaged(err) {
		return report, err
	}
	why := err
	if err := x.renew(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the index %s is damaged (%w) and cannot be made anew; delete it", x.path, why), err)
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if report, err = x.update(ctx, files, pause); err != nil {
		return nil, err
	}
	report.Notes = append([]string{fmt.Sprintf("the index %s was damaged (%v) and is made anew", x.path, why)}, report.Notes...)
	return report, nil
}

// part is a file of the log that is being indexed.
type part struct {
	path string
	head string
	id   int64   // of its row
	s    segment // nil: it is as it was when it was indexed
	was  fileState
}

// open opens the file, of which nothing is known yet.
func (p *part) open() (err error) {
	p.id = 0
	if p.was, err = stateOf(p.path); err != nil {
		return err
	}
	if p.s, err = openSegment(p.path); err != nil {
		p.s = nil
		return err
	}
	if p.head, err = headOf(p.s); err != nil {
		return fmt.Errorf("reading %s: %w", p.path, err)
	}
	return nil
}

func (x *Index) update(cancel context.Context, files []string, pause func(time.Duration)) (report *Report, err error) {
	ctx := uncancelled(cancel)
	report = new(Report)
	var parts []part
	defer func() {
		for _, p := range parts {
			if p.s != nil {
				err = errors.Join(err, p.s.Close())
			}
		}
	}()
	for _, path := range files {
		if p, ok := x.asBefore(path); ok {
			parts = append(parts, p)
			continue
		}
		p := part{path: path}
		err := p.open()
		if p.s != nil {
			parts = append(parts, p)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := x.match(ctx, parts, report); err != nil {
		return nil, fmt.Errorf("updating the index %s: %w", x.path, err)
	}
	most := batch
	if pause != nil {
		most = gentleBatch
	}
	for i := range parts {
		for more := parts[i].id != 0 && parts[i].s != nil; more; {
			if err := cancel.Err(); err != nil {
				return nil, err
			}
			began := time.Now()
			if more, err = x.step(ctx, &parts[i], report, most); err == nil && more && pause != nil {
				pause(time.Since(began))
			}
			if err != nil {
				return nil, fmt.Errorf("updating the index %s: %w", x.path, err)
			}
		}
	}
	x.remember(parts)
	return report, x.total(ctx, report)
}

// row is what the index knows of a file.
type row struct {
	id, ord          int64
	path             string
	file             int64
	head             string
	lastPos, lastLen sql.NullInt64
	lastChain        []byte
	used             bool
}

// match finds the rows of the files, makes new ones, and forgets the rest.
func (x *Index) match(ctx context.Context, parts []part, report *Report) (err error) {
	tx, err := x.w.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	known, err := rowsOf(ctx, tx)
	if err != nil {
		return err
	}
	for i := range parts {
		// Another process may have made another row for the file.
		p := &parts[i]
		if p.s == nil && !slices.ContainsFunc(known, func(r row) bool { return r.id == p.id && r.head == p.head && r.file == int64(p.was.id) }) {
			if err := p.open(); err != nil {
				return err
			}
		}
	}
	for i := range parts {
		p := &parts[i]
		if p.head == "" {
			continue
		}
		for j := range known {
			r := &known[j]
			if p.s == nil && r.id != p.id || p.s != nil && (r.used || r.head != p.head || r.file != int64(p.s.fileID())) {
				continue
			}
			same := p.s == nil
			if !same {
				if same, err = r.fits(p.s); err != nil {
					return err
				}
			}
			if same {
				r.used, p.id = true, r.id
				_, err = tx.ExecContext(ctx, `UPDATE segments SET ord=?,path=? WHERE id=? AND (ord<>? OR path<>?)`, i, p.path, p.id, i, p.path)
				if err != nil {
					return err
				}
				break
			}
			report.Notes = append(report.Notes, fmt.Sprintf("%s was cut or rewritten since it was indexed; it is indexed anew", p.path))
		}
	}
	for _, r := range known {
		if r.used {
			continue
		}
		if err := forget(ctx, tx, &r, parts, report); err != nil {
			return err
		}
	}
	for i := range parts {
		p := &parts[i]
		if p.head == "" || p.id != 0 {
			continue
		}
		result, err := tx.ExecContext(ctx, `INSERT INTO segments(ord,path,file,head) VALUES(?,?,?,?)`, i, p.path, int64(p.s.fileID()), []byte(p.head))
		if err != nil {
			return err
		}
		if p.id, err = result.LastInsertId(); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func rowsOf(ctx context.Context, tx *sql.Tx) (known []row, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT id,ord,path,file,head,last_pos,last_len,last_chain FROM segments ORDER BY ord`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.id, &r.ord, &r.path, &r.file, &r.head, &r.lastPos, &r.lastLen, &r.lastChain); err != nil {
			return nil, err
		}
		known = append(known, r)
	}
	return known, rows.Err()
}

// fits reports whether the newest record that was indexed is still where it
// was.
func (r *row) fits(s segment) (bool, error) {
	if !r.lastPos.Valid {
		return true, nil
	}
	line, err := s.line(nil, r.lastPos.Int64, int(r.lastLen.Int64))
	if errors.Is(err, errShort) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	l, fault := auditlog.SplitLine(line)
	return (fault == auditlog.LineOK || fault == auditlog.LineExtraMember) && bytes.Equal(l.Seal.Chain[:], r.lastChain), nil
}

// forget drops the records of a file that is not there any more.
func forget(ctx context.Context, tx *sql.Tx, r *row, parts []part, report *Report) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM records WHERE segment=?`, r.id); err != nil {
		return err
	}
	for _, statement := range []string{`DELETE FROM hours WHERE segment=?`, `DELETE FROM rollup WHERE segment=?`, `DELETE FROM segments WHERE id=?`} {
		if _, err := tx.ExecContext(ctx, statement, r.id); err != nil {
			return err
		}
	}
	for _, p := range parts {
		if p.path == r.path && p.s != nil && (p.head != r.head || int64(p.s.fileID()) != r.file) {
			report.Notes = append(report.Notes, fmt.Sprintf("%s is another file than the one that was indexed; it is indexed anew", p.path))
			return nil
		}
	}
	return nil
}

const insertRecord = `INSERT INTO records(segment,pos,len,line,seq,leaf,kind,at,op,intent_seq,direction,method,tool,name,client,server,principal,outcome,decision,rule,duration,status)
VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)`

// place is how far a file is indexed.
type place struct {
	next, lines       int64
	records           int64
	faults, faultLine int64
	origin            string
	lastPos, lastLen  any
	lastChain         any
}

// step indexes one batch of a file in one transaction, and reports whether
// there may be more. It goes on from where the index is, which another process
// may have moved.
func (x *Index) step(ctx context.Context, p *part, report *Report, most int) (more bool, err error) {
	tx, err := x.w.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	var at place
	err = tx.QueryRowContext(ctx, `SELECT next,lines,records,faults,fault_line,origin,last_pos,last_len,last_chain FROM segments WHERE id=?`, p.id).
		Scan(&at.next, &at.lines, &at.records, &at.faults, &at.faultLine, &at.origin, &at.lastPos, &at.lastLen, &at.lastChain)
	if errors.Is(err, sql.ErrNoRows) {
		// Another process saw other files, and has to do with them.
		return false, tx.Rollback()
	}
	if err != nil {
		return false, err
	}
	before := at
	sums := newSums(p.id)
	if more, err = x.fill(ctx, tx, p, &at, sums, most); err != nil {
		return false, err
	}
	if at.lines == before.lines {
		return false, tx.Rollback()
	}
	_, err = tx.ExecContext(ctx, `UPDATE segments SET next=?,lines=?,records=?,faults=?,fault_line=?,origin=?,last_pos=?,last_len=?,last_chain=? WHERE id=?`,
		at.next, at.lines, at.records, at.faults, at.faultLine, at.origin, at.lastPos, at.lastLen, at.lastChain, p.id)
	if err == nil {
		err = sums.store(ctx, tx)
	}
	if err != nil {
		return false, err
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	report.Added += at.records - before.records
	return more, nil
}

// fill indexes lines from a place on.
func (x *Index) fill(ctx context.Context, tx *sql.Tx, p *part, at *place, sums *sums, most int) (more bool, err error) {
	lines, err := p.s.scan(at.next)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, lines.Close()) }()
	insert, err := tx.PrepareContext(ctx, insertRecord)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, insert.Close()) }()
	for n := 0; n < most; n++ {
		pos, line, err := lines.next()
		if err == io.EOF {
			return false, nil
		}
		if err != nil && !errors.Is(err, auditlog.ErrLineTooLong) {
			return false, fmt.Errorf("reading %s behind line %d: %w", p.path, at.lines, err)
		}
		at.lines++
		at.next = lines.cursor()
		r, fault := auditlog.ParseRecord(line)
		if err != nil || fault != auditlog.LineOK && fault != auditlog.LineExtraMember {
			if at.faults++; at.faultLine == 0 {
				at.faultLine = at.lines
			}
			continue
		}
		if err := add(ctx, insert, p.id, pos, at, &r, sums); err != nil {
			return false, err
		}
	}
	return true, nil
}

// add indexes one record.
func add(ctx context.Context, insert *sql.Stmt, segment, pos int64, at *place, r *auditlog.Record, sums *sums) error {
	c := columnsOf(r)
	sums.add(&c, pos)
	if at.records++; at.origin == "" {
		at.origin = c.origin
	}
	seal := &r.Line.Seal
	at.lastPos, at.lastLen, at.lastChain = pos, len(r.Raw), seal.Chain[:]
	_, err := insert.ExecContext(ctx, segment, pos, len(r.Raw), at.lines, int64(seal.Seq), seal.Leaf[:], c.kind, c.at,
		c.op, c.intentSeq, null(c.direction), null(c.method), null(c.tool), null(c.name),
		null(c.client), null(c.server), null(c.principal), null(c.outcome), null(c.decision), null(c.rule), c.duration, c.status)
	return err
}

// total fills in what is said of the whole index.
func (x *Index) total(ctx context.Context, report *Report) error {
	rows, err := x.w.QueryContext(ctx, `SELECT path,records,faults,fault_line FROM segments ORDER BY ord`)
	if err != nil {
		return fmt.Errorf("reading the index %s: %w", x.path, err)
	}
	defer rows.Close()
	for rows.Next() {
		var path string
		var records, faults, line int64
		if err := rows.Scan(&path, &records, &faults, &line); err != nil {
			return fmt.Errorf("reading the index %s: %w", x.path, err)
		}
		report.Records += records
		if report.Faults += faults; faults > 0 {
			report.Notes = append(report.Notes, fmt.Sprintf("%d lines of %s are no records, the first is line %d; run `mcp-audit verify`", faults, path, line))
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading the index %s: %w", x.path, err)
	}
	return nil
}
