package shim

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// Audit is a running audit: the route, and the end of it.
type Audit interface {
	Chain() Chain
	// Close ends the audit when nothing is sent any more. It returns when its
	// records are sealed, or ctx ends.
	Close(ctx context.Context) error
}

// OpenEmbedded starts the audit in this process. handler is what lies behind
// the route. The error is a sentence for the user.
type OpenEmbedded func(ctx context.Context, o *Options, handler http.Handler) (Audit, error)

// Stdio is the shim's side of its client.
type Stdio struct {
	In  io.Reader
	Out io.Writer
	Err *os.File // also the child's
	// Env is the child's environment, before ChildEnv.
	Env []string
}

// Times of the end, beside those of Process.Stop. Together they stay under the
// two seconds that clients allow.
const (
	signalDrain = 300 * time.Millisecond // for open calls, after a signal
	quietTime   = 500 * time.Millisecond // until output without an end counts as ended
	stallTime   = 5 * time.Second        // until undelivered output is given up
	lateStall   = 500 * time.Millisecond // the same, if the client is leaving
	closeTime   = time.Second            // for the audit
	askTime     = time.Second            // for the first request, after the child's early end
	startTime   = 5 * time.Second        // for a server that has not said anything yet
	moreTime    = 50 * time.Millisecond  // for requests that crossed with the child's end
	lookTime    = 20 * time.Millisecond  // between looks at what nobody tells of
)

// Run starts the audit and the child and carries messages until one side ends.
// It returns the exit code: the child's, or one of the Exit constants.
func Run(o *Options, stdio Stdio, open OpenEmbedded) int {
	r := &run{
		o: o, stdio: stdio, log: o.Logger(stdio.Err),
		leaving: make(chan struct{}), hurry: make(chan struct{}),
		heard: make(chan struct{}), read: make(chan struct{}),
	}
	stop := r.watchSignals()
	defer stop()
	gate := NewGate()
	input := &lateWriter{ready: make(chan struct{})}
	session := uuid.NewString()
	r.bridge = bridge.New(input, bridge.Options{
		Session: session, MaxLine: o.MaxLine, Accepted: gate.Pass, Logger: r.log,
	})
	begin := time.Now()
	audit, err := r.openAudit(open)
	if err != nil {
		r.log.Error(err.Error())
		r.refuse(err.Error())
		return ExitRefused
	}
	r.log.Debug("the audit is ready", "after", time.Since(begin))
	r.startChild(input)
	r.front = NewFront(FrontOptions{
		In: stdio.In, Out: stdio.Out, Chain: audit.Chain(), Bridge: r.bridge, Gate: gate,
		Session: session, MaxLine: o.MaxLine, Launch: r.launch.report, Logger: r.log,
	})
	go func() {
		defer close(r.read)
		if err := r.front.Run(); err != nil {
			r.log.Warn(err.Error())
		}
	}()
	code := r.untilEnd()
	begin = time.Now()
	r.lastReport()
	if r.child != nil {
		r.child.Kill() // whatever it left behind
		r.release()
	}
	r.front.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := audit.Close(ctx); err != nil {
		r.log.Error("the audit did not end cleanly", "error", err)
	}
	r.log.Debug("the audit is sealed", "after", time.Since(begin), "exit_code", code)
	return code
}

// lastReport has what the server wrote last recorded.
func (r *run) lastReport() {
	if r.stderr != nil {
		r.stderr.await()
	}
	select {
	case <-r.bridge.Reports():
		ctx, cancel := context.WithTimeout(context.Background(), lateStall)
		defer cancel()
		r.front.Report(ctx)
	default:
	}
}

// run is one run of the shim.
type run struct {
	o       *Options
	stdio   Stdio
	log     *slog.Logger
	bridge  *bridge.Bridge
	front   *Front
	child   *Process // nil if it did not start
	failed  *StartError
	launch  *launch
	stderr  *watchedStderr // nil: it is not recorded
	release func()         // ends the care for what the child left behind
	output  *watchedReader // the child's

	signalled   atomic.Int32  // the first signal
	leaving     chan struct{} // closed at the first signal
	hurry       chan struct{} // closed at the second
	hurryOnce   sync.Once
	leavingOnce sync.Once

	heard chan struct{} // closed when the child's output has ended
	read  chan struct{} // closed when the client's input has ended
}

func (r *run) openAudit(open OpenEmbedded) (Audit, error) {
	if r.o.Caddy == "" {
		return open(context.Background(), r.o, r.bridge)
	}
	return openRemote(r.o, r.bridge, r.log)
}

// refuse tells the client why nothing works, unless a signal comes first.
func (r *run) refuse(text string) {
	told := make(chan struct{})
	go func() {
		defer close(told)
		refuseFirst(r.stdio.In, r.stdio.Out, r.o.MaxLine, text)
	}()
	select {
	case <-told:
	case <-r.leaving:
	}
}

// watchSignals turns the signals that ask for an end into one. A broken pipe
// must not kill the shim before its child is gone and its log sealed.
func (r *run) watchSignals() (stop func()) {
	signals := make(chan os.Signal, 4)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		// What the client told us to ignore stays ignored: nohup.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	go func() {
		for s := range signals {
			if s == syscall.SIGPIPE {
				continue
			}
			if r.signalled.Load() != 0 {
				r.hurryOnce.Do(func() { close(r.hurry) })
			}
			r.signalled.CompareAndSwap(0, int32(s.(syscall.Signal)))
			r.leavingOnce.Do(func() { close(r.leaving) })
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// startChild starts the server. That it cannot be started is an answer to the
// first request, and a record.
func (r *run) startChild(input *lateWriter) {
	env := ChildEnv(r.stdio.Env, r.o.EnvAllow, r.o.EnvDeny)
	stderr := r.stdio.Err
	if r.o.RecordStderr {
		watched, err := watchStderr(r.stdio.Err, func(line []byte) { r.bridge.Wrote(bridge.ReportStderr, line) })
		if err != nil {
			r.log.Warn("the server's standard error is not recorded", "error", err)
		} else {
			defer watched.started()
			r.stderr, stderr = watched, watched.child
		}
	}
	child, err := StartProcess(r.o.Command, env, stderr)
	r.launch = newLaunch(r.o.Command, env, child, err)
	if err != nil {
		r.log.Error(err.Error())
		if !errors.As(err, &r.failed) {
			r.failed = &StartError{Command: r.o.Command[0], Code: ExitNotExecutable, Err: err}
		}
		input.set(nil)
		r.bridge.End(bridge.Ending{Reason: r.failed.Error(), Code: -1})
		close(r.heard)
		return
	}
	r.child, r.release = child, child.Adopt()
	input.set(child.Stdin)
	r.output = &watchedReader{r: child.Stdout}
	go func() {
		defer close(r.heard)
		if err := r.bridge.Run(r.output); err != nil && !errors.Is(err, os.ErrClosed) {
			r.log.Warn(err.Error())
		}
	}()
}

// untilEnd waits for the end of any side and brings the others to theirs. It
// returns the exit code.
func (r *run) untilEnd() int {
	if r.child == nil {
		select {
		case <-r.front.Asked():
		case <-r.read:
		case <-r.leaving:
		}
		r.deliver(stallTime)
		return r.failed.Code
	}
	select {
	case <-r.read:
		return r.clientLeaves(r.o.Drain)
	case <-r.front.Broken():
		return r.clientLeaves(0)
	case <-r.leaving:
		return r.clientLeaves(min(signalDrain, r.o.Drain))
	case <-r.heard:
		return r.childLeaves()
	case <-r.child.Exited():
		return r.childLeaves()
	}
}

// clientLeaves ends the child after the client: open calls may still be
// answered, then its input ends, then it is signalled, then killed.
func (r *run) clientLeaves(drain time.Duration) int {
	r.log.Debug("the client is leaving")
	r.finishCalls(drain)
	r.stopChild()
	r.log.Debug(r.child.Status().Reason())
	r.awaitOutput()
	r.endBridge()
	r.deliver(lateStall)
	return r.child.Status().Code
}

// finishCalls waits for the answers of open calls: as long as the drain time
// since the server last said something, and longer for one that is still
// starting, as in a script that writes its calls and closes the pipe. A client
// that is gone for good, and a signal, end the waiting.
func (r *run) finishCalls(drain time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), max(startTime, drain))
	defer cancel()
	idle := make(chan bool, 1)
	go func() { idle <- r.front.Idle(ctx) }()
	begin := time.Now()
	signalled := r.leaving
	if r.signalled.Load() != 0 {
		// The signal is why we are here; it has had its effect.
		signalled = nil
	}
	ticker := time.NewTicker(lookTime)
	defer ticker.Stop()
	for {
		select {
		case <-idle:
			return
		case <-signalled:
			return
		case <-r.child.Exited():
			return
		case <-r.front.Broken():
			return
		case <-r.hurry:
			return
		case <-ticker.C:
			last := r.output.last()
			starting := last.IsZero() && drain > 0 && signalled != nil
			if last.Before(begin) {
				last = begin
			}
			if !starting && time.Since(last) >= drain || r.readerGone() {
				return
			}
		}
	}
}

// readerGone reports whether nobody can read what is written to the client.
func (r *run) readerGone() bool {
	f, ok := r.stdio.Out.(*os.File)
	return ok && hungUp(f)
}

// stopChild ends the child, with the signal that the shim got, if it did.
func (r *run) stopChild() {
	if s := r.signalled.Load(); s != 0 {
		r.child.Stop(syscall.Signal(s), SignalledPause, r.hurry)
		return
	}
	r.child.Stop(syscall.SIGTERM, StdinPause, r.hurry)
}

// childLeaves ends the run after the child: what it wrote is delivered, what
// it leaves unanswered gets an error, what it started is ended.
func (r *run) childLeaves() int {
	if !r.child.gone(quietTime, r.hurry) {
		// It closed its output and lives on: nothing more can come of it.
		r.stopChild()
	}
	r.log.Debug(r.child.Status().Reason())
	r.awaitOutput()
	r.child.Kill()
	r.endBridge()
	if timer := time.NewTimer(askTime); !r.asked() {
		// A client that has just started us is about to ask; it shall hear why
		// there is no server.
		select {
		case <-r.front.Asked():
		case <-r.read:
		case <-r.leaving:
		case <-timer.C:
		}
		timer.Stop()
	}
	r.deliver(stallTime)
	// What the client wrote before it could know of the end is answered too.
	select {
	case <-r.read:
	case <-r.leaving:
	case <-time.After(moreTime):
	}
	r.deliver(lateStall)
	return r.child.Status().Code
}

func (r *run) asked() bool {
	select {
	case <-r.front.Asked():
		return true
	default:
		return false
	}
}

// awaitOutput waits for the end of the child's output, after its exit. If
// another process still holds it open and says nothing, it is ended too.
func (r *run) awaitOutput() {
	ticker := time.NewTicker(lookTime)
	defer ticker.Stop()
	killed := false
	for {
		select {
		case <-r.heard:
			return
		case <-r.front.Broken():
		case <-r.hurry:
		case <-ticker.C:
			quiet := r.output.quiet()
			if quiet < quietTime {
				continue
			}
			if !killed {
				killed = true
				r.child.Kill()
				continue
			}
			if quiet < quietTime+killPause {
				continue
			}
		}
		r.child.Kill()
		_ = r.child.Stdout.Close()
		if r.wait(r.heard, lateStall) {
			return
		}
		// The client does not read; nothing of this can be delivered.
		return
	}
}

func (r *run) wait(done <-chan struct{}, within time.Duration) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// endBridge answers what the child left open.
func (r *run) endBridge() {
	s := r.child.Status()
	r.bridge.End(bridge.Ending{Reason: s.Reason(), Code: s.Code, Signal: s.Signal})
}

// deliver gives the client what is still on its way.
func (r *run) deliver(stall time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-r.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	r.front.Drain(ctx, stall)
}

// lateWriter is the child's input before there is a child.
type lateWriter struct {
	ready chan struct{}
	w     *os.File
}

func (l *lateWriter) set(w *os.File) {
	l.w = w
	close(l.ready)
}

// Write implements io.Writer.
func (l *lateWriter) Write(p []byte) (int, error) {
	<-l.ready
	if l.w == nil {
		return 0, os.ErrClosed
	}
	return l.w.Write(p)
}

// watchedReader knows when its source last said something, and how long it has
// said nothing to someone who listens.
type watchedReader struct {
	r     io.Reader
	since atomic.Int64 // when the read that is going on began, 0: none is
	said  atomic.Int64 // when the last read brought something, 0: none did
}

// Read implements io.Reader.
func (w *watchedReader) Read(p []byte) (int, error) {
	w.since.Store(time.Now().UnixNano())
	n, err := w.r.Read(p)
	w.since.Store(0)
	if n > 0 {
		w.said.Store(time.Now().UnixNano())
	}
	return n, err
}

// quiet is how long the source has been read in vain.
func (w *watchedReader) quiet() time.Duration {
	since := w.since.Load()
	if since == 0 {
		return 0
	}
	return time.Since(time.Unix(0, since))
}

// last is when the source last said something, zero if it never has.
func (w *watchedReader) last() time.Time {
	if said := w.said.Load(); said != 0 {
		return time.Unix(0, said)
	}
	return time.Time{}
}
