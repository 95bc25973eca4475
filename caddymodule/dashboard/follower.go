package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
)

const (
	// lookEvery is how often the log's files are looked at, not read.
	lookEvery = 400 * time.Millisecond
	// share is the part of one processor that indexing takes while the log
	// grows: one in so many. What is behind then is caught up with later.
	share = 20
	// quiet is for how long a log must not have grown to be indexed at full
	// speed.
	quiet = 1500 * time.Millisecond
)

// follower keeps the index of a log up to date, and tells when it is.
type follower struct {
	o      Options
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	index   *index.Index
	err     error // why there is none, or why it is not up to date
	notes   []string
	changed chan struct{} // closed at the next change
	behind  bool

	size  int64 // of the log's file, when it was looked at
	grown time.Time
}

func follow(o Options) *follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{o: o, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}), err: errStarting, behind: true}
	go f.run(ctx)
	return f
}

// errStarting is what readers are told before the index was opened.
var errStarting = errors.New("the index of the log is being opened; try again")

func (f *follower) close() error {
	f.cancel()
	<-f.done
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	if f.index == nil {
		return nil
	}
	x := f.index
	f.index, f.err = nil, errors.New("the dashboard is being closed")
	return x.Close()
}

func (f *follower) run(ctx context.Context) {
	defer close(f.done)
	for ctx.Err() == nil {
		err := f.look(ctx)
		f.mu.Lock()
		if err != nil && (f.err == nil || f.err.Error() != err.Error()) && ctx.Err() == nil {
			f.o.Logger.Warn("the dashboard's index is not up to date", slog.String("log", f.o.Path), slog.Any("error", err))
		}
		f.err = err
		f.mu.Unlock()
		rest(ctx, lookEvery)
	}
}

func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// look brings the index up to date.
func (f *follower) look(ctx context.Context) error {
	files, err := f.o.Log.Files()
	if err != nil {
		return err
	}
	if f.index == nil {
		x, err := index.Open(ctx, f.o.IndexPath, files[len(files)-1])
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.index, f.notes = x, x.Notes()
		f.mu.Unlock()
	}
	f.growing()
	began, rested := time.Now(), time.Duration(0)
	report, err := f.index.UpdateGently(ctx, files, func(took time.Duration) {
		f.tell()
		if f.growing() {
			before := time.Now()
			rest(ctx, share*took)
			rested += time.Since(before)
		}
	})
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.behind = false
	for _, note := range report.Notes {
		if !slices.Contains(f.notes, note) {
			f.notes = append(f.notes[max(0, len(f.notes)-9):], note)
		}
	}
	f.mu.Unlock()
	if report.Added > 0 {
		f.tell()
		if f.growing() {
			rest(ctx, share*(time.Since(began)-rested)-lookEvery)
		}
	}
	return nil
}

// growing reports whether the log grew just now.
func (f *follower) growing() bool {
	var size int64
	for _, path := range []string{f.o.Path, f.o.Path + "-wal"} {
		if info, err := os.Stat(path); err == nil {
			size += info.Size()
		}
	}
	now := time.Now()
	if size != f.size {
		f.size, f.grown = size, now
	}
	return now.Sub(f.grown) < quiet
}

func (f *follower) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.changed)
	f.changed = make(chan struct{})
}

// current is the index, and what is closed when it changes.
func (f *follower) current() (*index.Index, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.index == nil {
		return nil, f.changed, &apiError{503, f.err.Error()}
	}
	return f.index, f.changed, nil
}

// state is what readers are told of the index.
func (f *follower) state() (behind bool, notes []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.behind, f.notes, f.err
}
