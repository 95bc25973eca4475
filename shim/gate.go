package shim

import "sync"

// Gate tells the Front when a line has passed the chain: written to the child,
// or refused on the way. The next line is sent only then, so that the child,
// and the log, have the client's lines in the client's order. It is safe for
// concurrent use.
type Gate struct {
	mu   sync.Mutex
	open map[uint64]chan struct{}
}

// NewGate returns a Gate that no line waits at.
func NewGate() *Gate { return &Gate{open: make(map[uint64]chan struct{})} }

// enter announces a line. The channel is closed when it has passed.
func (g *Gate) enter(seq uint64) <-chan struct{} {
	passed := make(chan struct{})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open[seq] = passed
	return passed
}

// Pass lets a line through; a second call for it does nothing.
func (g *Gate) Pass(seq uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if passed, ok := g.open[seq]; ok {
		close(passed)
		delete(g.open, seq)
	}
}
