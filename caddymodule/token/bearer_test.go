package token_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

func TestTokensComeFromOneAuthorizationHeader(t *testing.T) {
	for name, c := range map[string]struct {
		values []string
		want   token.Reason
		token  string
	}{
		"none":                 {nil, token.Missing, ""},
		"one":                  {[]string{"Bearer abc.def-_~+/=="}, "", "abc.def-_~+/=="},
		"small letters":        {[]string{"bearer abc"}, "", "abc"},
		"more spaces":          {[]string{"Bearer   abc "}, "", "abc"},
		"two":                  {[]string{"Bearer abc", "Bearer abc"}, token.Repeated, ""},
		"two schemes":          {[]string{"Basic abc", "Bearer abc"}, token.Repeated, ""},
		"joined with a comma":  {[]string{"Bearer abc, Bearer def"}, token.Malformed, ""},
		"another scheme":       {[]string{"Basic abc"}, token.Missing, ""},
		"a scheme that begins": {[]string{"Bearerabc"}, token.Missing, ""},
		"DPoP":                 {[]string{"DPoP abc"}, token.Bound, ""},
		"no token":             {[]string{"Bearer"}, token.Malformed, ""},
		"no token, a space":    {[]string{"Bearer "}, token.Malformed, ""},
		"padding alone":        {[]string{"Bearer =="}, token.Malformed, ""},
		"two words":            {[]string{"Bearer abc def"}, token.Malformed, ""},
		"a tab":                {[]string{"Bearer\tabc"}, token.Missing, ""},
		"quotes":               {[]string{`Bearer "abc"`}, token.Malformed, ""},
		"not ASCII":            {[]string{"Bearer äbc"}, token.Malformed, ""},
		"too long":             {[]string{"Bearer " + strings.Repeat("a", token.MaxLength+1)}, token.TooLarge, ""},
		"empty":                {[]string{""}, token.Missing, ""},
	} {
		got, reason := token.FromHeader(http.Header{"Authorization": c.values})
		if got != c.token || reason != c.want {
			t.Errorf("%s: %q %q", name, got, reason)
		}
	}
}

func TestStaticTokensNameTheirPrincipal(t *testing.T) {
	var s token.Static
	alice, bob := strings.Repeat("a", 32), strings.Repeat("b", 64)
	for raw, subject := range map[string]string{alice: "alice", bob: "bob"} {
		if err := s.Add(raw, &token.Claims{Subject: subject}); err != nil {
			t.Fatal(err)
		}
	}
	for raw, want := range map[string]string{alice: "alice", bob: "bob", "": "", alice + "a": "", alice[:31]: "", strings.ToUpper(alice): ""} {
		c, reason := s.Verify(raw)
		if want == "" && (c != nil || reason != token.Unknown) || want != "" && (reason != "" || c.Subject != want) {
			t.Errorf("%q: %v %q", raw, c, reason)
		}
	}
	for _, bad := range []string{alice, "", strings.Repeat("c", 31), strings.Repeat("c", token.MaxLength+1), strings.Repeat("c", 31) + " ", strings.Repeat("c", 32) + "\n", strings.Repeat("ü", 32)} {
		err := s.Add(bad, &token.Claims{})
		if err == nil {
			t.Errorf("%q is accepted", bad)
		} else if bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("the error has the token: %v", err)
		}
	}
}

func TestWrongTokensAreThrottledByAddress(t *testing.T) {
	h := &token.Throttle{Most: 3, Window: time.Minute}
	wrong := func(address string, after time.Duration) { h.Wrong(address, now.Add(after)) }
	wait := func(address string, after time.Duration) time.Duration { return h.Wait(address, now.Add(after)) }
	for i := range 3 {
		if w := wait("192.0.2.1", 0); w != 0 {
			t.Fatalf("throttled after %d: %s", i, w)
		}
		wrong("192.0.2.1:443", 0)
	}
	if w := wait("192.0.2.1", 10*time.Second); w != 50*time.Second {
		t.Errorf("waits %s", w)
	}
	if w := wait("192.0.2.2", 0); w != 0 {
		t.Errorf("another address waits %s", w)
	}
	if w := wait("192.0.2.1", time.Minute); w != 0 {
		t.Errorf("after the window: %s", w)
	}
	wrong("192.0.2.1", time.Minute)
	if w := wait("192.0.2.1", time.Minute); w != 0 {
		t.Errorf("one in a new window: %s", w)
	}
	for range 3 {
		wrong("2001:db8::1", 0)
	}
	if w := wait("2001:db8::ffff", 0); w == 0 {
		t.Error("a host has a whole /64")
	}
	if w := wait("2001:db8:0:1::1", 0); w != 0 {
		t.Error("another /64")
	}
}

func TestThrottleForgetsTheOldest(t *testing.T) {
	h := &token.Throttle{Most: 1, Window: time.Hour}
	h.Wrong("first", now)
	for i := range 8191 {
		h.Wrong("address "+strings.Repeat("x", i%7)+string(rune('a'+i%26))+time.Duration(i).String(), now)
	}
	if h.Wait("first", now) == 0 {
		t.Fatal("forgotten too early")
	}
	h.Wrong("one more", now)
	if h.Wait("first", now) != 0 || h.Wait("one more", now) == 0 {
		t.Error("the oldest is not the one that was forgotten")
	}
}

func TestChallengesNameTheMetadata(t *testing.T) {
	at := func(path string) token.Resource {
		return token.Resource{Origin: "https://mcp.example", Path: path}
	}
	const wellKnown = `resource_metadata="https://mcp.example/.well-known/oauth-protected-resource`
	for want, got := range map[string]string{
		`Bearer ` + wellKnown + `/mcp/tools"`:                                        token.Challenge(token.Missing, at("/mcp/tools"), nil),
		`Bearer ` + wellKnown + `", error="invalid_token"`:                           token.Challenge(token.Expired, at("/"), nil),
		`Bearer ` + wellKnown + `/mcp", scope="a b", error="insufficient_scope"`:     token.Challenge(token.ScopeMissing, at("/mcp"), []string{"a", "b"}),
		`Bearer ` + wellKnown + `/a%22b/", scope="c\"d\\e", error="invalid_request"`: token.Challenge(token.Repeated, at("/a%22b/"), []string{`c"d\e`}),
		`Bearer realm="mcp-audit"`:                                                   token.Challenge(token.Missing, token.Resource{}, nil),
	} {
		if got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func TestMetadataIsThatOfRFC9728(t *testing.T) {
	m := token.Metadata{Resource: "https://mcp.example/mcp", AuthorizationServers: []string{issuer}, ScopesSupported: []string{"a", `b"`}}
	want := `{"resource":"https://mcp.example/mcp","authorization_servers":["https://login.example.com/tenant"],"scopes_supported":["a","b\""],"bearer_methods_supported":["header"]}`
	if got := strings.TrimSpace(string(m.JSON())); got != want {
		t.Errorf("%s", got)
	}
}
