package anchor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// worker takes checkpoints to one anchor.
type worker struct {
	set    *Set
	target Target
	wake   chan struct{}

	mu      sync.Mutex // guards what follows
	waiting []byte     // the newest checkpoint that is not there, or nil
	head    auditlog.TreeHead
	taken   auditlog.TreeHead // the newest that is there
	at      time.Time
	err     error // of the last attempt
	fails   int
}

func (w *worker) offer(note []byte, head auditlog.TreeHead) {
	w.mu.Lock()
	if old := w.head; head == old || head.Origin == old.Origin && head.Size < old.Size {
		w.mu.Unlock()
		return
	}
	w.waiting, w.head = note, head
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run submits until the set is closed, and then once more.
func (w *worker) run() {
	for {
		select {
		case <-w.wake:
		case <-w.pause(w.retryIn()):
		case <-w.set.quit:
			w.submit()
			return
		}
		w.submit()
		select {
		case <-time.After(w.set.o.Gap):
		case <-w.set.quit:
		}
	}
}

// pause is a timer's channel, or one that never fires.
func (w *worker) pause(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(d)
}

// retryIn is when a checkpoint that was not taken is tried again; 0: there is none.
func (w *worker) retryIn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil || w.fails == 0 {
		return 0
	}
	return min(w.set.o.Retry<<min(w.fails-1, 20), w.set.o.RetryMax)
}

// submit takes the newest checkpoint to the anchor.
func (w *worker) submit() {
	w.mu.Lock()
	note, head := w.waiting, w.head
	w.mu.Unlock()
	if note == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.set.ctx, submitTimeout)
	defer cancel()
	receipt, err := w.target.Submit(ctx, w.set.submission(w, note, head))
	if err == nil && !sameText(receipt.Note, note) {
		err = errors.New("the receipt is not of the checkpoint that was submitted")
	}
	if err == nil {
		if keepErr := w.set.keep(w, head.Origin, receipt); keepErr != nil {
			err = fmt.Errorf("keeping its receipt: %w", keepErr)
		}
	}
	w.finish(note, head, err)
}

// finish notes the result, and logs when it is another one than before.
func (w *worker) finish(note []byte, head auditlog.TreeHead, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.err
	log := w.set.o.Logger.With(zap.String("log", w.set.o.Log), zap.String("anchor", describe(w.target)), zap.Uint64("records", head.Size))
	if err == nil || errors.Is(err, ErrNewer) {
		if err == nil {
			w.taken, w.at = head, w.set.o.Now()
		}
		w.err, w.fails = nil, 0
		if bytes.Equal(w.waiting, note) {
			w.waiting = nil
		}
		if before != nil {
			log.Info("the anchor works again")
		}
		return
	}
	w.err = err
	w.fails++
	if before == nil || before.Error() != err.Error() {
		log.Error("a checkpoint could not be anchored", zap.Bool("required", w.target.Required), zap.Error(err))
	}
}

func (w *worker) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *worker) blocked() error {
	if !w.target.Required {
		return nil
	}
	if err := w.failure(); err != nil {
		return fmt.Errorf("the required anchor %s has not taken the newest checkpoint: %w", describe(w.target), err)
	}
	return nil
}

func (w *worker) status() auditlog.AnchorStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := auditlog.AnchorStatus{
		Type: w.target.Type(), Name: w.target.Name(), Required: w.target.Required,
		Size: w.taken.Size, Time: w.at,
	}
	if w.waiting != nil {
		st.Waiting = w.head.Size
	}
	if w.err != nil {
		st.Err, st.Alarm = w.err.Error(), errors.As(w.err, new(*auditlog.AnchorAlarm))
	}
	return st
}
