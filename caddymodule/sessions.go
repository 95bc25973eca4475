package caddymodule

import "sync"

// sessionTable remembers the protocol version that each MCP session
// negotiated: revisions before 2025-06-18 state it only at initialize. It is
// bounded; a session it has forgotten counts as unknown. Safe for concurrent use.
type sessionTable struct {
	mu       sync.Mutex
	versions map[string]string
	order    []string // insertion order, a ring once full
	next     int
}

// maxSessions bounds the table; at 64 bytes of id and version each entry
// takes about 200 bytes.
const maxSessions = 10_000

// maxSessionID bounds what is remembered of an id; longer ones are legal but
// not worth holding.
const maxSessionID = 512

func (t *sessionTable) set(id, version string) {
	if id == "" || version == "" || len(id) > maxSessionID {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.versions == nil {
		t.versions = make(map[string]string)
	}
	if _, known := t.versions[id]; !known {
		if len(t.order) < maxSessions {
			t.order = append(t.order, id)
		} else {
			delete(t.versions, t.order[t.next])
			t.order[t.next] = id
			t.next = (t.next + 1) % maxSessions
		}
	}
	t.versions[id] = version
}

func (t *sessionTable) version(id string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.versions[id]
}

func (t *sessionTable) drop(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The ring slot stays and is reused in its turn.
	delete(t.versions, id)
}
