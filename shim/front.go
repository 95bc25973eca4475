package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
	"github.com/caddy-mcp-audit/mcp-audit/shim/lines"
)

// Chain is where the Front sends the client's messages: an audited route.
type Chain struct {
	// URL of the route.
	URL string
	// Header is added to every request, for example the capability.
	Header http.Header
	// Transport carries the requests.
	Transport http.RoundTripper
	// Unreachable is the sentence for the client when a request could not be
	// sent, with its remedy.
	Unreachable func(error) string
}

// FrontOptions are a Front's settings.
type FrontOptions struct {
	// In and Out are the client's side: its requests and notifications are
	// read from In, everything for it is written to Out.
	In  io.Reader
	Out io.Writer
	// Chain is the audited route.
	Chain Chain
	// Bridge is the other end of the route. The Front asks it what is still to
	// come; messages never go around the chain.
	Bridge *bridge.Bridge
	// Gate is told by the Bridge which lines have passed (bridge.Options.Accepted).
	Gate *Gate
	// Session is the session id of revisions up to 2025-11-25.
	Session string
	// MaxLine is the largest client line in bytes. 0: lines.DefaultMax.
	MaxLine int
	// MaxInFlight is how many requests may be unanswered before the client is
	// not read any more. 0: 1024. While the server waits for an answer of the
	// client, the client is read all the same.
	MaxInFlight int
	// Launch makes the report of the child's start, which is recorded before
	// the first message; version and clientInfo are what that says of the
	// client. nil: none.
	Launch func(version string, clientInfo []byte) json.RawMessage
	// Logger gets diagnostics. nil: none.
	Logger *slog.Logger
}

// Front speaks the client's side of standard input and output and turns each
// line into a request to the chain.
type Front struct {
	o      FrontOptions
	log    *slog.Logger
	out    *order
	ctx    context.Context
	cancel context.CancelFunc
	seq    uint64 // of the client's last line; belongs to Run

	launchOnce sync.Once
	reporting  sync.Mutex // held while reports are asked for

	asked     chan struct{} // closed at the first request
	askedOnce sync.Once

	streamOnce sync.Once
	streaming  chan struct{} // closed when the stream was begun
	streamDone chan struct{} // closed when it is over for good

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when a count below changes
	open      int           // requests without their answer
	listening int           // those of them that are meant to stay
	waiting   int           // requests of the server without the client's answer
	greeting  int           // initialize requests without their answer
	version   string        // that the client negotiated or stated last
	requests  map[string]*flight
}

// flight is an open request, under the key of its id.
type flight struct {
	seq       uint64
	cancelled bool // by the client
}

const defaultInFlight = 1024

// NewFront makes a Front. Run starts it, Close ends it.
func NewFront(o FrontOptions) *Front {
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = defaultInFlight
	}
	if o.MaxLine <= 0 {
		o.MaxLine = lines.DefaultMax
	}
	f := &Front{
		o:          o,
		log:        o.Logger,
		out:        newOrder(o.Out, o.Bridge.Expected),
		asked:      make(chan struct{}),
		streaming:  make(chan struct{}),
		streamDone: make(chan struct{}),
		changed:    make(chan struct{}),
		requests:   make(map[string]*flight),
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	go f.reportAll()
	go func() {
		select {
		case <-o.Bridge.Wanted():
			f.openStream()
		case <-f.ctx.Done():
		}
	}()
	return f
}

// Run reads the client until its end and sends what it says on its way. It
// returns nil at the end of In, and does not wait for answers.
func (f *Front) Run() error {
	r := lines.NewReader(f.o.In, f.o.MaxLine)
	for {
		line, err := r.Next()
		switch {
		case err == nil:
			f.dispatch(line)
		case errors.Is(err, lines.ErrTooLong):
			// Its first bytes are more than the route takes, so the chain
			// refuses and records it.
			f.seq++
			f.send(&message{line: line, seq: f.seq})
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("reading the client: %w", err)
		}
		if f.ctx.Err() != nil {
			return nil
		}
	}
}

// message is a line of the client and what was read of it.
type message struct {
	line    []byte
	seq     uint64
	m       mcp.Message
	scanned bool // m is valid: the line is one message and not ambiguous
	modern  bool
	learned bool // it was initialize, and its answer told the version
}

func (msg *message) request() bool { return msg.scanned && msg.m.Kind == mcp.KindRequest }

// id is the raw id of a request, else nil.
func (msg *message) id() []byte {
	if !msg.request() {
		return nil
	}
	return msg.m.ID.Of(msg.line)
}

func (msg *message) method() string { return mcp.Text(msg.m.Method.Of(msg.line)) }

// key is the typed key of a request's id.
func (msg *message) key() string { return mcp.IDKey(msg.m.ID.Of(msg.line), msg.m.IDType) }

const (
	methodInitialize = "initialize"
	methodListen     = "subscriptions/listen"
)

// dispatch sends one line. Only requests are waited for in the background;
// each line is sent when the one before it has passed the chain.
func (f *Front) dispatch(line []byte) {
	f.seq++
	msg := message{line: line, seq: f.seq}
	var scratch [1]mcp.Message
	msgs, batch, fault := mcp.Scan(line, scratch[:0])
	if fault == nil && !batch {
		msg.m, msg.scanned = msgs[0], true
		msg.modern = f.classify(&msg)
	}
	f.reportLaunch(&msg)
	if fault == nil && batch && slices.ContainsFunc(msgs, func(m mcp.Message) bool { return m.Kind == mcp.KindRequest }) {
		f.dispatchBatch(&msg)
		return
	}
	if msg.scanned && !msg.modern && msg.method() != methodInitialize {
		f.openStream()
	}
	if !msg.request() {
		if msg.scanned && (msg.m.Kind == mcp.KindResult || msg.m.Kind == mcp.KindError) {
			f.count(func() { f.waiting = max(0, f.waiting-1) })
		}
		if msg.scanned && msg.m.CancelledID.Present() {
			f.markCancelled(msg.m.CancelledID.Of(line))
		}
		f.send(&msg)
		return
	}
	if !f.slot() {
		return
	}
	f.begin(&msg)
	f.askedOnce.Do(func() { close(f.asked) })
	passed := f.o.Gate.enter(msg.seq)
	go func() {
		defer f.o.Gate.Pass(msg.seq)
		defer f.end(&msg)
		f.send(&msg)
	}()
	<-passed
}

// dispatchBatch sends a batch whose answers are waited for in the background.
func (f *Front) dispatchBatch(msg *message) {
	if !f.slot() {
		return
	}
	f.count(func() { f.open++ })
	f.askedOnce.Do(func() { close(f.asked) })
	passed := f.o.Gate.enter(msg.seq)
	go func() {
		defer f.o.Gate.Pass(msg.seq)
		defer f.count(func() { f.open-- })
		f.send(msg)
	}()
	<-passed
}

// begin puts a request on the books, end takes it off.
func (f *Front) begin(msg *message) {
	key, listen := msg.key(), msg.method() == methodListen
	f.count(func() {
		f.open++
		if listen {
			f.listening++
		}
		if msg.method() == methodInitialize {
			f.greeting++
		}
		// The bridge refuses a second request with the same id.
		if f.requests[key] == nil {
			f.requests[key] = &flight{seq: msg.seq}
		}
	})
}

func (f *Front) end(msg *message) {
	key, listen := msg.key(), msg.method() == methodListen
	f.count(func() {
		f.open--
		if listen {
			f.listening--
		}
		if msg.method() == methodInitialize && !msg.learned {
			f.greeting = max(0, f.greeting-1)
		}
		if fl := f.requests[key]; fl != nil && fl.seq == msg.seq {
			delete(f.requests, key)
		}
	})
}

// markCancelled notes that the client does not expect an answer to a request
// any more. id is the raw token.
func (f *Front) markCancelled(id []byte) {
	t := mcp.IDNumber
	if id[0] == '"' {
		t = mcp.IDString
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.requests[mcp.IDKey(id, t)]; fl != nil {
		fl.cancelled = true
	}
}

// classify tells the revision's era and remembers what the client states.
func (f *Front) classify(msg *message) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	revision := mcp.Revision(&msg.m, msg.line, f.version, "")
	if stated := mcp.Text(msg.m.ProtocolVersion.Of(msg.line)); mcp.Modern(stated) && msg.method() != methodInitialize {
		f.version = stated
	}
	return mcp.Modern(revision)
}

// negotiated remembers the version that the server chose.
func (f *Front) negotiated(version string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version = version
	f.greeting = max(0, f.greeting-1)
	f.tell()
}

// tell wakes those who wait for a count.
func (f *Front) tell() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// count changes the counts and tells those who wait for them.
func (f *Front) count(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.tell()
}

// await waits until the counts meet a condition. It reports false if the
// context ended first.
func (f *Front) await(ctx context.Context, met func() bool) bool {
	for {
		f.mu.Lock()
		ok, changed := met(), f.changed
		f.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// slot waits for room for one more request.
func (f *Front) slot() bool {
	return f.await(f.ctx, func() bool { return f.open < f.o.MaxInFlight || f.waiting > 0 })
}

// Asked is closed when the client has sent its first request.
func (f *Front) Asked() <-chan struct{} { return f.asked }

// Broken is closed when the client's Out cannot be written any more.
func (f *Front) Broken() <-chan struct{} { return f.out.broken }

// Idle waits until every request is answered that is meant to be: a
// subscription is not waited for. It reports false if ctx ended first.
func (f *Front) Idle(ctx context.Context) bool {
	return f.await(ctx, func() bool { return f.open == f.listening })
}

// Drain waits, after the child has ended, until the client has every line of
// the child and an answer to every request. It gives up when ctx ends, the
// client is gone or nothing has moved for the given time.
func (f *Front) Drain(ctx context.Context, stall time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-f.o.Bridge.Wanted():
			f.openStream()
		default:
		}
		if !f.await(ctx, func() bool { return f.open == 0 }) {
			return
		}
		select {
		case <-f.streaming:
		default:
			return
		}
		select {
		case <-f.streamDone:
		case <-ctx.Done():
		}
	}()
	ticker := time.NewTicker(stall)
	defer ticker.Stop()
	for before := f.out.written(); ; {
		select {
		case <-finished:
			f.out.flush()
			return
		case <-f.Broken():
			return
		case <-ctx.Done():
			f.out.flush()
			return
		case <-ticker.C:
			now := f.out.written()
			if now == before {
				f.out.flush()
				return
			}
			before = now
		}
	}
}

// Close ends every exchange that is still open.
func (f *Front) Close() { f.cancel() }
