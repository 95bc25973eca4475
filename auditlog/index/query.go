package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Place is where a record lies.
type Place struct {
	Path string // of the log file, when it was indexed
	File uint64 // its inode; 0: unknown
	Pos  int64  // byte offset, or number of the record in a database
	Len  int    // bytes of the line without its LF
	Line int64  // counted from 1
	Seq  uint64
	Leaf auditlog.Hash
}

// Entry is one closed operation, one operation that is still open, one event,
// or one of the log's own records. The texts are cut to 1024 bytes.
type Entry struct {
	Place         // of the record that closes it: outcome, event, or an open intent
	Mark   Mark   // of the same record
	Intent *Place // of a closed operation, if the log has it
	Origin string // of the log, from the first record of the file
	Kind   string
	At     time.Time

	Operation, Direction, Method, Tool, Name string
	Client, Server, Principal                string
	Outcome, Decision, Rule                  string
	Duration                                 time.Duration // whole milliseconds; -1: none
	Status                                   int           // HTTP; 0: none
}

// Open reports whether the entry is an operation without an outcome.
func (e *Entry) Open() bool { return e.Kind == "intent" }

const selectEntries = `SELECT r.pos,r.len,r.line,r.seq,r.leaf,r.kind,r.at,r.op,r.intent_seq,ifnull(r.direction,''),ifnull(r.method,''),ifnull(r.tool,''),ifnull(r.name,''),
ifnull(r.client,''),ifnull(r.server,''),ifnull(r.principal,''),ifnull(r.outcome,''),ifnull(r.decision,''),ifnull(r.rule,''),ifnull(r.duration,-1),ifnull(r.status,0)
FROM records r WHERE r.segment=? AND `

// An outcome names its intent by operation and seq. A log that was tampered
// with may have several; it is the first.
const selectIntent = `SELECT r.pos,r.len,r.line,r.seq,r.leaf,s.path,s.file FROM records r JOIN segments s ON s.id=r.segment
WHERE r.op=? AND r.kind='intent' AND r.seq=? ORDER BY s.ord,r.pos LIMIT 1`

// Each calls do for the entries that a filter wants, in the order in which they
// were closed, until it returns an error. All come from one state of the index,
// and only one is held in memory. The entry is valid until do returns.
func (x *Index) Each(ctx context.Context, f Filter, do func(*Entry) error) (err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	q := query{x: x, ctx: ctx, filter: f, do: do}
	ctx = uncancelled(ctx)
	tx, err := x.r.BeginTx(ctx, nil)
	if err != nil {
		return x.failed(err)
	}
	defer func() {
		// It was only read from.
		_ = tx.Rollback()
	}()
	if q.intents, err = tx.PrepareContext(ctx, selectIntent); err != nil {
		return x.failed(err)
	}
	defer func() { err = errors.Join(err, q.intents.Close()) }()
	order := ""
	if f.Newest {
		order = " DESC"
	}
	segments, err := segmentsOf(ctx, tx, order)
	if err != nil {
		return x.failed(err)
	}
	condition, values := f.where()
	for _, s := range segments {
		if err := q.segment(ctx, tx, s, selectEntries+condition+` ORDER BY r.pos`+order, append([]any{s.id}, values...)); err != nil {
			if errors.Is(err, errLimit) {
				return nil
			}
			return err
		}
	}
	return nil
}

// failed is the error of reading an index.
func (x *Index) failed(err error) error {
	if isDamaged(err) {
		return fmt.Errorf("the index %s is damaged (%w); run `mcp-audit index --rebuild`", x.path, err)
	}
	return fmt.Errorf("reading the index %s: %w", x.path, err)
}

type origin struct {
	id, file      int64
	path, origin  string
	next, records int64
}

func segmentsOf(ctx context.Context, tx *sql.Tx, order string) (list []origin, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT id,file,path,origin,next,records FROM segments ORDER BY ord`+order)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var o origin
		if err := rows.Scan(&o.id, &o.file, &o.path, &o.origin, &o.next, &o.records); err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, rows.Err()
}

// errLimit ends a query that has given all that was asked for.
var errLimit = errors.New("limit")

type query struct {
	x       *Index
	ctx     context.Context // asked between two entries
	filter  Filter
	do      func(*Entry) error
	intents *sql.Stmt
	given   int
}

func (q *query) segment(ctx context.Context, tx *sql.Tx, s origin, statement string, values []any) error {
	rows, err := tx.QueryContext(ctx, statement, values...)
	if err != nil {
		return q.x.failed(err)
	}
	defer rows.Close()
	for rows.Next() {
		e := Entry{Origin: s.origin, Mark: Mark{Segment: s.id}}
		e.Path, e.File = s.path, uint64(s.file)
		var seq, at, duration int64
		var op, leaf sql.RawBytes
		var intentSeq sql.NullInt64
		err := rows.Scan(&e.Pos, &e.Len, &e.Line, &seq, &leaf, &e.Kind, &at, &op, &intentSeq, &e.Direction, &e.Method, &e.Tool, &e.Name,
			&e.Client, &e.Server, &e.Principal, &e.Outcome, &e.Decision, &e.Rule, &duration, &e.Status)
		if err != nil {
			return q.x.failed(err)
		}
		e.Seq, e.At, e.Mark.Pos = uint64(seq), time.Unix(0, at).UTC(), e.Pos
		e.Operation = operationText(op)
		if e.Duration = -1; duration >= 0 {
			e.Duration = time.Duration(duration) * time.Millisecond
		}
		copy(e.Leaf[:], leaf)
		if e.Kind == "outcome" && intentSeq.Valid {
			if e.Intent, err = q.intent(ctx, append([]byte(nil), op...), intentSeq.Int64); err != nil {
				return q.x.failed(err)
			}
		}
		if err := q.ctx.Err(); err != nil {
			return err
		}
		if err := q.do(&e); err != nil {
			return err
		}
		if q.given++; q.filter.Limit > 0 && q.given == q.filter.Limit {
			return errLimit
		}
	}
	if err := rows.Err(); err != nil {
		return q.x.failed(err)
	}
	return nil
}

func (q *query) intent(ctx context.Context, op []byte, seq int64) (*Place, error) {
	var p Place
	var leaf []byte
	var n, file int64
	err := q.intents.QueryRowContext(ctx, op, seq).Scan(&p.Pos, &p.Len, &p.Line, &n, &leaf, &p.Path, &file)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p.Seq, p.File = uint64(n), uint64(file)
	copy(p.Leaf[:], leaf)
	return &p, nil
}
