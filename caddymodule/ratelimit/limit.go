// Package ratelimit decides whether a request is within its rate limits. It is
// pure: it reads no clock and knows nothing of HTTP.
//
// A limit is a token bucket for each value of what it counts by: full at first,
// filled again evenly at the limit's rate, never over its burst. A request that
// finds no token is over the limit. A request takes a token of each limit that
// counts it, or of none if one of them has none left.
package ratelimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Key is something that a limit counts by.
type Key string

// The keys. All but the tool and the method come from a verified identity, the
// configuration or the connection; no header of a client changes one.
const (
	Subject  Key = "subject"
	Issuer   Key = "issuer"
	ClientID Key = "client_id"
	Role     Key = "role"      // the caller's roles, as one set
	ServerID Key = "server_id" // of the route
	RemoteIP Key = "remote_ip" // an IPv6 address counts by its /64
	Session  Key = "session"   // of the caller's own; none: of the caller
	ToolName Key = "tool_name"
	Method   Key = "method"
)

// Keys are all keys.
var Keys = []Key{Subject, Issuer, ClientID, Role, ServerID, RemoteIP, Session, ToolName, Method}

// Bounds of a limit.
const (
	MostRequests   = 1_000_000
	ShortestWindow = time.Millisecond
	LongestWindow  = 30 * 24 * time.Hour
	// LongestFill bounds the time in which an empty bucket is full again.
	LongestFill = 366 * 24 * time.Hour
)

// longestName bounds the name of a limit in bytes; it stands in records.
const longestName = 128

// toolsCall is the method that a limit counts by default.
const toolsCall = "tools/call"

// Config is a limit as written.
type Config struct {
	// Name is how records name the limit. Limits of one name on several routes
	// of a log have their buckets in common. Empty: the limit's text, and
	// buckets of the route's server alone.
	Name string
	// Requests are allowed in each Window, on average.
	Requests int
	Window   time.Duration
	// By is what is counted by, at least one key.
	By []Key
	// Burst is how many requests may come at once; 0: Requests.
	Burst int
	// Methods are the methods that are counted: exact ones, or a prefix and
	// `*`. A lone `*` stands for all requests; a notification is counted only
	// by a pattern that begins with `notifications/`. Empty: tools/call.
	Methods []string
}

// Limit is a compiled Config. It is immutable and safe for concurrent use.
type Limit struct {
	name     string
	id       string // of its buckets
	spec     string
	by       []Key
	methods  []string
	interval time.Duration // in which a token comes back
	burst    int64
}

// New checks and compiles the limits of a route. Errors name the limit and the
// remedy. Limits without a name that count the same have their buckets by their
// order.
func New(configs []Config) ([]*Limit, error) {
	var limits []*Limit
	same := make(map[string]int)
	for _, c := range configs {
		l, err := compile(c)
		if err != nil {
			return nil, err
		}
		for _, other := range limits {
			switch {
			case l.Named() && l.id == other.id:
				return nil, fmt.Errorf("limit %q is given twice; keep one, or name them apart", l.name)
			case l.spec == other.spec:
				return nil, fmt.Errorf("limit %q says the same as %q; keep one", l.name, other.name)
			}
		}
		if !l.Named() {
			same[l.id]++
			l.id += " " + strconv.Itoa(same[l.id])
		}
		limits = append(limits, l)
	}
	return limits, nil
}

func compile(c Config) (*Limit, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	burst := c.Burst
	if burst == 0 {
		burst = c.Requests
	}
	// Rounded up, so that never more than the rate comes back.
	interval := (c.Window + time.Duration(c.Requests) - 1) / time.Duration(c.Requests)
	if time.Duration(burst) > LongestFill/interval {
		return nil, fmt.Errorf("a burst of %d at %s would take more than a year to come back; use a smaller burst", burst, FormatRate(c.Requests, c.Window))
	}
	methods := slices.Clone(c.Methods)
	if len(methods) == 0 {
		methods = []string{toolsCall}
	}
	slices.Sort(methods)
	by := slices.Clone(c.By)
	l := &Limit{name: c.Name, by: by, methods: methods, interval: interval, burst: int64(burst)}
	text := make([]string, len(by))
	for i, k := range by {
		text[i] = string(k)
	}
	if l.name == "" {
		l.name = FormatRate(c.Requests, c.Window) + " by " + strings.Join(text, " ")
	}
	slices.Sort(text)
	counts := fmt.Sprintf("%q %q", text, methods)
	l.id = "named " + strconv.Quote(c.Name)
	if c.Name == "" {
		l.id = "by " + counts
	}
	l.spec = fmt.Sprintf("%s %d %d", counts, interval, burst)
	return l, nil
}

func (c *Config) check() error {
	if c.Requests < 1 || c.Requests > MostRequests {
		return fmt.Errorf("%d requests are out of bounds; use 1 to %d", c.Requests, MostRequests)
	}
	if c.Window < ShortestWindow || c.Window > LongestWindow {
		return fmt.Errorf("a window of %s is out of bounds; use %s to %s", c.Window, ShortestWindow, LongestWindow)
	}
	if c.Burst < 0 || c.Burst > MostRequests {
		return fmt.Errorf("a burst of %d is out of bounds; use 1 to %d", c.Burst, MostRequests)
	}
	if len(c.By) == 0 {
		return fmt.Errorf("nothing to count by; name any of %s", keyList())
	}
	for i, k := range c.By {
		if !slices.Contains(Keys, k) {
			return fmt.Errorf("nothing can be counted by %q; use any of %s", k, keyList())
		}
		if slices.Contains(c.By[:i], k) {
			return fmt.Errorf("%s is named twice; keep one", k)
		}
	}
	if len(c.Name) > longestName || strings.ContainsFunc(c.Name, isControl) {
		return fmt.Errorf("the name must be at most %d bytes without control characters", longestName)
	}
	for i, m := range c.Methods {
		if err := checkMethod(m); err != nil {
			return err
		}
		if slices.Contains(c.Methods[:i], m) {
			return fmt.Errorf("method %s is named twice; keep one", m)
		}
	}
	if slices.Contains(c.By, ToolName) && !slices.ContainsFunc(c.methodsOrDefault(), func(p string) bool { return matches(p, toolsCall) }) {
		return fmt.Errorf("only %s has a tool_name, and the methods do not have it; add it, or count by something else", toolsCall)
	}
	return nil
}

func (c *Config) methodsOrDefault() []string {
	if len(c.Methods) == 0 {
		return []string{toolsCall}
	}
	return c.Methods
}

func checkMethod(pattern string) error {
	fixed := strings.TrimSuffix(pattern, "*")
	if pattern == "" || strings.ContainsAny(fixed, "* \t\r\n") {
		return fmt.Errorf("%q is no method; write one as tools/call, or a beginning and *, as resources/*", pattern)
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func keyList() string {
	words := make([]string, len(Keys))
	for i, k := range Keys {
		words[i] = string(k)
	}
	return strings.Join(words, ", ")
}

// Name is how records name the limit.
func (l *Limit) Name() string { return l.name }

// ID tells the buckets of this limit from those of others: a limit that only
// has another rate or burst goes on with them.
func (l *Limit) ID() string { return l.id }

// Spec is the same for limits that decide alike.
func (l *Limit) Spec() string { return l.spec }

// Named reports whether the limit has a name of its own, and so has its buckets
// in common with those of that name.
func (l *Limit) Named() bool { return strings.HasPrefix(l.id, "named ") }

// Counts reports whether the limit counts messages of this method.
func (l *Limit) Counts(method string) bool {
	for _, p := range l.methods {
		if matches(p, method) {
			return true
		}
	}
	return false
}

func matches(pattern, method string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	if !open {
		return pattern == method
	}
	const notifications = "notifications/"
	if strings.HasPrefix(method, notifications) && !strings.HasPrefix(prefix, notifications) {
		return false
	}
	return strings.HasPrefix(method, prefix)
}
