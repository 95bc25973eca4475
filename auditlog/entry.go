package auditlog

import (
	"context"
	"sync"
	"sync/atomic"
)

// entryKind says what a queued record is to the writer.
type entryKind int

const (
	otherEntry entryKind = iota
	intentEntry
	eventEntry
	outcomeEntry
	checkpointEntry // its draft is made when it is its turn
	keyEntry        // likewise; it goes over to other keys
)

// entry is one record on its way into the log.
type entry struct {
	draft
	kind      entryKind
	intentSeq uint64     // outcome
	op        *Operation // intent, and outcome of an operation of this Log
	shrink    func() (draft, error)
	keys      *newKeys // keyEntry

	// Set by the committer.
	written bool // it is in the log
	owed    bool // it is on the list of debts
	pos     int64
	length  int

	// state is one of the constants below. A caller that stops waiting moves
	// it; the committer moves it when it takes and when it finishes the entry.
	state atomic.Int32
	done  chan struct{} // closed when err, seq and note are final
	err   error
	seq   uint64
	note  []byte // checkpoint
}

const (
	entryQueued int32 = iota
	entryTaken
	entryFinished
	entryAbandoned // nobody waits, and the record must not be written any more
	entryDetached  // nobody waits, but the record may have been written
)

// queue holds the entries that wait for the committer. It is bounded in
// records and in bytes.
type queue struct {
	mu     sync.Mutex
	items  []*entry
	bytes  int
	limit  int
	space  chan struct{} // closed and replaced when entries were taken
	closed bool
	wake   chan struct{}
	waits  uint64 // of callers, for space
}

// put queues an entry, waiting for space as long as ctx allows.
func (q *queue) put(ctx context.Context, e *entry) error {
	for {
		q.mu.Lock()
		if q.closed {
			q.mu.Unlock()
			return ErrClosed
		}
		if len(q.items) == 0 || len(q.items) < maxQueue && q.bytes+e.size() <= q.limit {
			q.items = append(q.items, e)
			q.bytes += e.size()
			q.mu.Unlock()
			q.signal()
			return nil
		}
		space := q.space
		q.waits++
		q.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// signal wakes the committer.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take appends the next batch to dst: what has queued, up to 4096 records or 1
// MiB, at least one entry if there is any.
func (q *queue) take(dst []*entry) []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for n < len(q.items) && n < maxQueue && (n == 0 || size+len(q.items[n].buf) <= maxBatchBytes) {
		size += len(q.items[n].buf)
		n++
	}
	if n == 0 {
		return dst
	}
	for _, e := range q.items[:n] {
		if e.state.CompareAndSwap(entryQueued, entryTaken) {
			dst = append(dst, e)
		} else {
			e.recycle()
		}
	}
	rest := copy(q.items, q.items[n:])
	clear(q.items[rest:])
	q.items = q.items[:rest]
	q.bytes -= size
	close(q.space)
	q.space = make(chan struct{})
	return dst
}

// close makes put fail, and returns what was still queued.
func (q *queue) close() []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	rest := q.items
	q.items, q.bytes = nil, 0
	close(q.space)
	q.space = make(chan struct{})
	return rest
}

func (q *queue) length() (records, bytes int, waits uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items), q.bytes, q.waits
}
