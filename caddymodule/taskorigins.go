package caddymodule

import (
	"bytes"
	"sync"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// taskOrigins remembers which operation made a task, so that whoever asks for
// the task is judged as whoever would call the tool. Past maxTasks, or
// maxTaskBytes of params, the oldest are forgotten; a task that is not known is
// judged by its own method alone. Safe for concurrent use.
type taskOrigins struct {
	mu    sync.Mutex
	byID  map[taskKey]*policy.Origin
	order []taskKey // the oldest first
	bytes int
}

type taskKey struct{ server, id string }

const (
	maxTasks      = 10_000
	maxTaskBytes  = 16 << 20
	maxTaskParams = 64 << 10 // of one task; conditions see no arguments of larger ones
	maxTaskID     = 1024
)

// put remembers a task. The first operation that made it counts: an answer
// about a task names it too.
func (t *taskOrigins) put(server, id string, origin policy.Origin) {
	key := taskKey{server, id}
	if id == "" || len(id) > maxTaskID {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.byID[key]; known {
		return
	}
	if len(origin.Params) > maxTaskParams {
		origin.Params, origin.Arguments = nil, nil
	}
	origin.Params, origin.Arguments = bytes.Clone(origin.Params), bytes.Clone(origin.Arguments)
	if t.byID == nil {
		t.byID = make(map[taskKey]*policy.Origin)
	}
	t.byID[key] = &origin
	t.order = append(t.order, key)
	t.bytes += taskSize(key, &origin)
	for len(t.order) > maxTasks || t.bytes > maxTaskBytes {
		oldest := t.order[0]
		t.order = t.order[1:]
		t.bytes -= taskSize(oldest, t.byID[oldest])
		delete(t.byID, oldest)
	}
}

func taskSize(key taskKey, o *policy.Origin) int {
	return len(key.server) + len(key.id) + len(o.Method) + len(o.Name) + len(o.Params) + len(o.Arguments)
}

// of is the operation that made a task, nil if it is not known.
func (t *taskOrigins) of(server, id string) *policy.Origin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[taskKey{server, id}]
}
