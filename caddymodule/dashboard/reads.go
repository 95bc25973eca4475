package dashboard

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// joinTime is how long a reading stands for further ones of the same by the
// same reader: a page that is shown is one access, however often it asks.
const joinTime = time.Minute

// mostJoined bounds what is remembered of readings.
const mostJoined = 4096

type joinedReads struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// fresh reports whether a reading is not one that was recorded just now.
func (j *joinedReads) fresh(key string, now time.Time) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.last[key]
	return !ok || now.Sub(at) >= joinTime
}

func (j *joinedReads) note(key string, now time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last == nil || len(j.last) >= mostJoined {
		j.last = make(map[string]time.Time)
	}
	j.last[key] = now
}

// record writes to the log that it is read, before it is. What cannot be
// recorded is not shown.
func (h *Handler) record(r *http.Request, target string) error {
	if h.o.Record == nil {
		return nil
	}
	access := auditlog.Access{Action: "view", Target: target, Actor: h.o.Actor(r)}
	key, now := access.Actor+"\x00"+target, time.Now()
	if !h.reads.fresh(key, now) {
		return nil
	}
	if err := h.o.Record(r.Context(), access); err != nil {
		h.o.Logger.Error("a reading could not be recorded, so that nothing was shown", "error", err)
		return &apiError{http.StatusServiceUnavailable, fmt.Sprintf("this reading could not be recorded: %v", err)}
	}
	h.reads.note(key, now)
	return nil
}
