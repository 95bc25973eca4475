package bridge

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/shim/lines"
)

// The headers between the front and the bridge.
const (
	// SessionHeader names the session of revisions up to 2025-11-25.
	SessionHeader = "Mcp-Session-Id"
	// SeqHeader is, on an answer, the number of the child's line in it; on a
	// POST, the front's number of the client's line.
	SeqHeader = "Mcp-Shim-Seq"
	// EndedHeader is set on an answer without a body to a request that was
	// cancelled.
	EndedHeader = "Mcp-Shim-Ended"
)

// Options are a Bridge's settings. The zero value of each is its default.
type Options struct {
	// Session is the id of the one session of this child, given to the client
	// of a revision up to 2025-11-25 with the answer to initialize.
	Session string
	// MaxLine is the largest client line in bytes. 0: lines.DefaultMax.
	MaxLine int
	// MaxServerLine is the largest line of the child in bytes; a longer one is
	// dropped with a warning. 0: 64 MiB.
	MaxServerLine int
	// MaxHeld is how many bytes of the child's lines may wait for the client;
	// past it the child is not read. 0: 64 MiB.
	MaxHeld int
	// Accepted is called with the number of a client's line (SeqHeader) as
	// soon as the line has been written to the child or will never be. It must
	// not block. nil: not called.
	Accepted func(seq uint64)
	// Logger gets diagnostics. nil: none.
	Logger *slog.Logger
}

// Bridge is the http.Handler in front of one child. It is safe for concurrent
// use.
type Bridge struct {
	opts  Options
	log   *slog.Logger
	noise noiseLimiter

	reports reports

	stdinMu sync.Mutex
	stdin   io.Writer

	stray  *outbox       // lines for the GET stream
	wanted chan struct{} // closed when the first of them is there
	done   chan struct{} // closed when the child has ended and all lines are delivered

	mu       sync.Mutex
	room     *sync.Cond // signalled when held shrinks
	held     int        // bytes of lines that wait
	seq      uint64     // of the child's last line
	calls    map[string]*call
	progress map[string]*call    // by progress token
	carried  map[uint64]struct{} // lines that an exchange has not handed over yet
	dropped  map[uint64]struct{} // lines that will not reach the client
	sent     []item              // lines handed to the GET stream last, for a resumption
	stream   *stream             // the open GET
	ended    *Ending
	hinted   bool // wanted is closed
	finished bool // done is closed
}

const (
	defaultServerLine = 64 << 20
	defaultHeld       = 64 << 20
)

// New makes the bridge of a child whose stdin is given. Writes to it must be
// whole: a short write is an error.
func New(stdin io.Writer, opts Options) *Bridge {
	if opts.MaxLine <= 0 {
		opts.MaxLine = lines.DefaultMax
	}
	if opts.MaxServerLine <= 0 {
		opts.MaxServerLine = defaultServerLine
	}
	if opts.MaxHeld <= 0 {
		opts.MaxHeld = defaultHeld
	}
	b := &Bridge{
		opts:     opts,
		log:      opts.Logger,
		stdin:    stdin,
		stray:    newOutbox(),
		wanted:   make(chan struct{}),
		done:     make(chan struct{}),
		calls:    make(map[string]*call),
		progress: make(map[string]*call),
		carried:  make(map[uint64]struct{}),
		dropped:  make(map[uint64]struct{}),
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.room = sync.NewCond(&b.mu)
	b.reports.waiting = make(chan struct{}, 1)
	return b
}

// Wanted is closed when the child has written a line that only the GET stream
// can carry.
func (b *Bridge) Wanted() <-chan struct{} { return b.wanted }

// Done is closed when the child has ended and every line it wrote has been
// handed over.
func (b *Bridge) Done() <-chan struct{} { return b.done }

// Expected reports whether the child's line with this number is on its way to
// the client: it was said, and not given up.
func (b *Bridge) Expected(seq uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, dropped := b.dropped[seq]
	return seq <= b.seq && !dropped
}

// maxDropped bounds the numbers that are remembered as given up. Forgotten
// ones are waited for longer, nothing worse.
const maxDropped = 4096

func (b *Bridge) dropLocked(seq uint64) {
	if len(b.dropped) >= maxDropped {
		clear(b.dropped)
	}
	b.dropped[seq] = struct{}{}
}

// Run reads the child's lines until its output ends and gives each to the
// exchange it belongs to. It blocks while too much waits for the client. The
// error is what the source said, nil at its end.
func (b *Bridge) Run(stdout io.Reader) error {
	r := lines.NewReader(stdout, b.opts.MaxServerLine)
	var scratch [4]mcp.Message
	for {
		line, err := r.Next()
		switch {
		case err == nil:
			b.route(line, scratch[:0])
		case errors.Is(err, lines.ErrTooLong):
			b.oversized()
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("reading the server's output: %w", err)
		}
	}
}

// End says that the child is gone: Run has returned, and no answer will come.
// Requests that wait, and those still to come, get an error that says so. Only
// the first call counts.
func (b *Bridge) End(e Ending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended != nil {
		return
	}
	b.ended = &e
	for _, c := range b.calls {
		c.out.signal()
	}
	b.stray.signal()
	b.room.Broadcast()
	b.settleLocked()
}

// Ended reports whether End was called.
func (b *Bridge) Ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended != nil
}

// settleLocked closes done if there is nothing left to hand over.
func (b *Bridge) settleLocked() {
	if b.ended != nil && !b.finished && len(b.carried) == 0 && len(b.calls) == 0 {
		b.finished = true
		close(b.done)
	}
}

// Reject answers a server's request in the client's place, because the
// client's own answer could not be recorded or delivered. id is the raw token.
func (b *Bridge) Reject(id []byte, code int, message string) error {
	return b.write(mcp.AppendError(nil, id, code, message, nil))
}

// write writes a line to the child, whole and never between another's bytes.
func (b *Bridge) write(line []byte) error {
	buf := make([]byte, 0, len(line)+1)
	buf = append(append(buf, line...), '\n')
	b.stdinMu.Lock()
	defer b.stdinMu.Unlock()
	_, err := b.stdin.Write(buf)
	return err
}

// accepted tells the front that its line is past the bridge.
func (b *Bridge) accepted(seq uint64) {
	if b.opts.Accepted != nil && seq != 0 {
		b.opts.Accepted(seq)
	}
}

// ServeHTTP implements http.Handler: POST for the client's messages, GET for
// the stream of what answers none of them.
func (b *Bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost:
		b.post(w, r)
	case r.Method == http.MethodGet && r.Header.Get(ReportHeader) != "":
		b.report(w)
	case r.Method == http.MethodGet:
		b.get(w, r)
	default:
		w.Header().Set("Allow", "GET, POST")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	}
}

// noiseLimiter keeps warnings about a child's stray output to one a second.
type noiseLimiter struct {
	mu      sync.Mutex
	last    time.Time
	skipped int
}

// allow reports whether a warning may be written now, and how many were not
// since the last one.
func (l *noiseLimiter) allow() (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.last) >= time.Second {
		skipped, l.skipped, l.last = l.skipped, 0, now
		return skipped, true
	}
	l.skipped++
	return 0, false
}
