package caddymodule_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/forwardauth"
	_ "github.com/caddyserver/caddy/v2/modules/caddypki"
	_ "github.com/caddyserver/caddy/v2/modules/caddytls"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
)

// thirdParty stands for an authentication module of somebody else: it says who
// the user is, with metadata in the forms that are found in the wild.
type thirdParty struct{}

func (thirdParty) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.authentication.providers.test", New: func() caddy.Module { return new(thirdParty) }}
}

func (thirdParty) Authenticate(_ http.ResponseWriter, r *http.Request) (caddyauth.User, bool, error) {
	switch r.Header.Get("X-Test-Token") {
	case "alice":
		return caddyauth.User{ID: "alice", Metadata: map[string]string{
			"issuer": "https://id.example", "client_id": "desk", "roles": "operator,reader", "scope": "mcp:read mcp:write", "groups": `["a","b"]`,
		}}, true, nil
	case "bob":
		return caddyauth.User{ID: "bob"}, true, nil
	case "refused":
		return caddyauth.User{ID: "mallory"}, false, nil
	}
	return caddyauth.User{}, true, nil
}

func init() { caddy.RegisterModule(thirdParty{}) }

// principalOf posts a call and returns the principal of its record.
func principalOf(t *testing.T, r *rig, headers ...string) (principal map[string]any, clientID string) {
	t.Helper()
	before := len(r.records())
	if status, text := r.post(element("1", "echo"), headers...); status != 200 {
		t.Fatalf("status %d: %s", status, text)
	}
	return principalIn(r.await(before + 2)[before:])
}

func principalIn(records []record) (map[string]any, string) {
	for _, rec := range records {
		if rec.str("kind") == "intent" {
			p, _ := rec["principal"].(map[string]any)
			return p, rec.str("client_id")
		}
	}
	return nil, ""
}

// withAuth puts the third-party module in front of the audit.
func withAuth(t *testing.T, r *rig, subdirectives string) {
	t.Helper()
	r.move()
	cfg, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(r.caddyfile(subdirectives, "")), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(cfg), `{"handler":"mcp_audit"`, `{"handler":"authentication","providers":{"test":{}}},{"handler":"mcp_audit"`, 1)
	if text == string(cfg) {
		i := strings.Index(text, `"handler":"mcp_audit"`)
		start := strings.LastIndex(text[:i], "{")
		text = text[:start] + `{"handler":"authentication","providers":{"test":{}}},` + text[start:]
	}
	if err := caddy.Load([]byte(text), true); err != nil {
		t.Fatal(err)
	}
}

func TestPrincipalComesFromAnyAuthentication(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for _, c := range []struct {
		name, options, token string
		want                 map[string]any
		clientID             string
	}{
		{"all that the provider says", "", "alice", map[string]any{
			"subject": "alice", "issuer": "https://id.example", "client_id": "desk", "source": "{http.auth.user.id}",
			"roles": []any{"operator", "reader"}, "scopes": []any{"mcp:read", "mcp:write"},
		}, "desk"},
		{"a user alone", "", "bob", map[string]any{"subject": "bob", "source": "{http.auth.user.id}"}, "bob"},
		{"nobody", "", "", nil, "anonymous"},
		{"named claims", `identity {
			roles {http.auth.user.none} {http.auth.user.groups}
		}`, "alice", map[string]any{
			"subject": "alice", "issuer": "https://id.example", "client_id": "desk", "source": "{http.auth.user.id}",
			"roles": []any{"a", "b"}, "scopes": []any{"mcp:read", "mcp:write"},
		}, "desk"},
		{"another subject", `identity {http.auth.user.none} {http.auth.user.client_id} {http.auth.user.id}`, "alice", map[string]any{
			"subject": "desk", "issuer": "https://id.example", "client_id": "desk", "source": "{http.auth.user.client_id}",
			"roles": []any{"operator", "reader"}, "scopes": []any{"mcp:read", "mcp:write"},
		}, "desk"},
		{"configured", `principal {
			subject team
			issuer office
			client_id desk
			roles operator reader
			scopes mcp:read
		}`, "alice", map[string]any{
			"subject": "team", "issuer": "office", "client_id": "desk", "source": "configured",
			"roles": []any{"operator", "reader"}, "scopes": []any{"mcp:read"},
		}, "desk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			withAuth(t, r, c.options)
			got, clientID := principalOf(t, r, "X-Test-Token", c.token)
			if len(got) != len(c.want) || len(got) > 0 && !reflect.DeepEqual(got, c.want) || clientID != c.clientID {
				t.Errorf("principal %v of client %s, want %v of %s", got, clientID, c.want, c.clientID)
			}
		})
	}
}

func TestRefusedUserIsNoPrincipal(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	withAuth(t, r, "")
	if status, _ := r.post(element("1", "echo"), "X-Test-Token", "refused"); status != http.StatusUnauthorized {
		t.Errorf("status %d", status)
	}
	if len(up.received()) != 0 {
		t.Error("the call reached the server")
	}
}

// TestClientsCannotClaimToBeSomebody sends each header that servers believe.
func TestClientsCannotClaimToBeSomebody(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	claims := []string{
		"X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups", "X-Forwarded-Preferred-Username", "X-Forwarded-Access-Token",
		"X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "X-Auth-Request-User", "X-Auth-Request-Email", "X-Auth-User",
		"Remote-User", "Remote-Groups", "Remote-Name", "Remote-Email", "X-Remote-User", "X-Remote-Group", "X-Remote-Extra-Scopes",
		"X-User", "X-User-Id", "X-User-Email", "X-Username", "X-Authenticated-User", "X-Webauth-User", "X-Authentik-Username",
		"X-Goog-Authenticated-User-Email", "X-Goog-Iap-Jwt-Assertion", "X-Amzn-Oidc-Identity", "X-Amzn-Oidc-Data",
		"X-Ms-Client-Principal", "X-Ms-Client-Principal-Name", "Cf-Access-Authenticated-User-Email", "Cf-Access-Jwt-Assertion",
		"Tailscale-User-Login", "X-Consumer-Username", "X-Credential-Identifier", "Impersonate-User", "X-Ssl-Client-Cert",
		"Ssl-Client-Subject-Dn", "Client-Cert", "X-Pomerium-Jwt-Assertion", "X-Vouch-User", "X-Token-User-Name",
		"X_forwarded_user", "Remote_user", "x_AUTH_user",
	}
	var headers []string
	for _, name := range claims {
		headers = append(headers, name, "mallory")
	}
	// These are no identity, and pass.
	others := []string{"X-User-Agent", "X-Request-Id", "X-Custom", "X-Api-Key", "Remoteness"}
	for _, name := range others {
		headers = append(headers, name, "value")
	}
	got, clientID := principalOf(t, r, headers...)
	if len(got) != 0 || clientID != "anonymous" {
		t.Errorf("principal %v, client %s", got, clientID)
	}
	up.mu.Lock()
	head := up.heads[len(up.heads)-1]
	up.mu.Unlock()
	for name, values := range head {
		if strings.Contains(strings.Join(values, " "), "mallory") {
			t.Errorf("%s reached the server", name)
		}
	}
	for _, name := range others {
		if head.Get(name) != "value" {
			t.Errorf("%s did not reach the server", name)
		}
	}
}

func TestNamedIdentityHeaderGoesOn(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for _, c := range []struct {
		options   string
		forwarded bool
		subject   string
	}{
		{"", false, ""},
		{"forward_headers Remote-User", true, ""},
		{"identity {http.request.header.Remote-User}", true, "alice"},
		{"identity {header.Remote-User}", true, "alice"},
		{"client_id {http.request.header.Remote-User}", true, ""},
		{"identity {http.request.header.X-Auth-User}", false, ""},
	} {
		r.move()
		if err := r.load(r.caddyfile(c.options, "")); err != nil {
			t.Fatal(err)
		}
		got, _ := principalOf(t, r, "Remote-User", "alice", "Remote_User", "mallory")
		up.mu.Lock()
		head := up.heads[len(up.heads)-1]
		up.mu.Unlock()
		subject, _ := got["subject"].(string)
		if forwarded := head.Get("Remote-User") == "alice"; forwarded != c.forwarded || subject != c.subject {
			t.Errorf("%q: forwarded %t, subject %q", c.options, forwarded, subject)
		}
		if len(head["Remote_user"]) > 0 {
			t.Errorf("%q: the other spelling reached the server", c.options)
		}
	}
}

func TestForwardAuthNamesTheCaller(t *testing.T) {
	up := newUpstream(t, ok)
	guard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "Bearer of-alice":
			w.Header().Set("Remote-User", "alice")
			w.Header().Set("Remote-Groups", "operators,readers")
		case "Bearer of-nobody":
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer guard.Close()
	r := start(t, up, "", "")
	r.move()
	text := strings.Replace(r.caddyfile(`identity {http.request.header.Remote-User} {
		roles {http.request.header.Remote-Groups}
	}`, ""), "\tmcp_audit {\n\t\tserver_id", "\tforward_auth "+strings.TrimPrefix(guard.URL, "http://")+" {\n\t\turi /verify\n\t\tcopy_headers Remote-User Remote-Groups\n\t}\n\tmcp_audit {\n\t\tserver_id", 1)
	text = strings.Replace(text, "admin off", "admin off\n\torder forward_auth before mcp_audit", 1)
	if err := r.load(text); err != nil {
		t.Fatal(err)
	}
	got, _ := principalOf(t, r, "Authorization", "Bearer of-alice", "Remote-User", "mallory")
	want := map[string]any{"subject": "alice", "roles": []any{"operators", "readers"}, "source": "{http.request.header.Remote-User}"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("principal %v, want %v", got, want)
	}
	if got, _ := principalOf(t, r, "Authorization", "Bearer of-nobody", "Remote-User", "mallory"); len(got) != 0 {
		t.Errorf("the client's own header is believed: %v", got)
	}
	if status, _ := r.post(element("1", "echo"), "Remote-User", "mallory"); status != http.StatusUnauthorized {
		t.Errorf("status %d", status)
	}
}

func TestBasicAuthNamesTheCaller(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.move()
	text := strings.Replace(r.caddyfile("", ""), "\tmcp_audit {\n\t\tserver_id", "\tbasic_auth {\n\t\talice "+hashOfPW+"\n\t}\n\tmcp_audit {\n\t\tserver_id", 1)
	if err := r.load(text); err != nil {
		t.Fatal(err)
	}
	credential := "Basic " + base64.StdEncoding.EncodeToString([]byte("alice:pw"))
	got, _ := principalOf(t, r, "Authorization", credential)
	if want := map[string]any{"subject": "alice", "source": "{http.auth.user.id}"}; !reflect.DeepEqual(got, want) {
		t.Errorf("principal %v, want %v", got, want)
	}
	if raw := show(r.records()); strings.Contains(raw, credential[6:]) {
		t.Error("the credential stands in the log")
	}
}

func TestClientsTextIsNoIdentity(t *testing.T) {
	for _, c := range []struct{ option, say string }{
		{"identity", "takes placeholders"},
		{"identity alice", "no placeholder"},
		{"identity {http.auth.user.id}x", "no placeholder"},
		{"identity {http.auth.candidate.id}", "no identity"},
		{"identity {http.request.uri.query.user}", "no identity"},
		{"identity {query.user}", "no identity"},
		{"identity {cookie.user}", "no identity"},
		{"identity {header.Authorization}", "no identity"},
		{"identity {header.mcp-session-id}", "no identity"},
		{"identity {http.auth.user.id} {\nroles {query.role}\n}", "no identity"},
		{"identity {http.auth.user.id} {\nrole {http.auth.user.role}\n}", "roles"},
		{"identity {http.auth.user.id} {\nroles operator\n}", "no placeholder"},
	} {
		text := ":80 {\n\tmcp_audit {\n\t\t" + c.option + "\n\t}\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err == nil || !strings.Contains(err.Error(), c.say) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v, want %q and the line", c.option, err, c.say)
		}
	}
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for _, option := range []string{
		"client_id {query.client}", "client_id of-{header.Cookie}", "principal {\nsubject a\n}\nidentity {\nroles {http.auth.user.roles}\n}",
		"forward_headers X-Custom", "forward_headers Proxy-Authorization",
	} {
		if err := r.load(r.caddyfile(option, "")); err == nil {
			t.Errorf("%s: no error", option)
		}
	}
}

// authority is Caddy's internal CA as it stands in the test's storage.
func (r *rig) authority(t *testing.T) (root *x509.CertPool, rootFile string, issue func(name string) tls.Certificate) {
	t.Helper()
	dir := filepath.Join(r.dir, "data", "caddy", "pki", "authorities", "local")
	rootFile = filepath.Join(dir, "root.crt")
	pem, err := os.ReadFile(rootFile)
	if err != nil {
		t.Fatal(err)
	}
	root = x509.NewCertPool()
	root.AppendCertsFromPEM(pem)
	signer, err := tls.LoadX509KeyPair(filepath.Join(dir, "intermediate.crt"), filepath.Join(dir, "intermediate.key"))
	if err != nil {
		t.Fatal(err)
	}
	return root, rootFile, func(name string) tls.Certificate { return clientCertificateOf(t, &signer, name) }
}

// clientCertificateOf makes a certificate; nil: signed by itself.
func clientCertificateOf(t *testing.T, signer *tls.Certificate, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	uri, _ := url.Parse("spiffe://example/" + name)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames: []string{name + ".example"}, EmailAddresses: []string{name + "@example.com"}, URIs: []*url.URL{uri},
	}
	if signer == nil {
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
	parent, err := x509.ParseCertificate(signer.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, signer.Certificate[0]}, PrivateKey: key}
}

// awaitCertificate waits until Caddy has issued the site's certificate.
func (r *rig) awaitCertificate(t *testing.T, roots *x509.CertPool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", r.port), &tls.Config{RootCAs: roots, ServerName: "localhost"})
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond) // polls a port; Caddy has no one to tell
	}
}

func TestCertificateNamesTheCallerOnceItIsVerified(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	site := func(clientAuth, options string) string {
		text := r.caddyfile(options, "")
		text = strings.Replace(text, "admin off", "admin off\n\tstorage file_system "+filepath.Join(r.dir, "data", "caddy")+"\n\tskip_install_trust\n\tauto_https disable_redirects", 1)
		return strings.Replace(text, fmt.Sprintf("http://127.0.0.1:%d {", r.port),
			fmt.Sprintf("https://localhost:%d {\n\tbind 127.0.0.1\n\ttls internal {\n%s\n}", r.port, clientAuth), 1)
	}
	r.move()
	if err := r.load(site("", "")); err != nil {
		t.Fatal(err)
	}
	roots, rootFile, issue := r.authority(t)
	r.awaitCertificate(t, roots)
	call := func(cert *tls.Certificate) (map[string]any, error) {
		t.Helper()
		config := &tls.Config{RootCAs: roots, ServerName: "localhost"}
		if cert != nil {
			// Sent whatever the server asks for.
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
		}
		transport := &http.Transport{TLSClientConfig: config}
		defer transport.CloseIdleConnections()
		before := len(r.records())
		req := r.request(context.Background(), http.MethodPost, element("1", "echo"), nil)
		req.URL.Scheme, req.Host = "https", fmt.Sprintf("localhost:%d", r.port)
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || !json.Valid(text) {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		p, _ := principalIn(r.await(before + 2)[before:])
		return p, nil
	}
	alice := issue("alice")
	self := clientCertificateOf(t, nil, "alice")
	trust := "client_auth {\nmode verify_if_given\ntrust_pool file " + rootFile + "\n}"
	issuer := "CN=Caddy Local Authority - ECC Intermediate"
	for _, c := range []struct {
		name, auth, options string
		cert                *tls.Certificate
		want                map[string]any
		refused             bool
	}{
		{"subject", trust, "", &alice, map[string]any{"subject": "CN=alice", "issuer": issuer, "source": "{http.request.tls.client.subject}"}, false},
		{"name", trust, "identity {http.request.tls.client.san.uris.0}", &alice, map[string]any{"subject": "spiffe://example/alice", "issuer": issuer, "source": "{http.request.tls.client.san.uris.0}"}, false},
		{"list of names", trust, "identity {http.request.tls.client.san.emails} {\nclient_id {http.request.tls.client.san.dns_names.0}\n}", &alice,
			map[string]any{"subject": "alice@example.com", "issuer": issuer, "client_id": "alice.example", "source": "{http.request.tls.client.san.emails}"}, false},
		{"no certificate", trust, "", nil, nil, false},
		{"not of the authority", trust, "", &self, nil, true},
		{"asked for, and never checked", "client_auth {\nmode request\n}", "", &self, nil, false},
		{"asked for, and named", "client_auth {\nmode require\n}", "identity {http.request.tls.client.san.uris.0}", &self, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.move()
			if err := r.load(site(c.auth, c.options)); err != nil {
				t.Fatal(err)
			}
			got, err := call(c.cert)
			if (err != nil) != c.refused {
				t.Fatal(err)
			}
			if len(got) != len(c.want) || len(got) > 0 && !reflect.DeepEqual(got, c.want) {
				t.Errorf("principal %v, want %v", got, c.want)
			}
		})
	}
}
