package caddymodule

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// refusalJoiner keeps a flood of refused requests from filling the disk: past
// a rate per client address, refusals are joined into one event a second that
// carries their count. Safe for concurrent use.
type refusalJoiner struct {
	flush func(address string, count int)

	mu      sync.Mutex
	windows map[string]*refusalWindow
	timer   *time.Timer
	stopped bool
}

type refusalWindow struct{ recorded, joined int }

// maxRefusalAddresses bounds the addresses told apart within one second; the
// rest share one window, so that a flood from many addresses is joined too.
const maxRefusalAddresses = 4096

const otherAddresses = "other addresses"

// admit reports whether a refusal is recorded on its own. If not, it has been
// counted for the joined event. A rate of 0 admits everything.
func (j *refusalJoiner) admit(address string, rate int) bool {
	if rate <= 0 {
		return true
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.windows == nil {
		j.windows = make(map[string]*refusalWindow)
	}
	w := j.windows[address]
	if w == nil {
		if len(j.windows) >= maxRefusalAddresses {
			address = otherAddresses
			w = j.windows[address]
		}
		if w == nil {
			w = new(refusalWindow)
			j.windows[address] = w
		}
	}
	if j.timer == nil && !j.stopped {
		j.timer = time.AfterFunc(time.Second, j.turn)
	}
	if w.recorded < rate || j.stopped {
		w.recorded++
		return true
	}
	w.joined++
	return false
}

// turn ends the current second and records what was joined in it.
func (j *refusalJoiner) turn() {
	j.mu.Lock()
	windows := j.windows
	j.windows, j.timer = nil, nil
	j.mu.Unlock()
	for address, w := range windows {
		if w.joined > 0 {
			j.flush(address, w.joined)
		}
	}
}

// stop records what is joined so far; later refusals are recorded singly.
func (j *refusalJoiner) stop() {
	j.mu.Lock()
	j.stopped = true
	j.mu.Unlock()
	j.turn()
}

// recordJoined writes the event that stands for joined refusals.
func (s *sharedLog) recordJoined(address string, count int) {
	log := s.current()
	if log == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_, err := log.Event(ctx, auditlog.Event{
		Message: auditlog.Message{
			Direction: auditlog.ClientToServer,
			Transport: "http",
			Reason:    fmt.Sprintf("refusals joined, client address %s", address),
		},
		Result: auditlog.Denied,
		Count:  count,
	})
	if err != nil {
		log.Missed(count, "refusals")
		caddy.Log().Named("mcp_audit").Error("joined refusals could not be recorded",
			zap.String("log", s.path), zap.Int("count", count), zap.Error(err))
	}
}
