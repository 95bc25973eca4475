package ratelimit

import (
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Request is what a limit may count by.
type Request struct {
	Subject, Issuer, ClientID string
	Roles                     []string
	ServerID                  string
	RemoteIP                  string
	Session                   string // of the caller's own; empty: none
	ToolName                  string // of tools/call
	Method                    string
}

// Verdict is the answer for one request.
type Verdict struct {
	// Limit is what the request is over; nil: it may pass. Of several it is the
	// one that takes longest to have a token again.
	Limit *Limit
	// Wait is the time until the request would pass if nobody else came.
	Wait time.Duration
}

// Bounds of a Store. A caller's keys are its tools, methods and sessions: what
// it can make up itself.
const (
	// maxBytes bounds what a store holds.
	maxBytes = 8 << 20
	// callerBytes and keyBytes are what one of each takes at most, with its
	// share of the map that holds it.
	callerBytes = 320
	keyBytes    = 96
	// maxCallerKeys bounds the keys of one caller and limit.
	maxCallerKeys = 256
	// sweepEvery is how often a full store looks for full buckets.
	sweepEvery = time.Second
)

// Store holds the buckets of limits. It holds at most 8 MiB, by forgetting
// buckets that are full again: those are as good as new ones. While there are
// none, a new key of a caller shares one bucket with the caller's other new
// keys, and a new caller shares one with the other new callers of the limit. A
// bucket that is made when there is room again begins with what the shared one
// holds. So nobody gets a fresh burst by making up keys, and nobody who makes
// up keys takes the buckets of others. Safe for concurrent use.
type Store struct {
	mu      sync.Mutex
	seed    maphash.Seed
	callers map[uint64]*caller
	rest    map[string]*bucket // of callers without room, by limit
	bytes   int
	swept   time.Duration
	stats   Stats
}

// Stats says how full a store is.
type Stats struct {
	Callers, Keys int
	Bytes         int    // an upper bound of the memory
	Shared        uint64 // requests that were counted in a shared bucket, for want of room
}

// caller is what a store knows of one verified caller under one limit.
type caller struct {
	own  bucket            // of a limit without made-up keys, and of keys without room
	keys map[uint64]bucket // of made-up keys
}

// bucket is a token bucket, as the time when it is full again.
type bucket struct {
	full     time.Duration
	interval time.Duration // of the limit that wrote full
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{seed: maphash.MakeSeed(), callers: make(map[uint64]*caller), rest: make(map[string]*bucket), swept: -sweepEvery}
}

// Take judges a request by all limits that count its method, and takes a token
// of each of them if all have one. now is a monotonic time.
func (s *Store) Take(limits []*Limit, r *Request, now time.Duration) Verdict {
	if !slices.ContainsFunc(limits, func(l *Limit) bool { return l.Counts(r.Method) }) {
		return Verdict{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var v Verdict
	var few [4]taken
	takes := few[:0]
	for _, l := range limits {
		if !l.Counts(r.Method) {
			continue
		}
		t := s.find(l, r, now)
		b, wait := t.bucket.take(l, now)
		t.bucket = b
		takes = append(takes, t)
		if wait > v.Wait {
			v = Verdict{Limit: l, Wait: wait}
		}
	}
	if v.Limit == nil {
		for i := range takes {
			s.put(&takes[i])
		}
	}
	return v
}

// taken is a bucket and where it lies.
type taken struct {
	bucket bucket
	home   *bucket // nil: in keys
	keys   map[uint64]bucket
	key    uint64
	add    *caller // not in the store yet
	id     uint64
}

// find returns the bucket of a request. It adds nothing: a refused request
// leaves no trace.
func (s *Store) find(l *Limit, r *Request, now time.Duration) taken {
	who, what := s.hash(l, r)
	c := s.callers[who]
	if c == nil {
		if !s.room(callerBytes+keyBytes, now) {
			s.stats.Shared++
			b := s.rest[l.id]
			if b == nil {
				b = new(bucket)
				s.rest[l.id] = b
			}
			return taken{bucket: *b, home: b}
		}
		c = new(caller)
		if b := s.rest[l.id]; b != nil {
			c.own = *b
		}
		t := taken{bucket: c.own, add: c, id: who}
		if what == 0 {
			t.home = &c.own
		} else {
			c.keys = make(map[uint64]bucket)
			t.keys, t.key = c.keys, what
		}
		return t
	}
	if what == 0 {
		return taken{bucket: c.own, home: &c.own}
	}
	if b, known := c.keys[what]; known {
		return taken{bucket: b, keys: c.keys, key: what}
	}
	if len(c.keys) >= maxCallerKeys {
		s.sweepKeys(c, now)
	}
	if len(c.keys) >= maxCallerKeys || !s.room(keyBytes, now) {
		s.stats.Shared++
		return taken{bucket: c.own, home: &c.own}
	}
	if c.keys == nil {
		c.keys = make(map[uint64]bucket)
	}
	return taken{bucket: c.own, keys: c.keys, key: what}
}

func (s *Store) put(t *taken) {
	if t.add != nil {
		s.callers[t.id] = t.add
		s.bytes += callerBytes
	}
	if t.home != nil {
		*t.home = t.bucket
		return
	}
	if _, known := t.keys[t.key]; !known {
		s.bytes += keyBytes
	}
	t.keys[t.key] = t.bucket
}

// take returns the bucket without a token, or how long until there is one.
func (b bucket) take(l *Limit, now time.Duration) (bucket, time.Duration) {
	missing := max(b.full-now, 0)
	if b.interval != l.interval && b.interval > 0 {
		// The limit has changed: what was used stays used, in tokens.
		used := (missing + b.interval - 1) / b.interval
		missing = min(used, time.Duration(l.burst)) * l.interval
	}
	size := time.Duration(l.burst) * l.interval
	missing = min(missing, size)
	if wait := missing + l.interval - size; wait > 0 {
		return b, wait
	}
	return bucket{full: now + missing + l.interval, interval: l.interval}, 0
}

// room reports whether the store may grow by n bytes, and makes room first if
// it may not.
func (s *Store) room(n int, now time.Duration) bool {
	if s.bytes+n <= maxBytes {
		return true
	}
	if now-s.swept >= sweepEvery {
		s.swept = now
		s.sweep(now)
	}
	return s.bytes+n <= maxBytes
}

// sweep forgets the buckets that are full.
func (s *Store) sweep(now time.Duration) {
	for id, c := range s.callers {
		s.sweepKeys(c, now)
		if len(c.keys) == 0 && c.own.full <= now {
			delete(s.callers, id)
			s.bytes -= callerBytes
		}
	}
	for id, b := range s.rest {
		if b.full <= now {
			delete(s.rest, id)
		}
	}
}

func (s *Store) sweepKeys(c *caller, now time.Duration) {
	for key, b := range c.keys {
		if b.full <= now {
			delete(c.keys, key)
			s.bytes -= keyBytes
		}
	}
}

// Stats says how full the store is.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Callers, st.Bytes = len(s.callers), s.bytes
	st.Keys = (s.bytes - len(s.callers)*callerBytes) / keyBytes
	return st
}

// hash tells callers, and the keys of one caller, apart. what is 0 if the limit
// counts by nothing that the caller can make up. The hashes are keyed, so that
// nobody can look for names that share a bucket.
func (s *Store) hash(l *Limit, r *Request) (who, what uint64) {
	var a, b maphash.Hash
	a.SetSeed(s.seed)
	b.SetSeed(s.seed)
	write(&a, l.id)
	if !l.Named() {
		write(&a, r.ServerID)
	}
	made := false
	for _, k := range Keys {
		if !slices.Contains(l.by, k) {
			continue
		}
		switch k {
		case Subject:
			write(&a, r.Subject)
		case Issuer:
			write(&a, r.Issuer)
		case ClientID:
			write(&a, r.ClientID)
		case Role:
			roles := slices.Clone(r.Roles)
			slices.Sort(roles)
			for _, role := range slices.Compact(roles) {
				write(&a, role)
			}
			write(&a, "")
		case ServerID:
			write(&a, r.ServerID)
		case RemoteIP:
			write(&a, network(r.RemoteIP))
		case Session:
			// A session is its caller's, whatever else is counted by.
			write(&a, r.Issuer)
			write(&a, r.Subject)
			write(&a, r.ClientID)
			write(&b, r.Session)
			made = true
		case ToolName:
			write(&b, r.ToolName)
			made = true
		case Method:
			write(&b, r.Method)
			made = true
		}
	}
	if made {
		what = max(b.Sum64(), 1)
	}
	return a.Sum64(), what
}

// write hashes a text so that no two lists of texts hash alike.
func write(h *maphash.Hash, text string) {
	n := len(text)
	h.Write([]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	h.WriteString(text)
}

// network is an address as it is counted by: with IPv6 one host has a whole
// /64.
func network(address string) string {
	if !strings.Contains(address, ":") {
		return address
	}
	host := address
	if ap, err := netip.ParseAddrPort(address); err == nil {
		host = ap.Addr().String()
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return address
	}
	if ip = ip.Unmap(); ip.Is4() {
		return ip.String()
	}
	prefix, _ := ip.WithZone("").Prefix(64)
	return prefix.String()
}
