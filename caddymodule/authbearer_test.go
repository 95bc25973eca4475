package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

const (
	aliceToken = "alice-alice-alice-alice-alice-alice"
	bobToken   = "bob-bob-bob-bob-bob-bob-bob-bob-bob"
)

// withTokens puts a route with mcp_bearer into operation.
func withTokens(t *testing.T, r *rig, options string) error {
	t.Helper()
	for name, text := range map[string]string{"alice": aliceToken + "\n", "bob": bobToken, "short": strings.Repeat("x", 31), "spaced": strings.Repeat("x y ", 20), "empty": ""} {
		if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.move()
	options = strings.ReplaceAll(options, "FILE", "file."+r.dir)
	return r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), fmt.Sprintf(`
	handle /metrics {
		metrics
	}
	route /mcp* {
		authentication {
			mcp_bearer {
				%s
			}
		}
		mcp_audit {
			server_id files
		}
		reverse_proxy UPSTREAM
	}`, options)))
}

const aliceAndBob = `
	token {FILE/alice} {
		subject alice
		issuer office
		client_id desk
		roles operator reader
		scopes mcp:read mcp:write
	}
	token {FILE/bob} {
		subject bob
	}
	require_scopes mcp:read
`

func TestStaticTokensNameTheirPrincipals(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	if err := withTokens(t, r, aliceAndBob); err != nil {
		t.Fatal(err)
	}
	got, clientID := principalOf(t, r, "Authorization", "Bearer "+aliceToken)
	if fmt.Sprint(got) != "map[client_id:desk issuer:office roles:[operator reader] scopes:[mcp:read mcp:write] source:{http.auth.user.id} subject:alice]" || clientID != "desk" {
		t.Errorf("%v of %s", got, clientID)
	}
	rec := r.refusedWith(403, r.bearerChallenge(`, scope="mcp:read", error="insufficient_scope"`), "Authorization", "Bearer "+bobToken)
	if p, _ := rec["principal"].(map[string]any); p["subject"] != "bob" || rec.str("client_id") != "bob" {
		t.Errorf("record %v", rec)
	}
	rec = r.refusedWith(401, r.bearerChallenge(`, scope="mcp:read"`))
	if rec.str("reason") != "token_missing" {
		t.Errorf("record %v", rec)
	}
	rec = r.refusedWith(401, r.bearerChallenge(`, scope="mcp:read", error="invalid_token"`), "Authorization", "Bearer "+aliceToken+"x")
	if rec.str("reason") != "token_unknown" || rec.str("client_id") != "anonymous" || strings.Contains(show([]record{rec}), "alice") {
		t.Errorf("record %v", rec)
	}
}

func TestStaticTokenOfTheEnvironment(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	if err := withTokens(t, r, ""); err == nil || !strings.Contains(err.Error(), "MCP_AUDIT_STATIC_BEARER_TOKEN") {
		t.Errorf("without a token: %v", err)
	}
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	if err := withTokens(t, r, ""); err != nil {
		t.Fatal(err)
	}
	if got, _ := principalOf(t, r, "Authorization", "Bearer "+aliceToken); got["subject"] != "local" || got["issuer"] != "static" {
		t.Errorf("%v", got)
	}
}

// After too many wrong tokens an address has to wait, also with the right one:
// otherwise guessing would go on. A reload does not help it.
func TestGuessersOfTokensHaveToWait(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	options := aliceAndBob + "throttle 3/10m"
	if err := withTokens(t, r, options); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r.refusedWith(401, r.bearerChallenge(`, scope="mcp:read"`)) // asking what is needed is no guess
	}
	for range 3 {
		r.refusedWith(401, r.bearerChallenge(`, scope="mcp:read", error="invalid_token"`), "Authorization", "Bearer wrong")
	}
	for _, raw := range []string{"wrong", aliceToken} {
		before := len(r.records())
		resp := r.send(context.Background(), http.MethodPost, element("1", "echo"), "Authorization", "Bearer "+raw)
		resp.Body.Close()
		if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
			t.Errorf("status %d, Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		if rec := r.await(before + 1)[before]; rec.str("reason") != "throttled" || rec["http_status"] != 429.0 {
			t.Errorf("record %v", rec)
		}
	}
	if err := withTokens(t, r, options); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+aliceToken); status != 429 {
		t.Errorf("after a reload: %d", status)
	}
	if err := withTokens(t, r, aliceAndBob+"throttle off"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r.post(element("1", "echo"), "Authorization", "Bearer wrong")
	}
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer "+aliceToken); status != 200 {
		t.Errorf("without a throttle: %d", status)
	}
}

func TestFaultyTokensFailTheLoad(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	for options, want := range map[string]string{
		"token {FILE/short}":                   "has 31 bytes; use 32 or more",
		"token {FILE/spaced}":                  "characters that no bearer token may have",
		"token {FILE/empty}":                   "is empty",
		"token {FILE/missing}":                 "missing",
		"token {env.MCP_AUDIT_TEST_NOT_SET}":   "MCP_AUDIT_TEST_NOT_SET",
		"token " + aliceToken:                  "write a placeholder in place of the secret",
		"token {http.request.header.X}":        "write a placeholder in place of the secret",
		"token {FILE/alice}\ntoken {FILE/bob}": "needs a subject",
		"token {FILE/alice} {\nsubject a\n}\ntoken {FILE/alice} {\nsubject b\n}": "that of another principal",
		"token {FILE/alice}\nthrottle 0/1m":                                      "throttle",
		"token {FILE/alice}\nrequire_scopes \"a b\"":                             "no scope",
		"token {FILE/alice}\nresource http://mcp.example.com/":                   "not HTTPS",
		"token {FILE/alice}\nresource https://mcp.example.com/?a=b":              "without it",
		"token {FILE/alice}\nlog other":                                          `there is no log "other"`,
		"token {FILE/alice}\ncolour red":                                         `unrecognized subdirective "colour"`,
		"token {FILE/alice}\nlog default\nlog default":                           "log is given twice, first at Caddyfile:",
	} {
		err := withTokens(t, r, options)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", options, err)
		} else if strings.Contains(err.Error(), aliceToken) {
			t.Errorf("the error has the token: %v", err)
		}
	}
}

func TestFaultyIssuersFailTheLoad(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	for options, want := range map[string]string{
		"issuer https://a.example":                                                "needs an issuer and an audience",
		"audience a":                                                              "needs an issuer and an audience",
		"issuer http://a.example\naudience a":                                     "not HTTPS",
		"issuer {env.MCP_AUDIT_TEST_NOT_SET}\naudience a":                         "MCP_AUDIT_TEST_NOT_SET",
		"issuer https://a.example\naudience a\njwks_uri http://a.example/":        "not HTTPS",
		"issuer https://a.example\naudience a\nalgorithms HS256":                  `"HS256" is not accepted`,
		"issuer https://a.example\naudience a\nclock_skew 1h":                     "not a time from 0s to 5m0s",
		"issuer https://a.example\naudience a\nrefresh_interval 2h\nstale_for 1h": "stale_for: 1h0m0s is shorter",
		"issuer https://a.example\naudience a\nca /nowhere.pem":                   "/nowhere.pem",
		"issuer https://a.example\naudience a\nclaims {\nemail x\n}":              `unrecognized subdirective "email"`,
	} {
		r.move()
		err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "authentication {\nmcp_oidc {\n"+options+"\n}\n}\nmcp_audit"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", options, err)
		}
	}
	for content, want := range map[string]string{
		"authentication {\n}":               "needs a provider",
		"authentication {\nmcp_nobody\n}":   "mcp_nobody",
		"authentication x {\nmcp_bearer\n}": "Caddyfile:",
	} {
		if err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// Of several providers one has to accept. If none does, there is one record and
// one challenge, of the provider that knows most of the token.
func TestSeveralProvidersHaveOneVerdict(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	s := startIssuer(t)
	if err := withTokens(t, r, aliceAndBob+"\n}\nmcp_oidc {\nissuer "+s.URL+"\naudience mcp-audit"); err != nil {
		t.Fatal(err)
	}
	for raw, subject := range map[string]string{aliceToken: "alice", s.token("sub", "carol"): "carol"} {
		for range 8 { // Caddy asks them in any order
			before := len(r.records())
			if status, text := r.post(element("1", "echo"), "Authorization", "Bearer "+raw); status != 200 {
				t.Fatal(status, text)
			}
			if got, _ := principalIn(r.await(before + 2)[before:]); got["subject"] != subject {
				t.Fatalf("%v", got)
			}
		}
	}
	for reason, raw := range map[string]string{"token_unknown": "wrong", "token_audience": s.token("aud", "x")} {
		for range 4 {
			before := len(r.records())
			resp := r.send(context.Background(), http.MethodPost, element("1", "echo"), "Authorization", "Bearer "+raw)
			resp.Body.Close()
			if n := len(resp.Header.Values("WWW-Authenticate")); resp.StatusCode != http.StatusUnauthorized || n != 1 {
				t.Errorf("status %d, %d challenges", resp.StatusCode, n)
			}
			if rec := r.await(before + 1)[before]; rec.str("reason") != reason {
				t.Errorf("record %v", rec)
			}
		}
	}
	_, text, _ := metadata(t, "127.0.0.1", fmt.Sprintf("http://127.0.0.1:%d/.well-known/oauth-protected-resource/mcp", r.port))
	if !strings.Contains(text, s.URL) || !strings.Contains(text, "mcp:read") {
		t.Error(text)
	}
}

// Refusals of the audit itself carry the challenge, too, behind a provider.
func TestRefusalsOfTheAuditAreChallenged(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	if err := withTokens(t, r, aliceAndBob); err != nil {
		t.Fatal(err)
	}
	rec := r.refusedWith(403, r.bearerChallenge(`, scope="mcp:read"`), "Authorization", "Bearer "+aliceToken, "Origin", "https://evil.example")
	if rec.str("reason") != "origin" {
		t.Errorf("record %v", rec)
	}
}

// A flood of rejected requests is joined as other refusals are.
func TestFloodsOfRejectedRequestsAreJoined(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	r.move()
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "authentication {\nmcp_bearer\n}\nmcp_audit {\nrefusals 2/s\n}\nreverse_proxy UPSTREAM"))
	if err != nil {
		t.Fatal(err)
	}
	const sent = 30
	for range sent {
		if status, _ := r.post(element("1", "echo")); status != 401 {
			t.Fatal(status)
		}
	}
	if err := caddy.Stop(); err != nil { // what is joined so far is written
		t.Fatal(err)
	}
	r.awaitClosed()
	records := r.records()
	stood := 0
	for _, rec := range records {
		if n, joined := rec["count"].(float64); joined {
			stood += int(n)
		} else {
			stood++
		}
	}
	if stood != sent || len(records) >= sent {
		t.Errorf("%d records stand for %d requests", len(records), stood)
	}
}

// Records go to the log that the provider names, else to that of the audit.
func TestRejectionsGoToTheLogOfTheRoute(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	for name, c := range map[string]struct{ provider, audit string }{
		"the audit's":    {"", "mcp_audit {\nlog second\n}"},
		"the provider's": {"log second", "mcp_audit"},
		"without audit":  {"log second", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r.move()
			second := filepath.Join(r.dir, name, "audit.jsonl")
			text := r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "authentication {\nmcp_bearer {\n"+c.provider+"\n}\n}\n"+c.audit+"\nreverse_proxy UPSTREAM")
			text = strings.Replace(text, "log default {", "log second {\noutput jsonl \""+second+"\"\n}\nlog default {", 1)
			if err := r.load(text); err != nil {
				t.Fatal(err)
			}
			if status, _ := r.post(element("1", "echo")); status != 401 {
				t.Fatal(status)
			}
			raw, err := os.ReadFile(second)
			if err != nil || strings.Count(string(raw), `"reason":"token_missing"`) != 1 {
				t.Errorf("%v %s", err, raw)
			}
		})
	}
}

// The guard also stands in named routes, routes of errors and plain JSON.
func TestRejectionsInOtherRoutes(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	const auth = "authentication {\nmcp_bearer\n}\nmcp_audit\nreverse_proxy UPSTREAM"
	// Of the bare handlers of a named route Caddy's adapter keeps the first alone.
	named := func(name, handlers string) string {
		return "\n&(" + name + ") {\n" + strings.ReplaceAll(handlers, "UPSTREAM", r.up.host()) + "\n}"
	}
	const auth2 = "authentication {\nmcp_bearer\n}"
	address := func() string { r.move(); return fmt.Sprintf("http://127.0.0.1:%d", r.port) }
	for name, text := range map[string]func() string{
		"a named route": func() string {
			return strings.Replace(r.site(address(), "invoke protected"), "\nhttp://127", named("protected", "route {\n"+auth+"\n}")+"\nhttp://127", 1)
		},
		"two named routes": func() string {
			return strings.Replace(r.site(address(), "invoke protected\ninvoke more"), "\nhttp://127", named("protected", auth2)+named("more", "route {\n"+auth+"\n}")+"\nhttp://127", 1)
		},
		"an error route": func() string { return r.site(address(), "error 500\nhandle_errors {\n"+auth+"\n}") },
		"several sites": func() string {
			return r.site(address(), "handle /x {\nrespond x\n}\n"+auth) + fmt.Sprintf("http://localhost:%d {\nrespond other\n}\n", r.port)
		},
		"a matcher": func() string {
			return r.site(address(), "@post method POST\nauthentication @post {\nmcp_bearer\n}\nmcp_audit\nreverse_proxy UPSTREAM")
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := r.load(text()); err != nil {
				t.Fatal(err)
			}
			before := len(r.records())
			want := 401
			if name == "an error route" {
				want = 500 // Caddy keeps to the error that it is about
			}
			if status, _ := r.post(element("1", "echo")); status != want {
				t.Errorf("status %d", status)
			}
			if rec := r.await(before + 1)[before]; rec.str("reason") != "token_missing" {
				t.Errorf("record %v", rec)
			}
			if name == "an error route" {
				return
			}
			if status, text := r.post(element("1", "echo"), "Authorization", "Bearer "+aliceToken); status != 200 {
				t.Errorf("with a token: %d %s", status, text)
			}
			r.await(before + 3)
		})
	}
}

// handle_errors sees the status and may answer as it likes.
func TestErrorRoutesSeeRejections(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	r.move()
	err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "authentication {\nmcp_bearer {\nrequire_scopes a\n}\n}\nmcp_audit\nreverse_proxy UPSTREAM\nhandle_errors {\nrespond \"no: {err.status_code}\" {err.status_code}\n}"))
	if err != nil {
		t.Fatal(err)
	}
	if status, text := r.post(element("1", "echo"), "Authorization", "Bearer "+aliceToken); status != 403 || text != "no: 403" {
		t.Errorf("%d %s", status, text)
	}
}

// The credential for the server takes the place of the client's.
func TestUpstreamTokenTakesThePlaceOfTheClients(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	secret := filepath.Join(r.dir, "upstream")
	if err := os.WriteFile(secret, []byte("upstream-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.move()
	if err := r.load(r.caddyfile("upstream_token {file."+secret+"}", "")); err != nil {
		t.Fatal(err)
	}
	before := len(r.records())
	if status, _ := r.post(element("1", "echo"), "Authorization", "Bearer of-the-client"); status != 200 {
		t.Fatal(status)
	}
	if got := up.heads[0]["Authorization"]; len(got) != 1 || got[0] != "Bearer upstream-secret" {
		t.Errorf("the server got %v", got)
	}
	if text := show(r.await(before + 2)); strings.Contains(text, "upstream-secret") || strings.Contains(text, "of-the-client") {
		t.Error(text)
	}
	cfg, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(r.caddyfile("upstream_token {file."+secret+"}", "")), nil)
	if err != nil || !strings.Contains(string(cfg), `"upstream_token":"{file.`) || strings.Contains(string(cfg), "upstream-secret") {
		t.Errorf("%v %s", err, cfg)
	}
	for options, want := range map[string]string{
		"upstream_token upstream-secret":                                      "write a placeholder",
		"upstream_token {file." + secret + ".none}":                           "upstream_token",
		"upstream_token {file." + secret + "}\nforward_headers Authorization": "exclude each other",
		"upstream_token {env.MCP_AUDIT_TEST_NOT_SET}":                         "MCP_AUDIT_TEST_NOT_SET",
	} {
		if err := r.load(r.caddyfile(options, "")); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "upstream-secret") && !strings.Contains(options, "upstream-secret") {
			t.Errorf("%s: %v", options, err)
		}
	}
}

// A page that may call gets through the browser's question, which has no token,
// and can read the challenge. No other page does.
func TestPagesThatMayCallAuthenticate(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	r.move()
	err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "authentication {\nmcp_bearer\n}\nmcp_audit {\norigins https://app.example.com\nrefusals off\n}\nreverse_proxy UPSTREAM"))
	if err != nil {
		t.Fatal(err)
	}
	for origin, may := range map[string]bool{"https://app.example.com": true, "https://evil.example": false, "null": false} {
		allowed := ""
		if may {
			allowed = origin
		}
		resp := r.send(context.Background(), http.MethodOptions, "", "Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization,mcp-param-region")
		resp.Body.Close()
		if (resp.StatusCode == http.StatusNoContent) != may || resp.Header.Get("Access-Control-Allow-Origin") != allowed || may && resp.Header.Get("Access-Control-Allow-Headers") != "authorization,mcp-param-region" {
			t.Errorf("%s: status %d %v", origin, resp.StatusCode, resp.Header)
		}
		resp = r.send(context.Background(), http.MethodPost, element("1", "echo"), "Origin", origin)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("Access-Control-Allow-Origin") != allowed || strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") != may {
			t.Errorf("%s: status %d %v", origin, resp.StatusCode, resp.Header)
		}
	}
	if status, _ := r.post(element("1", "echo"), "Origin", "https://app.example.com", "Authorization", "Bearer "+aliceToken); status != 200 {
		t.Errorf("with a token: %d", status)
	}
	resp := r.send(context.Background(), http.MethodOptions, "", "Origin", "https://app.example.com")
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("no preflight: %d", resp.StatusCode)
	}
	if len(up.received()) != 1 {
		t.Error("more than the call reached the server")
	}
}

// Of two authentications in a row, each with several providers, one rejects, and
// there is one record. Metadata are those of the first route that a path leads to.
func TestAuthenticationsInARow(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	s := startIssuer(t)
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	r.move()
	oidc := func(more string) string {
		return "mcp_oidc {\nissuer " + s.URL + "\naudience mcp-audit\n" + more + "\n}\n"
	}
	err := r.load(r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "route /mcp* {\nauthentication {\n"+oidc("scopes_supported first")+"mcp_bearer\n}\nauthentication {\n"+oidc("require_scopes none")+
		"mcp_bearer {\nrequire_scopes none\n}\n}\nmcp_audit\nreverse_proxy UPSTREAM\n}\nroute /mcp/deep* {\nauthentication {\n"+oidc("scopes_supported second")+"}\nmcp_audit\nreverse_proxy UPSTREAM\n}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range []string{aliceToken, s.token()} {
		for range 4 {
			rec := r.refusedWith(403, r.bearerChallenge(`, scope="none", error="insufficient_scope"`), "Authorization", "Bearer "+raw)
			if rec.str("reason") != "scope_missing" {
				t.Errorf("record %v", rec)
			}
		}
	}
	// Caddy sorts the longer path to the front.
	for path, scope := range map[string]string{"/mcp": "first", "/mcp/deep": "second"} {
		if _, text, _ := metadata(t, "127.0.0.1", fmt.Sprintf("http://127.0.0.1:%d/.well-known/oauth-protected-resource%s", r.port, path)); !strings.Contains(text, scope) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// Caddy's own metrics know a route by its first handler, which a guard is not.
func TestGuardsDoNotShowInCaddysMetrics(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", aliceToken)
	r.move()
	text := r.site(fmt.Sprintf("http://127.0.0.1:%d", r.port), "handle /metrics {\nmetrics\n}\nroute /mcp {\nauthentication {\nmcp_bearer\n}\nmcp_audit\nreverse_proxy UPSTREAM\n}")
	if err := r.load(strings.Replace(text, "admin off", "admin off\n\tmetrics", 1)); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.post(element("1", "echo")); status != 401 {
		t.Fatal(status)
	}
	resp := get(t, fmt.Sprintf("http://127.0.0.1:%d/metrics", r.port))
	defer resp.Body.Close()
	if all := readAll(t, resp); !strings.Contains(all, `caddy_http_requests_total{handler="subroute",server="srv0"}`) || strings.Contains(all, `handler=""`) {
		t.Error(all)
	}
}
