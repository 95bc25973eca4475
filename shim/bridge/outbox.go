package bridge

import "sync"

// item is one line of the child on its way to the client.
type item struct {
	seq      uint64
	line     []byte
	id       []byte // raw id of a server's request, else nil
	last     bool   // it ends the call it is for
	attempts int    // times it was handed to a stream that then broke
}

// outbox is a queue of lines between the reader of the child and the exchange
// that carries them. It is safe for concurrent use.
type outbox struct {
	mu    sync.Mutex
	items []item
	wake  chan struct{} // holds one token while there is something new
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) push(it item) {
	o.mu.Lock()
	o.items = append(o.items, it)
	o.mu.Unlock()
	o.signal()
}

// unshift puts lines back at the head, in their order.
func (o *outbox) unshift(items []item) {
	o.mu.Lock()
	o.items = append(append([]item(nil), items...), o.items...)
	o.mu.Unlock()
	o.signal()
}

// signal wakes the one that waits on wake.
func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// pop takes the oldest line.
func (o *outbox) pop() (item, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.items) == 0 {
		return item{}, false
	}
	it := o.items[0]
	o.items[0] = item{}
	if o.items = o.items[1:]; len(o.items) == 0 {
		o.items = nil
	}
	return it, true
}

func (o *outbox) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.items) == 0
}
