package caddymodule_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"
)

// testIssuer is an issuer that runs in the test, with one key at a time.
type testIssuer struct {
	*httptest.Server
	t       *testing.T
	mu      sync.Mutex
	key     *ecdsa.PrivateKey
	id      string
	shown   []jwk.Key
	down    bool
	fetches atomic.Int32
}

func startIssuer(t *testing.T) *testIssuer {
	t.Helper()
	s := &testIssuer{t: t}
	s.rotate("k1", false)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.down:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, s.URL, s.URL+"/keys")
		default:
			s.fetches.Add(1)
			_ = json.NewEncoder(w).Encode(map[string]any{"keys": s.shown})
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// rotate gives the issuer a new key, and keeps the former ones or drops them.
func (s *testIssuer) rotate(id string, keep bool) {
	s.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	public, err := jwk.FromRaw(key.Public())
	if err != nil {
		s.t.Fatal(err)
	}
	_ = public.Set(jwk.KeyIDKey, id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !keep {
		s.shown = nil
	}
	s.key, s.id, s.shown = key, id, append(s.shown, public)
}

func (s *testIssuer) stop(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// token is one that is accepted, but for the changes: of the claims, or of the
// header where a name begins with a slash. nil removes.
func (s *testIssuer) token(changes ...any) string {
	s.mu.Lock()
	key, id := s.key, s.id
	s.mu.Unlock()
	return s.signed(key, id, changes...)
}

func (s *testIssuer) signed(key *ecdsa.PrivateKey, id string, changes ...any) string {
	s.t.Helper()
	claims := map[string]any{
		"iss": s.URL, "aud": "mcp-audit", "sub": "alice", "client_id": "desk", "exp": time.Now().Add(time.Hour).Unix(),
		"roles": []string{"operator"}, "scope": "mcp:read mcp:write",
	}
	head := map[string]any{"alg": "ES256", "kid": id, "typ": "at+jwt"}
	for i := 0; i+1 < len(changes); i += 2 {
		name, of := changes[i].(string), claims
		if strings.HasPrefix(name, "/") {
			name, of = name[1:], head
		}
		if of[name] = changes[i+1]; changes[i+1] == nil {
			delete(of, name)
		}
	}
	encode := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			s.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	text := encode(head) + "." + encode(claims)
	signer, err := jws.NewSigner(jwa.ES256)
	if err != nil {
		s.t.Fatal(err)
	}
	signature, err := signer.Sign([]byte(text), key)
	if err != nil {
		s.t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// site is a Caddyfile with the rig's log and one site with this content;
// UPSTREAM stands for the server.
func (r *rig) site(address, content string) string {
	return fmt.Sprintf(`{
	admin off
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
	servers {
		trusted_proxies static 127.0.0.2/32
	}
	mcp_audit {
		log default {
			output jsonl %s
		}
	}
}
%s {
	bind 127.0.0.1
%s
}
`, r.log(), address, strings.ReplaceAll(content, "UPSTREAM", r.up.host()))
}

// protect puts a route with mcp_oidc into operation, with more options of it.
func (r *rig) protect(s *testIssuer, options string) {
	r.t.Helper()
	r.move()
	err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), fmt.Sprintf(`
	handle /metrics {
		metrics
	}
	route /mcp* {
		authentication {
			mcp_oidc {
				issuer %s
				audience mcp-audit
				%s
			}
		}
		mcp_audit {
			server_id files
			refusals off
		}
		reverse_proxy UPSTREAM
	}`, s.URL, options)))
	if err != nil {
		r.t.Fatal(err)
	}
}

// startProtected is a rig whose route has mcp_oidc.
func startProtected(t *testing.T, options string) (*rig, *testIssuer) {
	t.Helper()
	r := start(t, newUpstream(t, ok), "", "")
	s := startIssuer(t)
	r.protect(s, options)
	return r, s
}

// refusedWith posts a call that must be refused, and returns its one record.
func (r *rig) refusedWith(status int, challenge string, headers ...string) record {
	r.t.Helper()
	before, reached := len(r.records()), len(r.up.received())
	resp := r.send(context.Background(), http.MethodPost, element("1", "echo"), headers...)
	defer resp.Body.Close()
	if resp.StatusCode != status {
		r.t.Errorf("status %d, want %d", resp.StatusCode, status)
	}
	if got := strings.Join(resp.Header.Values("WWW-Authenticate"), "\n"); got != challenge {
		r.t.Errorf("challenge\n%s\nwant\n%s", got, challenge)
	}
	if len(r.up.received()) != reached {
		r.t.Error("the call reached the server")
	}
	return r.await(before + 1)[before]
}

func (r *rig) bearerChallenge(rest string) string {
	return fmt.Sprintf(`Bearer resource_metadata="http://127.0.0.1:%d/.well-known/oauth-protected-resource/mcp"%s`, r.port, rest)
}

func TestCallerOfATokenIsThePrincipal(t *testing.T) {
	r, s := startProtected(t, "require_scopes mcp:read")
	got, clientID := principalOf(t, r, "Authorization", "Bearer "+s.token())
	want := map[string]any{
		"subject": "alice", "issuer": s.URL, "client_id": "desk", "source": "{http.auth.user.id}",
		"roles": []any{"operator"}, "scopes": []any{"mcp:read", "mcp:write"},
	}
	if !reflect.DeepEqual(got, want) || clientID != "desk" {
		t.Errorf("%v of %s", got, clientID)
	}
	got, _ = principalOf(t, r, "Authorization", "Bearer "+s.token("roles", []string{"head, of all", "[x"}))
	if !reflect.DeepEqual(got["roles"], []any{"head, of all", "[x"}) {
		t.Errorf("roles %v", got["roles"])
	}
	if h := r.up.heads[0]; h.Get("Authorization") != "" {
		t.Error("the token went on to the server")
	}
}

// ATH-2: each refusal has its challenge and one record, which says why in one
// word and holds nothing of the token.
func TestEachRefusedTokenIsChallengedAndRecorded(t *testing.T) {
	r, s := startProtected(t, "require_scopes mcp:read mcp:write")
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	bearer := func(changes ...any) []string { return []string{"Authorization", "Bearer " + s.token(changes...)} }
	for _, c := range []struct {
		reason  string
		status  int
		code    string
		headers []string
	}{
		{"token_missing", 401, "", nil},
		{"token_missing", 401, "", []string{"Authorization", "Basic YTpi"}},
		{"token_malformed", 401, "invalid_token", []string{"Authorization", "Bearer abc"}},
		{"token_malformed", 401, "invalid_token", []string{"Authorization", "Bearer a b"}},
		{"token_repeated", 400, "invalid_request", append(bearer(), bearer()...)},
		{"token_expired", 401, "invalid_token", bearer("exp", time.Now().Add(-time.Hour).Unix())},
		{"token_not_yet_valid", 401, "invalid_token", bearer("nbf", time.Now().Add(time.Hour).Unix())},
		{"token_signature", 401, "invalid_token", []string{"Authorization", "Bearer " + s.signed(stranger, "k1")}},
		{"token_key_unknown", 401, "invalid_token", []string{"Authorization", "Bearer " + s.signed(stranger, "k9")}},
		{"token_audience", 401, "invalid_token", bearer("aud", "https://other.example")},
		{"token_issuer", 401, "invalid_token", bearer("iss", "https://other.example")},
		{"token_algorithm", 401, "invalid_token", bearer("/alg", "none")},
		{"token_algorithm", 401, "invalid_token", bearer("/alg", "HS256")},
		{"token_header", 401, "invalid_token", bearer("/jku", s.URL)},
		{"token_header", 401, "invalid_token", bearer("/x5c", []string{"MII"})},
		{"token_header", 401, "invalid_token", bearer("/crit", []string{"x"})},
		{"token_nested", 401, "invalid_token", bearer("/cty", "JWT")},
		{"token_type", 401, "invalid_token", bearer("/typ", "dpop+jwt")},
		{"token_claims", 401, "invalid_token", bearer("sub", nil)},
		{"token_claims", 401, "invalid_token", bearer("exp", nil)},
		{"token_bound", 401, "invalid_token", bearer("cnf", map[string]any{"jkt": "x"})},
		{"token_bound", 401, "invalid_token", []string{"Authorization", "DPoP " + s.token()}},
		{"token_claims", 401, "invalid_token", bearer("sub", strings.Repeat("x", 4000))},
		{"token_too_large", 401, "invalid_token", []string{"Authorization", "Bearer " + strings.Repeat("a", 17000)}},
		{"token_nested", 401, "invalid_token", []string{"Authorization", "Bearer " + s.token() + ".x.y"}},
		{"token_malformed", 401, "invalid_token", []string{"Authorization", "Bearer " + strings.TrimRight(s.token(), "AQgw") + "=="}},
		{"token_key_unknown", 401, "invalid_token", bearer("/kid", "../../k1")},
		{"token_key_unknown", 401, "invalid_token", bearer("/kid", "k1' OR '1'='1")},
		{"token_malformed", 401, "invalid_token", bearer("/kid", []string{"k1"})},
		{"token_header", 401, "invalid_token", bearer("/jwk", map[string]any{"kty": "EC"})},
		{"scope_missing", 403, "insufficient_scope", bearer("scope", "mcp:read")},
	} {
		t.Run(c.reason, func(t *testing.T) {
			r := *r
			r.t = t
			rest := `, scope="mcp:read mcp:write"`
			if c.code != "" {
				rest += fmt.Sprintf(`, error=%q`, c.code)
			}
			rec := r.refusedWith(c.status, r.bearerChallenge(rest), c.headers...)
			if rec.str("kind") != "event" || rec.str("outcome") != "denied" || rec.str("reason") != c.reason ||
				rec.str("server_id") != "files" || rec["http_status"] != float64(c.status) {
				t.Errorf("record %v", rec)
			}
			// A token that is verified names its bearer, whatever it lacks.
			if _, named := rec["principal"]; named != (c.reason == "scope_missing") {
				t.Errorf("principal %v", rec["principal"])
			}
			for i := 1; i < len(c.headers); i += 2 {
				_, raw, _ := strings.Cut(c.headers[i], " ")
				for _, part := range strings.Split(raw, ".") {
					if text := show([]record{rec}); len(part) > 8 && strings.Contains(text, part[:8]) {
						t.Errorf("the record has some of the token: %s", text)
					}
				}
			}
		})
	}
	counts, _ := r.scrape()
	if got := counts[`mcp_audit_http_refusals_total{reason="token_expired"}`]; got != 1 {
		t.Errorf("counted %v times", got)
	}
	r.verify()
}

// A token counts only in the header: none in the address, the body or a cookie.
func TestTokensElsewhereAreNotRead(t *testing.T) {
	r, s := startProtected(t, "")
	before := len(r.records())
	resp := do(t, func() *http.Request {
		req := r.request(context.Background(), http.MethodPost, "access_token="+s.token(), []string{"Content-Type", "", "Cookie", "access_token=" + s.token()})
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.URL.RawQuery = "access_token=" + s.token()
		return req
	})
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized || r.await(before + 1)[before].str("reason") != "token_missing" {
		t.Errorf("status %d, records %s", resp.StatusCode, show(r.records()))
	}
}

// ATH-3: each request of a session is authenticated, and by the one who opened it.
func TestEachRequestOfASessionIsAuthenticated(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", "s1")
		ok(w, r)
	})
	r := start(t, up, "", "")
	s := startIssuer(t)
	r.protect(s, "")
	alice, bob := "Bearer "+s.token(), "Bearer "+s.token("sub", "bob")
	initialize := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	if status, text := r.post(initialize, "Authorization", alice); status != 200 {
		t.Fatal(status, text)
	}
	for _, c := range []struct {
		status  int
		headers []string
	}{
		{401, nil}, {404, []string{"Authorization", bob}}, {200, []string{"Authorization", alice}},
	} {
		reached := len(up.received())
		status, _ := r.post(element("1", "echo"), append(c.headers, "Mcp-Session-Id", "s1")...)
		if status != c.status || len(up.received())-reached != map[bool]int{true: 1}[status == 200] {
			t.Errorf("status %d, want %d", status, c.status)
		}
	}
}

// Two principals with the same call: the records differ in who it was, and in
// what follows from that.
func TestRecordsOfTwoPrincipalsDifferOnlyInThem(t *testing.T) {
	r, s := startProtected(t, "")
	before := len(r.records())
	r.post(element("1", "echo"), "Authorization", "Bearer "+s.token())
	r.await(before + 2)
	r.post(element("1", "echo"), "Authorization", "Bearer "+s.token("sub", "bob", "client_id", "web", "roles", []string{"reader"}, "scope", "x"))
	all := r.await(before + 4)[before:]
	byKind := func(rs []record, kind string) record {
		for _, rec := range rs {
			if rec.str("kind") == kind {
				return rec
			}
		}
		t.Fatal("no ", kind)
		return nil
	}
	for _, kind := range []string{"intent", "outcome"} {
		a, b := maps.Clone(byKind(all[:2], kind)), maps.Clone(byKind(all[2:], kind))
		// Each record has its own of these; the hashes of a message are keyed.
		for _, name := range []string{"id", "timestamp", "nonce", "seal", "audit_operation_id", "intent_seq", "duration_ms", "request_sha256", "response_sha256"} {
			delete(a, name)
			delete(b, name)
		}
		for name := range a {
			if name != "principal" && name != "client_id" && !reflect.DeepEqual(a[name], b[name]) {
				t.Errorf("%s: %s is %v and %v", kind, name, a[name], b[name])
			}
		}
		if len(a) != len(b) || reflect.DeepEqual(a["principal"], b["principal"]) && kind == "intent" {
			t.Errorf("%v\n%v", a, b)
		}
	}
}

// The issuer rotates its keys under load: no valid token is refused. A key that
// it has dropped counts no longer after the next fetch.
func TestKeysRotateUnderLoad(t *testing.T) {
	r, s := startProtected(t, "refresh_interval 1s")
	old := s.token()
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var sent, bad atomic.Int32
	for range 4 {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+s.token()); status != 200 {
					bad.Add(1)
				}
			}
		})
	}
	for i := range 3 {
		time.Sleep(300 * time.Millisecond) // load on each key
		s.rotate(fmt.Sprint("new ", i), true)
	}
	time.Sleep(300 * time.Millisecond)
	close(stop)
	wait.Wait()
	if bad.Load() > 0 {
		t.Errorf("%d of %d valid requests were refused", bad.Load(), sent.Load())
	}
	s.rotate("last", false)
	deadline := time.Now().Add(20 * time.Second)
	for {
		if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+old); status == 401 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a token of a dropped key is still accepted")
		}
		time.Sleep(50 * time.Millisecond) // polls; keys are fetched by the clock
	}
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+s.token()); status != 200 {
		t.Errorf("the new key: %d", status)
	}
}

// Of an issuer that is down the keys stay, also over a reload. Without keys
// nothing can be verified: that is no fault of the token, and its record says so.
func TestIssuerThatIsDown(t *testing.T) {
	r, s := startProtected(t, "")
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+s.token()); status != 200 {
		t.Fatal(status)
	}
	s.stop(true)
	r.protect(s, "")
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+s.token()); status != 200 {
		t.Errorf("after a reload: %d", status)
	}
	r.await(4)
	r.protect(s, "timeout 1s")
	rec := r.refusedWith(503, "", "Authorization", "Bearer "+s.token())
	if rec.str("reason") != "keys_unavailable" {
		t.Errorf("record %v", rec)
	}
}

// metadata gets a document, as text, from an address of this machine.
func metadata(t *testing.T, from, url string, headers ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	dialer := new(net.Dialer)
	if from != "127.0.0.1" { // nothing listens there whose port it could take
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text)), resp.Header
}

// ATH-1: the metadata stands at the path-inserted address that the challenge
// names, whatever the site looks like, and names the address that was asked for.
func TestResourceMetadataStandsWhereTheChallengeSays(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	s := startIssuer(t)
	const auth = `authentication {
			mcp_oidc {
				issuer ISSUER
				audience mcp-audit
				require_scopes mcp:read
				scopes_supported mcp:write
				MORE
			}
		}
		mcp_audit`
	for name, c := range map[string]struct {
		address, content, more string
		host, path             string   // of the request
		headers                []string // of the request
		resource               string   // PORT stands for the port
	}{
		"a route":              {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "", "/mcp/tools", nil, "http://127.0.0.1:PORT/mcp/tools"},
		"a host that is named": {"http://mcp.example:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "mcp.example", "/mcp", nil, "http://mcp.example/mcp"},
		"any host":             {"http://:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "mcp.other.example:8443", "/mcp", nil, "http://mcp.other.example:8443/mcp"},
		"the root":             {"http://:PORT", "AUTH\nreverse_proxy UPSTREAM", "", "", "/", nil, "http://127.0.0.1:PORT"},
		"the site":             {"http://127.0.0.1:PORT", "AUTH\nreverse_proxy UPSTREAM", "", "", "/a/b", nil, "http://127.0.0.1:PORT/a/b"},
		"a handle":             {"http://127.0.0.1:PORT", "handle /x {\nrespond no\n}\nhandle /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}\nhandle {\nrespond other\n}", "", "", "/mcp", nil, "http://127.0.0.1:PORT/mcp"},
		"a prefix taken off":   {"http://127.0.0.1:PORT", "handle_path /pre/* {\nroute /mcp {\nAUTH\nreverse_proxy UPSTREAM\n}\n}", "", "", "/pre/mcp", nil, "http://127.0.0.1:PORT/pre/mcp"},
		"a path with escapes":  {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "", "/mcp/a%20b%22c", nil, "http://127.0.0.1:PORT/mcp/a%20b%22c"},
		"no trusted proxy":     {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "", "/mcp", []string{"X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "https"}, "http://127.0.0.1:PORT/mcp"},
		"a trusted proxy":      {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "trusted", "/mcp", []string{"X-Forwarded-Host", "evil.example, mcp.example.com", "X-Forwarded-Proto", "https"}, "https://mcp.example.com/mcp"},
		"a proxy's port":       {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "", "trusted", "/mcp", []string{"X-Forwarded-Host", "mcp.example.com", "X-Forwarded-Proto", "https", "X-Forwarded-Port", "8443"}, "https://mcp.example.com:8443/mcp"},
		"a configured address": {"http://127.0.0.1:PORT", "route /mcp* {\nAUTH\nreverse_proxy UPSTREAM\n}", "resource https://mcp.example.com/pre/mcp", "", "/mcp", nil, "https://mcp.example.com/pre/mcp"},
	} {
		t.Run(name, func(t *testing.T) {
			r := *r
			r.t = t
			r.move()
			fill := strings.NewReplacer("PORT", fmt.Sprint(r.port), "AUTH", strings.NewReplacer("ISSUER", s.URL, "MORE", c.more).Replace(auth))
			if err := r.load(r.site(fill.Replace(c.address), fill.Replace(c.content))); err != nil {
				t.Fatal(err)
			}
			from, headers := "127.0.0.1", c.headers
			switch c.host {
			case "":
			case "trusted":
				from = "127.0.0.2"
			default:
				headers = append(headers, "Host", c.host)
			}
			base := fmt.Sprintf("http://127.0.0.1:%d", r.port)
			status, _, h := metadata(t, from, base+c.path, headers...)
			resource := strings.ReplaceAll(c.resource, "PORT", fmt.Sprint(r.port))
			origin := resource[:strings.Index(resource[8:]+"/", "/")+8]
			path := "/.well-known/oauth-protected-resource" + resource[len(origin):]
			want := fmt.Sprintf(`Bearer resource_metadata=%q, scope="mcp:read"`, origin+path)
			if got := h.Get("WWW-Authenticate"); status != 401 || got != want {
				t.Errorf("status %d, challenge\n%s\nwant\n%s", status, got, want)
			}
			status, text, h := metadata(t, from, base+path, headers...)
			want = fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q],"scopes_supported":["mcp:read","mcp:write"],"bearer_methods_supported":["header"]}`, resource, s.URL)
			if status != 200 || text != want || h.Get("Content-Type") != "application/json" || h.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("status %d: %s\nwant %s", status, text, want)
			}
			for _, elsewhere := range []string{"/nothing-there", "/mc"} {
				if !strings.Contains(c.content, "/mcp") {
					continue // all paths are protected
				}
				if _, text, _ := metadata(t, from, base+"/.well-known/oauth-protected-resource"+elsewhere, headers...); strings.Contains(text, "resource") {
					t.Errorf("%s has metadata: %s", elsewhere, text)
				}
			}
		})
	}
}
