package shim

import (
	"bytes"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// gapWait is how long a line waits for an earlier one that nobody has seen.
const gapWait = 100 * time.Millisecond

// heldWait is how long it waits for an earlier one that is on its way: a busy
// machine may take its time, and only a broken connection loses one.
const heldWait = 5 * time.Second

// maxAhead bounds the bytes of lines that wait for an earlier one.
const maxAhead = 64 << 20

// order puts the child's lines, which arrive on several exchanges, back into
// the order in which the child wrote them, and writes them to the client. A
// line that got lost on the way is waited for, but not long. It is safe for
// concurrent use; a client that does not read holds up everyone who brings
// lines, which is the back-pressure a pipe has.
type order struct {
	w        io.Writer
	expected func(seq uint64) bool // the line is on its way
	gap      time.Duration
	held     time.Duration

	mu      sync.Mutex
	room    *sync.Cond
	next    uint64
	ahead   map[uint64][]byte // lines that wait for next
	size    int               // bytes of them
	skipped map[uint64]bool   // given up, may still come late
	timer   *time.Timer
	since   time.Time // when next became what it is
	err     error
	broken  chan struct{} // closed when the client's end is gone
	buf     []byte
	count   uint64
}

func newOrder(w io.Writer, expected func(uint64) bool) *order {
	o := &order{
		w: w, expected: expected, gap: gapWait, held: heldWait, next: 1,
		ahead: make(map[uint64][]byte), skipped: make(map[uint64]bool), broken: make(chan struct{}),
	}
	o.room = sync.NewCond(&o.mu)
	return o
}

// deliver hands over a line. seq is its number, 0 for a line that is not the
// child's and goes out at once. A line that has been written already is
// dropped. The line must not be changed afterwards.
func (o *order) deliver(seq uint64, line []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for seq > o.next && o.size > 0 && o.size+len(line) > maxAhead && o.err == nil {
		o.room.Wait()
	}
	switch {
	case seq == 0:
		o.write(line)
	case seq < o.next:
		if o.skipped[seq] {
			delete(o.skipped, seq)
			o.write(line)
		}
	case seq == o.next:
		o.write(line)
		o.advance()
	default:
		if _, twice := o.ahead[seq]; twice {
			return
		}
		o.ahead[seq] = line
		o.size += len(line)
		if o.timer == nil {
			o.since = time.Now()
			o.timer = time.AfterFunc(o.gap, o.expire)
		}
	}
}

// advance moves past next and writes what waited for it.
func (o *order) advance() {
	for {
		o.next++
		line, ok := o.ahead[o.next]
		if !ok {
			break
		}
		delete(o.ahead, o.next)
		o.size -= len(line)
		o.write(line)
	}
	o.room.Broadcast()
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
	if len(o.ahead) > 0 {
		o.since = time.Now()
		o.timer = time.AfterFunc(o.gap, o.expire)
	}
}

// expire gives up waiting for next, unless it is known to come.
func (o *order) expire() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ahead) == 0 || time.Since(o.since) < o.gap {
		return
	}
	if o.expected != nil && o.expected(o.next) && time.Since(o.since) < o.held {
		o.timer = time.AfterFunc(o.gap, o.expire)
		return
	}
	o.skip()
}

// maxSkipped bounds the numbers remembered as given up.
const maxSkipped = 4096

// skip goes on with the oldest line that waits.
func (o *order) skip() {
	oldest := slices.Min(slices.Collect(maps.Keys(o.ahead)))
	for seq := o.next; seq < oldest && len(o.skipped) < maxSkipped; seq++ {
		o.skipped[seq] = true
	}
	line := o.ahead[oldest]
	delete(o.ahead, oldest)
	o.size -= len(line)
	o.next = oldest
	o.write(line)
	o.advance()
}

// flush writes whatever still waits: nothing more will come.
func (o *order) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.ahead) > 0 {
		o.skip()
	}
}

// written is the number of lines that went to the client.
func (o *order) written() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

// write writes one line and its end in one call.
func (o *order) write(line []byte) {
	if o.err != nil {
		return
	}
	// Line breaks between JSON tokens are white space; within a line they
	// would end it.
	o.buf = append(o.buf[:0], line...)
	for _, c := range []byte("\r\n") {
		for i := bytes.IndexByte(o.buf, c); i >= 0; i = bytes.IndexByte(o.buf, c) {
			o.buf[i] = ' '
		}
	}
	o.buf = append(o.buf, '\n')
	_, o.err = o.w.Write(o.buf)
	if cap(o.buf) > 1<<20 {
		o.buf = nil
	}
	if o.err != nil {
		close(o.broken)
		o.room.Broadcast()
		return
	}
	o.count++
}
