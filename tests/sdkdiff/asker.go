package sdkdiff

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// Asker is a server of no SDK that asks its client with a given id and then
// with another, in the middle of a call. Each path is a conversation of its
// own.
type Asker struct {
	mu    sync.Mutex
	talks map[string]*talk
}

type talk struct {
	id      string
	answers chan string
	answer  string
}

// A client that answers the second question and not the first by the grace has
// nothing to say to the first; one that answers neither has the silence.
const (
	grace   = 3 * time.Second
	silence = 20 * time.Second
)

// Expect prepares the conversation at a path.
func (a *Asker) Expect(path, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.talks == nil {
		a.talks = make(map[string]*talk)
	}
	a.talks[path] = &talk{id: id, answers: make(chan string, 16)}
}

// Answered returns the message that the client answered with, empty if it did
// not.
func (a *Asker) Answered(path string) string { return a.talk(path).answer }

func (a *Asker) talk(path string) *talk {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.talks[path]
}

// ServeHTTP implements http.Handler.
func (a *Asker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	talk := a.talk(r.URL.Path)
	if r.Method != http.MethodPost || talk == nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var m struct{ Method string }
	_ = json.Unmarshal(body, &m)
	switch m.Method {
	case "":
		talk.answers <- string(body)
		w.WriteHeader(http.StatusAccepted)
		return
	case "tools/call":
	default:
		Exact{}.answer(w, body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, id := range []string{talk.id, second} {
		fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"ping\"}\n\n", id)
	}
	http.NewResponseController(w).Flush()
	talk.wait(r.Context())
	fmt.Fprintf(w, "event: message\ndata: %s\n\n", Answer(body))
}

const second = `"second"`

func (t *talk) wait(ctx context.Context) {
	patience := time.After(silence)
	for {
		select {
		case answer := <-t.answers:
			var m struct{ ID json.RawMessage }
			_ = json.Unmarshal([]byte(answer), &m)
			if string(m.ID) != second {
				t.answer = answer
				return
			}
			patience = time.After(grace)
		case <-patience:
			return
		case <-ctx.Done():
			return
		}
	}
}
