package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
)

const (
	// beat is how often a quiet stream says that it is alive.
	beat = 15 * time.Second
	// streamPause is the least time between two messages of a stream.
	streamPause = 500 * time.Millisecond
	// streamWrite is how long a reader may take for one message.
	streamWrite = 20 * time.Second
	// mostLive bounds the entries of one message: a page that is behind loads
	// the list anew.
	mostLive = 50
)

// live is one message of a stream.
type live struct {
	Entries []entry `json:"entries"` // newest first
	// Skipped says that there were more than these.
	Skipped bool          `json:"skipped,omitempty"`
	Status  *statusAnswer `json:"status"`
}

// serveStream sends the entries that a filter wants as they are indexed, as
// server-sent events. Each event's id is where it ends.
func (h *Handler) serveStream(w http.ResponseWriter, r *http.Request) error {
	want, err := parseEntries(r.URL.Query())
	if err != nil {
		return err
	}
	if want.text != "" || want.payloads {
		return badRequest("a stream has no payloads and takes no text; ask for the entries")
	}
	select {
	case h.streams <- struct{}{}:
		defer func() { <-h.streams }()
	default:
		return &apiError{http.StatusServiceUnavailable, fmt.Sprintf("there are %d readers of streams already", mostStreams)}
	}
	if err := h.record(r, want.target); err != nil {
		return err
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	after := want.walk.After
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		if m, err := index.ParseMark(last); err == nil {
			after = m
		}
	}
	if after == (index.Mark{}) {
		extent, err := x.Extent(r.Context())
		if err != nil {
			return err
		}
		after = extent.Newest
	}
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		return nil
	}
	first := true
	for {
		x, changed, err := h.follower.current()
		if err != nil {
			return nil //nolint:nilerr // the stream ends; the reader comes back and is told
		}
		extent, err := x.Extent(r.Context())
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if first || extent.Newest != after {
			message, err := h.news(r, x, &want, after)
			if err != nil {
				// The index was made anew: the reader has to as well.
				message = &live{Entries: []entry{}, Skipped: true, Status: h.frame(r)}
			}
			after, first = extent.Newest, false
			data, err := json.Marshal(message)
			if err != nil {
				return nil //nolint:nilerr // it is made of texts and numbers
			}
			// Not every ResponseWriter has deadlines.
			_ = out.SetWriteDeadline(time.Now().Add(streamWrite))
			if _, err := fmt.Fprintf(w, "id: %s\ndata: %s\n\n", after, data); err != nil {
				return nil //nolint:nilerr // the reader went away
			}
			if out.Flush() != nil {
				return nil
			}
			if !pause(r, streamPause) {
				return nil
			}
		}
		timer := time.NewTimer(beat)
		select {
		case <-r.Context().Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
			_ = out.SetWriteDeadline(time.Now().Add(streamWrite))
			if _, err := w.Write([]byte(": \n\n")); err != nil || out.Flush() != nil {
				return nil
			}
		}
	}
}

func pause(r *http.Request, d time.Duration) bool {
	rest(r.Context(), d)
	return r.Context().Err() == nil
}

func (h *Handler) news(r *http.Request, x *index.Index, want *wanted, after index.Mark) (*live, error) {
	once := *want
	once.filter.Limit = mostLive
	once.walk = index.Walk{After: after, Deadline: time.Now().Add(lookTime)}
	page, err := h.page(r.Context(), x, &once)
	if err != nil {
		return nil, err
	}
	return &live{Entries: page.Entries, Skipped: !page.Complete, Status: h.frame(r)}, nil
}
