package token_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

// issuerServer is an issuer whose keys the test changes.
type issuerServer struct {
	*httptest.Server
	mu      sync.Mutex
	keys    []byte
	down    bool
	fetches atomic.Int32
}

func startIssuer(t *testing.T, ids ...string) *issuerServer {
	t.Helper()
	s := &issuerServer{keys: set(t, ids)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.down:
			http.Error(w, "down", http.StatusServiceUnavailable)
		case r.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, s.URL, s.URL+"/keys")
		case r.URL.Path == "/keys":
			s.fetches.Add(1)
			_, _ = w.Write(s.keys)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *issuerServer) become(keys []byte, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys, s.down = keys, down
}

func issuerKeys(t *testing.T, c token.IssuerConfig) *token.IssuerKeys {
	t.Helper()
	k, err := token.NewIssuerKeys(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func TestUnknownKeysAreAskedForAFewTimes(t *testing.T) {
	s := startIssuer(t, "p256")
	k := issuerKeys(t, token.IssuerConfig{Issuer: s.URL})
	find := func(id string) token.Reason {
		_, reason := k.Find(context.Background(), id, "ES256")
		return reason
	}
	if r := find("p256"); r != "" || s.fetches.Load() != 1 {
		t.Fatalf("%q after %d fetches", r, s.fetches.Load())
	}
	s.become(set(t, []string{"p256", "other"}), false)
	if r := find("other"); r != "" || s.fetches.Load() != 2 {
		t.Fatalf("a new key: %q after %d fetches", r, s.fetches.Load())
	}
	for i := range 50 {
		if r := find(fmt.Sprint("made up ", i)); r != token.UnknownKey {
			t.Fatal(r)
		}
	}
	if n := s.fetches.Load(); n > 5 {
		t.Errorf("%d fetches", n)
	}
	if r := find("p256"); r != "" {
		t.Error(r)
	}
}

func TestOneFetchServesAllThatWait(t *testing.T) {
	s := startIssuer(t, "p256")
	k := issuerKeys(t, token.IssuerConfig{Issuer: s.URL})
	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			if _, r := k.Find(context.Background(), "p256", "ES256"); r != "" {
				t.Error(r)
			}
		})
	}
	wait.Wait()
	if n := s.fetches.Load(); n != 1 {
		t.Errorf("%d fetches", n)
	}
}

// Whether an issuer that is down has a new key, nobody can tell, however often
// it was asked.
func TestUnknownKeysOfAnIssuerThatIsDown(t *testing.T) {
	s := startIssuer(t, "p256")
	k := issuerKeys(t, token.IssuerConfig{Issuer: s.URL})
	if _, r := k.Find(context.Background(), "p256", "ES256"); r != "" {
		t.Fatal(r)
	}
	for i := range 10 { // uses up what may be asked
		k.Find(context.Background(), fmt.Sprint("made up ", i), "ES256")
	}
	s.become(nil, true)
	k.Start() // fetches at once, and fails
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, r := k.Find(context.Background(), "other", "ES256"); r == token.NoKeys {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still said to be unknown")
		}
		time.Sleep(10 * time.Millisecond) // polls; the background has no one to tell
	}
	if _, r := k.Find(context.Background(), "p256", "ES256"); r != "" {
		t.Error(r)
	}
}

// Of an issuer that is down the keys count until they are stale; then nothing
// can be verified. It is asked again, and all is well when it answers.
func TestKeysOfAnIssuerThatIsDown(t *testing.T) {
	s := startIssuer(t, "p256")
	k := issuerKeys(t, token.IssuerConfig{Issuer: s.URL, Refresh: time.Second, StaleFor: 3 * time.Second})
	k.Start()
	find := func() token.Reason {
		_, reason := k.Find(context.Background(), "p256", "ES256")
		return reason
	}
	until := func(want token.Reason) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); find() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("still not %q", want)
			}
			time.Sleep(20 * time.Millisecond) // polls; keys age by the clock
		}
	}
	until("")
	s.become(nil, true)
	if r := find(); r != "" {
		t.Errorf("at once: %q", r)
	}
	if _, r := k.Find(context.Background(), "other", "ES256"); r != token.NoKeys {
		t.Errorf("a key that may be new: %q", r)
	}
	until(token.NoKeys)
	s.become(set(t, []string{"p256"}), false)
	until("")
	// A key that is removed does not count after the next fetch.
	s.become(set(t, []string{"other"}), false)
	until(token.UnknownKey)
}

func TestIssuersThatAreNotBelieved(t *testing.T) {
	good := startIssuer(t, "p256")
	for name, answer := range map[string]http.HandlerFunc{
		"another issuer": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"issuer":"https://other.example","jwks_uri":%q}`, good.URL+"/keys")
		},
		"keys without TLS": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"issuer":"http://%s","jwks_uri":"http://keys.example/"}`, r.Host)
		},
		"keys in a file": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"issuer":"http://%s","jwks_uri":"file:///etc/passwd"}`, r.Host)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, good.URL+r.URL.Path, http.StatusFound)
		},
		"no JSON":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"no end":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat(" ", 2<<20)) },
		"an error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"an address given twice": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"issuer":"http://%s","jwks_uri":%q,"jwks_uri":%q}`, r.Host, good.URL+"/keys", good.URL+"/keys")
		},
		"an answer without keys":  func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, `{"issuer":"http://%s"}`, r.Host) },
		"an issuer without proof": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"jwks_uri":%q}`, good.URL+"/keys") },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(answer)
			defer s.Close()
			k := issuerKeys(t, token.IssuerConfig{Issuer: s.URL})
			if found, reason := k.Find(context.Background(), "p256", "ES256"); reason != token.NoKeys {
				t.Errorf("%v %q", found, reason)
			}
		})
	}
	if n := good.fetches.Load(); n != 0 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

// RFC 8414 inserts its name before the path of the issuer.
func TestMetadataOfAnOAuthServer(t *testing.T) {
	var address string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/oauth-authorization-server/tenant":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, address+"/tenant", address+"/keys")
		case "/keys":
			_, _ = w.Write(set(t, []string{"p256"}))
		default:
			http.NotFound(w, r)
		}
	}))
	defer s.Close()
	address = s.URL
	k := issuerKeys(t, token.IssuerConfig{Issuer: address + "/tenant"})
	if _, reason := k.Find(context.Background(), "p256", "ES256"); reason != "" {
		t.Error(reason)
	}
}

func TestAddressesOfIssuers(t *testing.T) {
	for address, good := range map[string]bool{
		"https://login.example.com/tenant": true, "http://127.0.0.1:9/x": true, "http://localhost:9": true, "http://[::1]:9": true,
		"http://login.example.com": false, "http://localhost.example.com": false, "http://127.0.0.1.example.com": false,
		"login.example.com": false, "": false, "ftp://127.0.0.1/": false, "https://user:pw@login.example.com": false,
		"https://login.example.com/#x": false, "https://": false, "file:///etc/passwd": false,
	} {
		if err := token.CheckURL(address); (err == nil) != good {
			t.Errorf("%q: %v", address, err)
		}
	}
	for _, c := range []token.IssuerConfig{
		{Issuer: issuer, Refresh: time.Millisecond}, {Issuer: issuer, Refresh: 48 * time.Hour},
		{Issuer: issuer, StaleFor: time.Second}, {Issuer: issuer, Timeout: time.Hour}, {Issuer: issuer, URI: "http://keys.example"},
	} {
		if _, err := token.NewIssuerKeys(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
