package caddymodule

import (
	"container/list"
	"hash/maphash"
	"sync"
	"time"
)

// sessionKey names an MCP session: ids are a server's own.
type sessionKey struct{ server, id string }

// session is what is known of an MCP session: only of one that a server has
// minted or answered with 2xx.
type session struct {
	key   sessionKey
	owner string // who opened it: see ownerOf
	ttl   time.Duration

	// Guarded by the table.
	version string // negotiated; "" if unknown
	used    time.Time
	active  int  // exchanges under way
	stream  *tee // of the HTTP+SSE transport: where answers go
	replays replays
	place   *list.Element
}

// sessionTable holds the sessions of a log. It is bounded: past maxSessions the
// one that was idle longest is forgotten, and so is one that is idle for its
// time to live. A forgotten session counts as unknown. Safe for concurrent use.
type sessionTable struct {
	// ended is told of each session that expired or was pushed out.
	ended func(sessionKey)

	mu    sync.Mutex
	byKey map[sessionKey]*session
	idle  list.List   // of *session, the one used last in front
	timer *time.Timer // of the next sweep; nil if there is nothing to forget
	wait  time.Duration
	seed  maphash.Seed
}

// maxSessions bounds the table. With the longest id and all replays noted a
// session takes 4 KiB, usually 400 bytes.
const maxSessions = 10_000

// maxSessionID bounds what is remembered of an id; longer ones are legal but
// not worth holding.
const maxSessionID = 512

// defaultSessionTTL is how long an idle session is remembered by default.
const defaultSessionTTL = time.Hour

// enter begins an exchange in a session. It returns nil if the session is not
// known; else leave must follow.
func (t *sessionTable) enter(key sessionKey) *session {
	if key.id == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byKey[key]
	if s != nil {
		t.touch(s)
		s.active++
	}
	return s
}

// learn remembers a session that a server has minted or answered with 2xx, and
// enters it. A session that is known already keeps its owner.
func (t *sessionTable) learn(key sessionKey, owner string, ttl time.Duration) *session {
	if key.id == "" || len(key.id) > maxSessionID {
		return nil
	}
	t.mu.Lock()
	s := t.byKey[key]
	var pushed *session
	if s == nil {
		if t.byKey == nil {
			t.byKey = make(map[sessionKey]*session)
			t.seed = maphash.MakeSeed()
		}
		if len(t.byKey) >= maxSessions {
			pushed = t.longestIdle()
			t.forget(pushed)
		}
		s = &session{key: key, owner: owner, ttl: ttl}
		s.place = t.idle.PushFront(s)
		t.byKey[key] = s
		t.schedule(ttl)
	}
	t.touch(s)
	s.active++
	t.mu.Unlock()
	if pushed != nil && t.ended != nil {
		t.ended(pushed.key)
	}
	return s
}

// leave ends an exchange in a session.
func (t *sessionTable) leave(s *session) {
	if s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.active--
	t.touch(s)
}

func (t *sessionTable) touch(s *session) {
	s.used = time.Now()
	if t.byKey[s.key] == s {
		t.idle.MoveToFront(s.place)
	}
}

// longestIdle is the session that is forgotten when there are too many: one
// without an exchange if there is any.
func (t *sessionTable) longestIdle() *session {
	for e := t.idle.Back(); e != nil; e = e.Prev() {
		if s := e.Value.(*session); s.active == 0 {
			return s
		}
	}
	return t.idle.Back().Value.(*session)
}

func (t *sessionTable) forget(s *session) {
	if t.byKey[s.key] == s {
		delete(t.byKey, s.key)
		t.idle.Remove(s.place)
	}
}

// drop forgets a session that was ended.
func (t *sessionTable) drop(key sessionKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byKey[key]; s != nil {
		t.forget(s)
	}
}

// setVersion notes the protocol version that a session negotiated.
func (t *sessionTable) setVersion(s *session, version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.version = version
}

// version is the protocol version that a session negotiated: revisions before
// 2025-06-18 state it only at initialize.
func (t *sessionTable) version(s *session) string {
	if s == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.version
}

// setStream notes the stream that carries a session's answers, nil when it is
// over.
func (t *sessionTable) setStream(s *session, stream *tee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.stream = stream
}

// endStream is setStream(nil) if the stream is still the session's.
func (t *sessionTable) endStream(s *session, stream *tee) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.stream == stream {
		s.stream = nil
	}
}

func (t *sessionTable) stream(s *session) *tee {
	if s == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.stream
}

// replayed notes an event of a session's stream and reports whether the same
// one, by id and content, was noted before.
func (t *sessionTable) replayed(s *session, id string, data []byte) bool {
	// The seed was made before the session was.
	var h maphash.Hash
	h.SetSeed(t.seed)
	_, _ = h.WriteString(id)
	_ = h.WriteByte(0)
	_, _ = h.Write(data)
	sum := h.Sum64()
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.replays.note(sum)
}

// stop forgets everything.
func (t *sessionTable) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	clear(t.byKey)
	t.idle.Init()
}

// count is the number of sessions.
func (t *sessionTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byKey)
}

// schedule makes sure that a sweep follows within a quarter of ttl, but at most
// ten a second.
func (t *sessionTable) schedule(ttl time.Duration) {
	wait := min(max(ttl/4, 100*time.Millisecond), time.Minute)
	if t.timer == nil {
		t.wait, t.timer = wait, time.AfterFunc(wait, t.sweep)
	} else if wait < t.wait {
		t.wait = wait
		t.timer.Reset(wait)
	}
}

// sweep forgets what has expired.
func (t *sessionTable) sweep() {
	now := time.Now()
	var expired []sessionKey
	t.mu.Lock()
	t.timer = nil
	shortest := time.Duration(0)
	for key, s := range t.byKey {
		if s.active == 0 && now.Sub(s.used) >= s.ttl {
			t.forget(s)
			expired = append(expired, key)
			continue
		}
		if shortest == 0 || s.ttl < shortest {
			shortest = s.ttl
		}
	}
	if shortest > 0 {
		t.schedule(shortest)
	}
	t.mu.Unlock()
	if t.ended == nil {
		return
	}
	for _, key := range expired {
		t.ended(key)
	}
}

// replays remembers the last events of a session by hash, so that a resumed
// stream is not recorded twice. Once full, it forgets the oldest.
type replays struct {
	hashes []uint64
	next   int
}

// maxReplays bounds the events that are remembered: 2 KiB a session.
const maxReplays = 256

// note remembers a hash and reports whether it was there.
func (r *replays) note(hash uint64) bool {
	for _, have := range r.hashes {
		if have == hash {
			return true
		}
	}
	if len(r.hashes) < maxReplays {
		r.hashes = append(r.hashes, hash)
		return false
	}
	r.hashes[r.next] = hash
	r.next = (r.next + 1) % maxReplays
	return false
}
