package dashboard

import (
	"errors"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestReferenceIsComplete compares docs/dashboard.md with the program.
func TestReferenceIsComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/dashboard.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := func(section string) (names []string) {
		_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
		if !found {
			t.Fatalf("docs/dashboard.md has no section %q", section)
		}
		text, _, _ = strings.Cut(text, "\n## ")
		for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(text, -1) {
			names = append(names, row[1])
		}
		slices.Sort(names)
		return names
	}
	have := []string{"api/operations/{id}", "api/operations/{id}/proof"}
	for name := range endpoints {
		have = append(have, "api/"+name)
	}
	slices.Sort(have)
	if documented := rows("Endpoints"); !slices.Equal(documented, have) {
		t.Errorf("the endpoints are %q, the page has %q", have, documented)
	}
	samples := map[string]string{
		"from": "2026-12-01T00:00:00Z", "to": "2026-12-02T00:00:00Z", "limit": "5", "outcome": "denied", "decision": "deny", "own": "1", "payloads": "1",
		"before": "1.5", "after": "1.5",
	}
	documented := rows("Parameters of entries")
	for _, name := range documented {
		value := samples[name]
		if value == "" {
			value = "x"
		}
		if _, err := parseEntries(url.Values{name: {value}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	source, err := os.ReadFile("query.go")
	if err != nil {
		t.Fatal(err)
	}
	_, take, _ := strings.Cut(string(source), "switch name {\n\tcase \"method\":")
	take, _, _ = strings.Cut("\tcase \"method\":"+take, "default:")
	var taken []string
	for _, m := range regexp.MustCompile(`(?m)^\tcase (.*):$`).FindAllStringSubmatch(take, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			taken = append(taken, strings.Trim(name, `"`))
		}
	}
	slices.Sort(taken)
	if taken = slices.DeleteFunc(taken, func(n string) bool { return n == "tool" }); !slices.Equal(documented, taken) {
		t.Errorf("the parameters are %q, the page has %q", taken, documented)
	}
}

func TestParametersWithoutSenseAreErrors(t *testing.T) {
	for _, query := range []string{
		"limit=0", "limit=501", "limit=x", "limit=1e3", "from=yesterday", "from=1960-01-01T00:00:00Z", "to=9999-01-01T00:00:00Z",
		"from=2026-12-02T00:00:00Z&to=2026-12-01T00:00:00Z", "outcome=fine", "decision=yes", "own=maybe", "before=", "before=1", "after=-1.2", "tols=x",
		"text=" + strings.Repeat("x", maxParameter+1),
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parseEntries(values)
		var fault *apiError
		if query == "before=" {
			// A field of a form that was left empty is no filter.
			if err != nil {
				t.Errorf("%s: %v", query, err)
			}
			continue
		}
		if !errors.As(err, &fault) || fault.status != 400 {
			t.Errorf("%s: %v", query, err)
		}
	}
	w, err := parseEntries(url.Values{"text": {"geheim"}, "tool_name": {"a", "b*"}, "limit": {"7"}})
	if err != nil || w.target != "entries text=… tool_name=a tool_name=b*" || w.filter.Limit != 7 {
		t.Errorf("%+v %v", w, err)
	}
}

func TestSessionsEndAndCannotBeMade(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	g, other := newGate(strings.Repeat("a", 32)), newGate(strings.Repeat("b", 32))
	g.now = func() time.Time { return now }
	other.now = g.now
	s := g.session(now.Add(time.Hour))
	if !g.valid(s) || other.valid(s) {
		t.Error("a session is one of its token")
	}
	for _, bad := range []string{"", ".", s[1:], s + "0", strings.Replace(s, ".", "", 1), "99999999999." + strings.SplitN(s, ".", 2)[1], "x." + strings.SplitN(s, ".", 2)[1]} {
		if g.valid(bad) {
			t.Errorf("%q is valid", bad)
		}
	}
	if now = now.Add(time.Hour); g.valid(s) {
		t.Error("it does not end")
	}
}

// However many addresses guess, what is remembered of them is bounded, and the
// last ones are slowed down too.
func TestFailuresAreCountedInBoundedMemory(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	g := newGate(strings.Repeat("a", 32))
	g.now = func() time.Time { return now }
	one := source("192.0.2.1:50000")
	for range mostFailures {
		if g.wait(one) != 0 {
			t.Fatal("too soon")
		}
		g.fail(one)
	}
	if g.wait(source("192.0.2.1:50001")) == 0 || g.wait(source("192.0.2.2:1")) != 0 {
		t.Error("it goes by the address, not by the port")
	}
	if source("[2001:db8::1]:1") != source("[2001:db8::2]:1") || source("[2001:db8:0:1::1]:1") == source("[2001:db8::1]:1") || source("[::ffff:192.0.2.1]:9") != one {
		t.Error("an IPv6 address counts by its /64, a mapped one as IPv4")
	}
	for i := range 3 * mostAddresses {
		g.fail(source("[2001:db8:" + word(i>>16) + ":" + word(i&0xffff) + "::1]:1"))
	}
	if n := len(g.failures); n > mostAddresses+1 {
		t.Errorf("%d addresses are remembered", n)
	}
	now = now.Add(failureTime)
	if g.wait(one) != 0 {
		t.Error("it does not end")
	}
}

func word(n int) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[n>>12&15], digits[n>>8&15], digits[n>>4&15], digits[n&15]})
}

func TestTokensThatCouldBeGuessedAreRefused(t *testing.T) {
	for token, ok := range map[string]bool{
		"": false, "short": false, strings.Repeat("x", 31): false, strings.Repeat("x", 32): true, strings.Repeat("x", 4097): false,
		strings.Repeat("x", 31) + " y": false, strings.Repeat("x", 40) + "\n": false,
	} {
		if err := CheckToken(token); (err == nil) != ok {
			t.Errorf("%q: %v", token, err)
		}
	}
}
