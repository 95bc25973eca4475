package ship

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// Batch is some rows that follow one another, of one origin or several.
type Batch struct {
	rows  [][]byte // encoded as the receiver takes them
	bytes int
	// First and Last are the first and the last row.
	First, Last Cursor
}

// Len is the number of rows.
func (b *Batch) Len() int { return len(b.rows) }

// Bounds of a batch. One row that is larger is a batch of its own.
const (
	MaxRows  = 500
	MaxBytes = 1 << 20
)

// add appends an encoded row.
func (b *Batch) add(row []byte, c Cursor) {
	if len(b.rows) == 0 {
		b.First = c
	}
	b.rows, b.bytes, b.Last = append(b.rows, row), b.bytes+len(row), c
}

// full reports whether no row fits any more.
func (b *Batch) full() bool { return len(b.rows) >= MaxRows || b.bytes >= MaxBytes }

// Sink is a receiver.
type Sink interface {
	// Encode makes the bytes of a row, which are kept until the batch is done.
	Encode(*export.Row) ([]byte, error)
	// Deliver sends a batch and returns when the receiver has acknowledged all
	// of it. A RefusedError will not be better next time; after any other the
	// batch is sent again.
	Deliver(ctx context.Context, b *Batch) error
	// String names the receiver without credentials.
	String() string
	Close() error
}

// RefusedError is a receiver's answer that repetition does not change.
type RefusedError struct {
	Receiver string
	Why      string
	First    Cursor
	Last     Cursor
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refuses the rows of the records %d to %d (%s): %s; nothing behind them is sent until it takes them",
		e.Receiver, e.First.Seq, e.Last.Seq, e.Last.Origin, e.Why)
}

// Source gives rows in order.
type Source interface {
	// Next calls take for the rows behind the ones taken, until there are no
	// more, or it wants no more, or it returns an error, which is returned; the
	// row is not taken then.
	Next(ctx context.Context, take func(*export.Row) (more bool, err error)) error
}

// Run is a delivery.
type Run struct {
	Source Source
	Sink   Sink
	// Save keeps the cursor of what was acknowledged, durably.
	Save func(Cursor) error
	// Once ends the run when all that is there was acknowledged.
	Once bool
	// Poll is how long to wait for more. Retry is the first wait after a
	// failure; each further one is twice as long, up to RetryMax.
	Poll, Retry, RetryMax time.Duration
	// Failed is told of each failed delivery, Delivered of each batch.
	Failed    func(err error, again time.Duration)
	Delivered func(*Batch)
}

// Do delivers until the context ends, the receiver refuses a batch, or, with
// Once, all is delivered. It holds one batch in memory.
func (r *Run) Do(ctx context.Context) error {
	for {
		var b Batch
		err := r.Source.Next(ctx, func(row *export.Row) (more bool, err error) {
			encoded, err := r.Sink.Encode(row)
			if err != nil {
				return false, fmt.Errorf("record %d: %w", row.Seq(), err)
			}
			b.add(encoded, Cursor{Origin: row.Origin, Seq: row.Seq(), Leaf: row.Close.Line.Seal.Leaf})
			return !b.full(), nil
		})
		if err != nil {
			return err
		}
		if b.Len() == 0 {
			if r.Once {
				return nil
			}
			if err := sleep(ctx, r.Poll); err != nil {
				return err
			}
			continue
		}
		if err := r.deliver(ctx, &b); err != nil {
			return err
		}
	}
}

func (r *Run) deliver(ctx context.Context, b *Batch) error {
	wait := r.Retry
	for {
		err := r.Sink.Deliver(ctx, b)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if refused := new(RefusedError); errors.As(err, &refused) {
			return err
		}
		again := wait
		if later := new(laterError); errors.As(err, &later) && later.after > again {
			again = min(later.after, r.RetryMax)
		}
		r.Failed(err, again)
		if err := sleep(ctx, again); err != nil {
			return err
		}
		wait = min(2*wait, r.RetryMax)
	}
	if err := r.Save(b.Last); err != nil {
		return err
	}
	r.Delivered(b)
	return nil
}

// laterError is a failure after which the receiver said when to come again.
type laterError struct {
	error
	after time.Duration
}

func (e *laterError) Unwrap() error { return e.error }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Cursor names the last row that was acknowledged, by the record that closes it.
type Cursor struct {
	Origin string
	Seq    uint64
	Leaf   auditlog.Hash
}
