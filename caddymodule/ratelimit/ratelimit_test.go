package ratelimit_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
)

func limits(t testing.TB, configs ...ratelimit.Config) []*ratelimit.Limit {
	t.Helper()
	l, err := ratelimit.New(configs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// call is a request that all tests start from.
func call(tool string) *ratelimit.Request {
	return &ratelimit.Request{Subject: "alice", ClientID: "desk", Method: "tools/call", ToolName: tool, RemoteIP: "192.0.2.1"}
}

func perMinute(n int, by ...ratelimit.Key) ratelimit.Config {
	return ratelimit.Config{Requests: n, Window: time.Minute, By: by}
}

func TestBucketHoldsItsBurstAndFillsAtItsRate(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, ratelimit.Config{Requests: 6, Window: time.Minute, Burst: 2, By: []ratelimit.Key{ratelimit.ClientID}})
	for _, step := range []struct {
		at   time.Duration
		wait time.Duration
	}{
		{0, 0}, {0, 0}, {0, 10 * time.Second},
		{9 * time.Second, time.Second},
		{10 * time.Second, 0}, {10 * time.Second, 10 * time.Second},
		{time.Hour, 0}, {time.Hour, 0}, {time.Hour, 10 * time.Second},
	} {
		if v := s.Take(l, call("echo"), step.at); v.Wait != step.wait || (v.Limit == nil) != (step.wait == 0) {
			t.Errorf("at %s: wait %s, want %s", step.at, v.Wait, step.wait)
		}
	}
}

func TestRefusedRequestsCostNothing(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.ClientID))
	s.Take(l, call("echo"), 0)
	for range 100 {
		s.Take(l, call("echo"), time.Second)
	}
	if v := s.Take(l, call("echo"), time.Minute); v.Limit != nil {
		t.Errorf("after a minute: wait %s", v.Wait)
	}
}

func TestKeysTellRequestsApart(t *testing.T) {
	for _, c := range []struct {
		key    ratelimit.Key
		change func(*ratelimit.Request)
	}{
		{ratelimit.Subject, func(r *ratelimit.Request) { r.Subject = "bob" }},
		{ratelimit.Issuer, func(r *ratelimit.Request) { r.Issuer = "https://id.example" }},
		{ratelimit.ClientID, func(r *ratelimit.Request) { r.ClientID = "phone" }},
		{ratelimit.Role, func(r *ratelimit.Request) { r.Roles = []string{"operator"} }},
		{ratelimit.ServerID, func(r *ratelimit.Request) { r.ServerID = "files" }},
		{ratelimit.RemoteIP, func(r *ratelimit.Request) { r.RemoteIP = "192.0.2.2" }},
		{ratelimit.Session, func(r *ratelimit.Request) { r.Session = "s1" }},
		{ratelimit.ToolName, func(r *ratelimit.Request) { r.ToolName = "read" }},
		{ratelimit.Method, func(r *ratelimit.Request) { r.Method = "prompts/get" }},
	} {
		t.Run(string(c.key), func(t *testing.T) {
			with := perMinute(1, c.key)
			without := perMinute(1, ratelimit.Subject)
			if c.key == ratelimit.Subject {
				without = perMinute(1, ratelimit.ClientID)
			}
			if c.key != ratelimit.ToolName {
				with.Methods, without.Methods = []string{"*"}, []string{"*"}
			}
			with.Name, without.Name = "with", "without"
			changed := call("echo")
			c.change(changed)
			for _, config := range []ratelimit.Config{with, without} {
				s := ratelimit.NewStore()
				l := limits(t, config)
				s.Take(l, call("echo"), 0)
				apart := s.Take(l, changed, 0).Limit == nil
				if apart != (config.Name == "with") {
					t.Errorf("counted apart %s %s: %t", config.Name, c.key, apart)
				}
			}
		})
	}
}

func TestTextsOfKeysDoNotRunTogether(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.Subject, ratelimit.Issuer))
	a, b := call("echo"), call("echo")
	a.Subject, a.Issuer = "ab", "c"
	b.Subject, b.Issuer = "a", "bc"
	s.Take(l, a, 0)
	if s.Take(l, b, 0).Limit != nil {
		t.Error("two callers share a bucket")
	}
}

func TestRolesAreASet(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.Role))
	a, b := call("echo"), call("echo")
	a.Roles, b.Roles = []string{"x", "y"}, []string{"y", "x", "y"}
	s.Take(l, a, 0)
	if s.Take(l, b, 0).Limit == nil {
		t.Error("the order of roles changes the bucket")
	}
}

func TestIPv6HostCountsByItsNetwork(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true},
		{"2001:db8:1:2::1", "[2001:db8:1:2::7]:4711", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"192.0.2.1", "192.0.2.2", false},
		{"192.0.2.1", "192.0.2.1:80", true},
		{"192.0.2.1", "::ffff:192.0.2.1", true},
	} {
		s := ratelimit.NewStore()
		l := limits(t, perMinute(1, ratelimit.RemoteIP))
		a, b := call("echo"), call("echo")
		a.RemoteIP, b.RemoteIP = c.a, c.b
		s.Take(l, a, 0)
		if same := s.Take(l, b, 0).Limit != nil; same != c.same {
			t.Errorf("%s and %s share a bucket: %t", c.a, c.b, same)
		}
	}
}

func TestSessionsOfOtherCallersAreOthers(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.Session))
	a, b := call("echo"), call("echo")
	a.Session, b.Session, b.Subject = "s", "s", "bob"
	s.Take(l, a, 0)
	if s.Take(l, b, 0).Limit != nil {
		t.Error("bob is counted in the session of alice")
	}
}

func TestLimitCountsItsMethodsAlone(t *testing.T) {
	for _, c := range []struct {
		methods []string
		method  string
		counted bool
	}{
		{nil, "tools/call", true},
		{nil, "tools/list", false},
		{[]string{"*"}, "initialize", true},
		{[]string{"*"}, "notifications/cancelled", false},
		{[]string{"n*"}, "notifications/cancelled", false},
		{[]string{"notifications/*"}, "notifications/progress", true},
		{[]string{"notifications/progress"}, "notifications/progress", true},
		{[]string{"notifications/progress"}, "notifications/cancelled", false},
		{[]string{"resources/*", "prompts/get"}, "resources/read", true},
		{[]string{"resources/*", "prompts/get"}, "prompts/list", false},
		{[]string{"tools/call"}, "tools/callx", false},
	} {
		l := limits(t, ratelimit.Config{Requests: 1, Window: time.Second, By: []ratelimit.Key{ratelimit.ClientID}, Methods: c.methods})
		if got := l[0].Counts(c.method); got != c.counted {
			t.Errorf("%q counts %s: %t", c.methods, c.method, got)
		}
	}
}

func TestRequestTakesOfAllLimitsOrOfNone(t *testing.T) {
	s := ratelimit.NewStore()
	tools := perMinute(3, ratelimit.ClientID, ratelimit.ToolName)
	all := perMinute(4, ratelimit.ClientID)
	all.Name = "all"
	l := limits(t, tools, all)
	for i := range 3 {
		if v := s.Take(l, call("echo"), 0); v.Limit != nil {
			t.Fatalf("call %d: over %s", i, v.Limit.Name())
		}
	}
	if v := s.Take(l, call("echo"), 0); v.Limit == nil || v.Limit.Name() != "3/1m by client_id tool_name" {
		t.Fatalf("the fourth call: %+v", v)
	}
	if v := s.Take(l, call("read"), 0); v.Limit != nil {
		t.Fatalf("the refused call took a token of %s", v.Limit.Name())
	}
	if v := s.Take(l, call("read"), 0); v.Limit == nil || v.Limit.Name() != "all" {
		t.Fatalf("the sixth call: %+v", v)
	}
}

func TestLimitsOfTheSameKeysHaveTheirOwnBuckets(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, ratelimit.Config{Requests: 2, Window: time.Second, By: []ratelimit.Key{ratelimit.ClientID}}, perMinute(3, ratelimit.ClientID))
	for i, want := range []string{"", "", "2/1s by client_id"} {
		if got := name(s.Take(l, call("echo"), 0)); got != want {
			t.Errorf("call %d: %q, want %q", i, got, want)
		}
	}
	s.Take(l, call("echo"), time.Second)
	if got := name(s.Take(l, call("echo"), time.Second)); got != "3/1m by client_id" {
		t.Errorf("over %q", got)
	}
}

func name(v ratelimit.Verdict) string {
	if v.Limit == nil {
		return ""
	}
	return v.Limit.Name()
}

func TestChangedLimitGoesOnFromWhatWasUsed(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to ratelimit.Config
		left     int // calls that pass at once after the change
	}{
		{"more", perMinute(4, ratelimit.ClientID), perMinute(10, ratelimit.ClientID), 6},
		{"fewer", perMinute(4, ratelimit.ClientID), perMinute(2, ratelimit.ClientID), 0},
		{"same", perMinute(4, ratelimit.ClientID), perMinute(4, ratelimit.ClientID), 0},
		{"another window", perMinute(4, ratelimit.ClientID), ratelimit.Config{Requests: 5, Window: time.Hour, By: []ratelimit.Key{ratelimit.ClientID}}, 1},
		{"largest interval", ratelimit.Config{Requests: 1_000_000, Window: time.Millisecond, By: []ratelimit.Key{ratelimit.ClientID}},
			ratelimit.Config{Requests: 1, Window: ratelimit.LongestWindow, Burst: 12, By: []ratelimit.Key{ratelimit.ClientID}}, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := ratelimit.NewStore()
			from, to := limits(t, c.from), limits(t, c.to)
			for range 4 {
				if s.Take(from, call("echo"), 0).Limit != nil {
					t.Fatal("over the limit before the change")
				}
			}
			left := 0
			for s.Take(to, call("echo"), 0).Limit == nil {
				left++
			}
			if left != c.left {
				t.Errorf("%d calls pass, want %d", left, c.left)
			}
		})
	}
}

func TestNamedLimitIsOneForAllServers(t *testing.T) {
	for _, limit := range []string{"", "shared"} {
		s := ratelimit.NewStore()
		c := perMinute(1, ratelimit.ClientID)
		c.Name = limit
		l := limits(t, c)
		a, b := call("echo"), call("echo")
		a.ServerID, b.ServerID = "one", "two"
		s.Take(l, a, 0)
		if common := s.Take(l, b, 0).Limit != nil; common != (limit != "") {
			t.Errorf("name %q: the servers share a bucket: %t", limit, common)
		}
	}
}

// TestChurnOfKeysGivesNoFreshBurst is the attack on the bound: a caller that
// makes up tool names to push its own exhausted bucket out.
func TestChurnOfKeysGivesNoFreshBurst(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(5, ratelimit.ClientID, ratelimit.ToolName))
	pass := func(tool string, now time.Duration) bool { return s.Take(l, call(tool), now).Limit == nil }
	for range 5 {
		pass("wire", 0)
	}
	passed := 0
	for i := range 5000 {
		if pass(fmt.Sprint("made-up-", i), 0) {
			passed++
		}
		if pass("wire", 0) {
			t.Fatalf("wire passes after %d other tools", i+1)
		}
	}
	// 255 more keys of its own, and one burst for all the rest.
	if passed != 255+5 {
		t.Errorf("%d made-up tools passed, want 260", passed)
	}
	if st := s.Stats(); st.Callers != 1 || st.Keys != 256 || st.Shared == 0 {
		t.Errorf("stats %+v", st)
	}
	// A key that was counted in the shared bucket does not begin anew when
	// there is room again.
	now := 12*time.Second - 1
	if pass("late", now) {
		t.Error("late passes before the shared bucket has a token")
	}
	got := 0
	for now = 12 * time.Second; pass("late", now); {
		got++
	}
	if got != 1 {
		t.Errorf("late passes %d times, want once, as the shared bucket would", got)
	}
}

func TestChurnOfOneCallerLeavesOthersTheirBuckets(t *testing.T) {
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.ClientID, ratelimit.ToolName))
	for i := range 5000 {
		s.Take(l, call(fmt.Sprint(i)), 0)
	}
	bob := call("echo")
	bob.ClientID = "bob"
	for _, tool := range []string{"a", "b", "c"} {
		bob.ToolName = tool
		if s.Take(l, bob, 0).Limit != nil {
			t.Errorf("bob has no bucket for %s", tool)
		}
	}
}

func TestStoreIsBoundedInBytes(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := ratelimit.NewStore()
	l := limits(t, perMinute(1, ratelimit.RemoteIP, ratelimit.ToolName))
	r := call("echo")
	shared := 0
	for i := range 200_000 {
		r.RemoteIP, r.ToolName = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), fmt.Sprint(i%7)
		if s.Take(l, r, 0).Limit != nil {
			shared++
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	st := s.Stats()
	held := int(after.HeapAlloc) - int(before.HeapAlloc)
	t.Logf("%d callers and %d keys: %d bytes held, %d counted", st.Callers, st.Keys, held, st.Bytes)
	if st.Bytes > 8<<20 || held > st.Bytes {
		t.Errorf("%d bytes held, %d counted, of 8 MiB", held, st.Bytes)
	}
	if want := 200_000 - st.Callers - 1; shared != want {
		t.Errorf("%d callers without room are over their one bucket, want %d", shared, want)
	}
	// When the buckets are full again, there is room.
	r.RemoteIP = "192.0.2.99"
	if s.Take(l, r, 2*time.Minute).Limit != nil {
		t.Error("a new caller is over the limit although all buckets are full")
	}
	if st := s.Stats(); st.Callers != 1 || st.Keys != 1 {
		t.Errorf("after the sweep: %+v", st)
	}
	runtime.KeepAlive(s)
}

func TestImpossibleLimitsAreErrors(t *testing.T) {
	by := []ratelimit.Key{ratelimit.ClientID}
	for _, c := range []struct {
		limit ratelimit.Config
		say   string
	}{
		{ratelimit.Config{Window: time.Second, By: by}, "0 requests"},
		{ratelimit.Config{Requests: -1, Window: time.Second, By: by}, "-1 requests"},
		{ratelimit.Config{Requests: 1_000_001, Window: time.Second, By: by}, "out of bounds"},
		{ratelimit.Config{Requests: 1, By: by}, "window of 0s"},
		{ratelimit.Config{Requests: 1, Window: -time.Second, By: by}, "window of -1s"},
		{ratelimit.Config{Requests: 1, Window: 31 * 24 * time.Hour, By: by}, "out of bounds"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: by, Burst: -1}, "burst of -1"},
		{ratelimit.Config{Requests: 1, Window: 24 * time.Hour, By: by, Burst: 1000}, "smaller burst"},
		{ratelimit.Config{Requests: 1, Window: time.Second}, "name any of subject"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: []ratelimit.Key{"user"}}, `"user"`},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: []ratelimit.Key{"method", "method"}}, "twice"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: by, Methods: []string{"a*b"}}, "no method"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: by, Methods: []string{""}}, "no method"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: by, Methods: []string{"ping", "ping"}}, "twice"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: []ratelimit.Key{"tool_name"}, Methods: []string{"ping"}}, "only tools/call"},
		{ratelimit.Config{Requests: 1, Window: time.Second, By: by, Name: "a\nb"}, "control characters"},
	} {
		_, err := ratelimit.New([]ratelimit.Config{c.limit})
		if err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%+v: %v, want %q", c.limit, err, c.say)
		}
	}
	named := perMinute(1, ratelimit.ClientID)
	named.Name = "x"
	other := perMinute(2, ratelimit.ClientID)
	other.Name = "x"
	for _, pair := range [][]ratelimit.Config{{named, other}, {perMinute(1, ratelimit.ClientID), perMinute(1, ratelimit.ClientID)}} {
		if _, err := ratelimit.New(pair); err == nil {
			t.Errorf("%+v: no error", pair)
		}
	}
}

func TestRatesAreReadStrictly(t *testing.T) {
	for text, want := range map[string]struct {
		n      int
		window time.Duration
	}{
		"60/1m": {60, time.Minute}, "1/1ms": {1, time.Millisecond}, "5/1h30m": {5, 90 * time.Minute},
		"1000000/30d": {1_000_000, 30 * 24 * time.Hour}, "2/1d": {2, 24 * time.Hour},
	} {
		n, window, err := ratelimit.ParseRate(text)
		if err != nil || n != want.n || window != want.window {
			t.Errorf("%s: %d %s %v", text, n, window, err)
		}
	}
	for _, text := range []string{
		"", "60", "/1m", "60/", "0/1m", "-1/1m", "+1/1m", "6e1/1m", "60/0s", "60/-1m", "60/m", "60/31d", "60/1x",
		"1000001/1m", "99999999999999999999/1m", "60/1us", "60/1m/1m", " 60/1m", "60 / 1m", "٣/1m", "60/721h", "1.5/1m", "60/1.5d",
	} {
		if n, window, err := ratelimit.ParseRate(text); err == nil {
			t.Errorf("%q is read as %d in %s", text, n, window)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"60/1m", "1/30d", "0/0", "9/1h0m0.5s", "60/m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, window, err := ratelimit.ParseRate(text)
		if err != nil {
			return
		}
		if n < 1 || n > ratelimit.MostRequests || window < ratelimit.ShortestWindow || window > ratelimit.LongestWindow {
			t.Fatalf("%q is read as %d in %s", text, n, window)
		}
		again, same, err := ratelimit.ParseRate(ratelimit.FormatRate(n, window))
		if err != nil || again != n || same != window {
			t.Fatalf("%q is written as %q: %v", text, ratelimit.FormatRate(n, window), err)
		}
	})
}

// FuzzTake plays calls of few callers and tools against a sliding count: in no
// span may more pass than its burst and what comes back in it.
func FuzzTake(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 250, 1, 1, 1, 1, 1, 90, 7})
	f.Fuzz(func(t *testing.T, steps []byte) {
		const burst = 3
		s := ratelimit.NewStore()
		l := limits(t, ratelimit.Config{Requests: 10, Window: time.Second, Burst: burst, By: []ratelimit.Key{ratelimit.ToolName}})
		passed := make(map[string][]time.Duration)
		var now time.Duration
		for _, step := range steps {
			now += time.Duration(step>>2) * 10 * time.Millisecond
			tool := fmt.Sprint(step & 3)
			v := s.Take(l, call(tool), now)
			if v.Limit != nil {
				if v.Wait <= 0 || s.Take(l, call(tool), now+v.Wait-1).Limit == nil {
					t.Fatalf("a wait of %s is not the shortest", v.Wait)
				}
				continue
			}
			times := append(passed[tool], now)
			passed[tool] = times
			for i, from := range times {
				if most := burst + int((now-from)/(100*time.Millisecond)); len(times)-i > most {
					t.Fatalf("%d calls in %s, at most %d may pass", len(times)-i, now-from, most)
				}
			}
		}
	})
}

// BenchmarkTake says what a limit costs, also as a share of the scan that each
// message needs in any case.
func BenchmarkTake(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("word ", 200) + `"}}}`)
	var msgs []mcp.Message
	began := time.Now()
	const scans = 10_000
	for range scans {
		msgs, _, _ = mcp.Scan(body, msgs[:0])
	}
	scan := float64(time.Since(began)) / scans
	s := ratelimit.NewStore()
	l := limits(b, ratelimit.Config{Requests: 1_000_000, Window: time.Second, By: []ratelimit.Key{ratelimit.ClientID, ratelimit.ToolName}})
	r := call("echo")
	b.ReportAllocs()
	for i := range b.N {
		s.Take(l, r, time.Duration(i)*time.Microsecond)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/scan, "x-scan-1KB")
}
