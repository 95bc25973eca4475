package tests

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/issuer"
)

// authSite renders a site whose route has a provider, and options of the site,
// of mcp_audit and of reverse_proxy.
type authSite struct {
	scheme, global, site, provider, handler, proxy string
}

func (a authSite) render(site harness.Site, admin string) string {
	if a.scheme == "" {
		a.scheme = "http"
	}
	authentication := ""
	if a.provider != "" {
		authentication = "authentication {\n" + a.provider + "\n}\n"
	}
	return "{\nadmin " + admin + "\ngrace_period 2s\nskip_install_trust\nauto_https disable_redirects\n" + a.global + "\nmcp_audit {\nlog default {\noutput jsonl " + site.Log + "\n}\n}\n}\n" +
		a.scheme + "://" + site.Listen + " {\nbind 127.0.0.1\n" + a.site + "\nroute /mcp* {\n" + authentication +
		"mcp_audit {\nserver_id notes\n" + a.handler + "\n}\nreverse_proxy " + site.Upstream + " {\n" + a.proxy + "\n}\n}\n}\n"
}

func (a authSite) start(t *testing.T, upstream string) *harness.Caddy {
	t.Helper()
	return harness.StartCaddyfile(t, harness.Site{Upstream: upstream}, a.render)
}

// startNotes is a real server behind the route.
func startNotes(t *testing.T) string { return harness.StartNotes(t, harness.TempDir(t)) }

func oidc(i *issuer.Issuer, more string) string {
	return "mcp_oidc {\nissuer " + i.URL + "\naudience " + issuer.Audience + "\n" + more + "\n}"
}

// rejections are the records of rejected requests.
func rejections(records []harness.Record) []harness.Record {
	return harness.Select(records, func(r harness.Record) bool {
		return r.Kind == "event" && r.Outcome == "denied"
	})
}

// Clients of the SDKs find the issuer by the challenge and the metadata, get a
// token and use the server, without being told more than the address.
func TestClientsFindTheirIssuerByTheMetadata(t *testing.T) {
	i := issuer.Start(t)
	upstream := startNotes(t)
	for _, client := range harness.Clients() {
		t.Run(client.Name, func(t *testing.T) {
			c := authSite{provider: oidc(i, "require_scopes mcp:read roles")}.start(t, upstream)
			scope := ""
			if client.Name == "TypeScript SDK v1" {
				scope = "mcp:read roles"
			}
			report := client.Run(t, c.Dir, harness.Plan{
				Target: harness.Target{URL: c.URL, Credentials: &harness.Credentials{
					ClientID: "robot", ClientSecret: issuer.Secret("robot"), ExpectedIssuer: i.URL, Scope: scope,
				}},
				Steps: []harness.Step{{List: true}, {Call: "echo", Arguments: map[string]any{"message": "hi"}}},
			})
			if len(report.Steps) != 2 || report.Steps[1].Text != "hi" {
				t.Errorf("%+v", report)
			}
			records := c.Records(t)
			refused := rejections(records)
			if len(refused) != 1 || refused[0].Reason != "token_missing" || refused[0].HTTPStatus != http.StatusUnauthorized || refused[0].Principal != nil {
				t.Errorf("rejections: %+v", refused)
			}
			calls := harness.Select(records, func(r harness.Record) bool { return r.Kind == "intent" && r.Tool == "echo" })
			if len(calls) != 1 || calls[0].Principal["subject"] != "robot" || calls[0].Principal["issuer"] != i.URL || fmt.Sprint(calls[0].Principal["roles"]) != "[operator reader]" || calls[0].Client != "robot" {
				t.Errorf("calls: %+v", calls)
			}
			c.Stop(t)
			harness.VerifyClean(t, c.Log)
		})
	}
}

// The keys of a real issuer rotate under load, and its tokens expire: no valid
// request is refused, and nothing else is accepted.
func TestRealIssuerRotatesRetiresAndExpires(t *testing.T) {
	i := issuer.Start(t)
	c := authSite{provider: oidc(i, "refresh_interval 1s\nclock_skew 0s"), handler: "refusals off"}.start(t, startNotes(t))
	first := i.Token(t, "robot")
	status := func(token string) int {
		return c.Post(t, call("1", "echo", `{"message":"x"}`), "Authorization", "Bearer "+token).Status
	}
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var sent, refused atomic.Int32
	for range 4 {
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				if status(i.Token(t, "robot")) == 401 {
					refused.Add(1)
				}
			}
		})
	}
	for n := range 3 {
		time.Sleep(500 * time.Millisecond) // load on each key
		i.Rotate(t, fmt.Sprint("next", n), true)
	}
	time.Sleep(500 * time.Millisecond)
	close(stop)
	wait.Wait()
	if refused.Load() > 0 || sent.Load() == 0 {
		t.Errorf("%d of %d valid requests were refused", refused.Load(), sent.Load())
	}
	if s := status(first); s == 401 {
		t.Error("the token of a former key that is still shown is refused")
	}
	i.Rotate(t, "last", false)
	harness.Eventually(t, "the token of a retired key to be refused", func() bool { return status(first) == 401 })
	i.Lifetime(2 * time.Second)
	short := i.Token(t, "robot")
	if s := status(short); s == 401 {
		t.Error("a token is refused before it expires")
	}
	harness.Eventually(t, "a token to expire", func() bool { return status(short) == 401 })
	i.Down(true)
	reasons := map[string]int{}
	for _, r := range rejections(c.Records(t)) {
		reasons[r.Reason]++
	}
	for reason := range reasons {
		if reason != "token_expired" && reason != "token_key_unknown" {
			t.Errorf("reasons: %v", reasons)
		}
	}
}

// secrets are what must appear nowhere: each as it is, its first 12 characters,
// in hexadecimal and in base64.
type secrets map[string]string

func (s secrets) search(t *testing.T, where, text string) {
	t.Helper()
	folded := strings.ToLower(text)
	for name, secret := range s {
		if strings.Contains(text, secret[:12]) {
			t.Errorf("%s has the beginning of %s", where, name)
		}
		if strings.Contains(folded, hex.EncodeToString([]byte(secret[:12]))) {
			t.Errorf("%s has %s in hexadecimal", where, name)
		}
		// Base64 of a part of a longer text begins at one of three places.
		for shift := range 3 {
			inner := base64.RawStdEncoding.EncodeToString([]byte(secret[shift : shift+12]))
			if strings.Contains(text, inner[:14]) || strings.Contains(text, strings.NewReplacer("+", "-", "/", "_").Replace(inner[:14])) {
				t.Errorf("%s has %s in base64", where, name)
			}
		}
	}
}

// ATH-5: with logs at debug and every refusal, no secret is anywhere.
func TestSecretsOfAuthenticationAppearNowhere(t *testing.T) {
	i := issuer.Start(t)
	dir := harness.TempDir(t)
	random := func() string {
		raw := make([]byte, 32)
		if _, err := rand.Read(raw); err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(raw)
	}
	all := secrets{"the static token": random(), "the upstream token": random(), "a wrong token": random(), "the client secret": issuer.Secret("robot-" + random())}
	write(t, filepath.Join(dir, "static"), []byte(all["the static token"]+"\n"))
	write(t, filepath.Join(dir, "upstream"), []byte(all["the upstream token"]))
	var seen sync.Map
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Authorization"), true)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer upstream.Close()
	c := authSite{
		global: "debug", site: "log\nhandle /metrics {\nmetrics\n}",
		provider: oidc(i, "require_scopes mcp:read") + "\nmcp_bearer {\ntoken {file." + dir + "/static} {\nscopes mcp:read\n}\nthrottle 3/1m\n}",
		handler:  "refusals off\nupstream_token {file." + dir + "/upstream}",
	}.start(t, strings.TrimPrefix(upstream.URL, "http://"))
	good := i.Token(t, "robot", "mcp:read")
	poor := i.Token(t, "robot")
	parts := strings.Split(good, ".")
	forged := parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))
	all["the header of a token"], all["the payload of a token"], all["the signature of a token"] = parts[0], parts[1], parts[2]
	all["the payload of a poor token"] = strings.Split(poor, ".")[1]
	statuses := map[int]int{}
	post := func(header ...string) {
		r := c.NewRequest(t, call("1", "echo", `{"message":"x"}`))
		for n := 0; n+1 < len(header); n += 2 {
			r.Header.Add(header[n], header[n+1])
		}
		statuses[c.Do(t, r).Status]++
	}
	bearer := func(token string) { post("Authorization", "Bearer "+token) }
	post()
	bearer(good)
	if _, sent := seen.Load("Bearer " + all["the upstream token"]); !sent {
		t.Error("the server did not get its token")
	}
	bearer(all["the static token"])
	bearer(poor)
	bearer(forged)
	bearer(good + "x")
	bearer(good + " " + good)
	post("Authorization", "DPoP "+good)
	post("Authorization", "Bearer "+good, "Authorization", "Bearer "+all["the static token"])
	post("Authorization", "Basic "+good)
	post("Authorization", "Bearer "+good, "Origin", "https://evil.example")
	for range 5 {
		bearer(all["a wrong token"])
	}
	i.Down(true)
	without := authSite{global: "debug", site: "log\nhandle /metrics {\nmetrics\n}", provider: oidc(i, "timeout 1s")}
	if refusal := c.Load(t, without.render(c.Site, c.Admin)); refusal != "" {
		t.Fatal(refusal)
	}
	bearer(good)
	for _, want := range []int{400, 401, 403, 429, 503} {
		if statuses[want] == 0 {
			t.Errorf("no request was answered %d: %v", want, statuses)
		}
	}
	_, config := c.AdminGet(t, "/config/")
	all.search(t, "the admin API", config)
	resp, err := http.Get(strings.TrimSuffix(c.URL, "/mcp") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(metrics, []byte("token_missing")) {
		t.Fatalf("%v %s", err, metrics)
	}
	all.search(t, "the metrics", string(metrics))
	c.Stop(t)
	all.search(t, "stdout", c.Out.String())
	all.search(t, "stderr", c.Err.String())
	if text := c.Err.String(); !strings.Contains(text, "not authenticated") || !strings.Contains(text, "the server answers 401") {
		t.Error("the logs are not at debug, or do not say what withholding a token did")
	}
	// Everything that Caddy and the audit wrote: the log, its index and keys,
	// autosave.json and what else there is.
	files := 0
	err = filepath.WalkDir(c.Dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		files++
		all.search(t, path, string(read(t, path)))
		return nil
	})
	if err != nil || files < 4 {
		t.Errorf("%d files, %v", files, err)
	}
	if !slices.ContainsFunc(globAll(t, c.Dir), func(p string) bool { return filepath.Base(p) == "autosave.json" }) {
		t.Error("there is no autosave.json")
	}
	harness.VerifyClean(t, c.Log)
}

func globAll(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// clientCertificate is a certificate of an authority's key pair, in PEM files.
func clientCertificate(t *testing.T, name, authority, authorityKey string) tls.Certificate {
	t.Helper()
	ca, err := tls.X509KeyPair(read(t, authority), read(t, authorityKey))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	parent, err := x509.ParseCertificate(ca.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der, ca.Certificate[0]}, PrivateKey: key}
}

// A client is known by its certificate of Caddy's internal authority, together
// with a token; and the server knows Caddy by a certificate, too, which it checks
// against an authority of its own.
func TestCertificatesOnBothSides(t *testing.T) {
	i := issuer.Start(t)
	dir := harness.TempDir(t)
	site := harness.Site{Listen: strings.Replace(harness.FreeAddress(t), "127.0.0.1", "localhost", 1)}
	// The server's authority, the server's certificate and that of Caddy.
	own := writeAuthority(t, dir)
	server := clientCertificate(t, "server.internal", own, own+".key")
	proxy := clientCertificate(t, "caddy.internal", own, own+".key")
	writeCertificate(t, filepath.Join(dir, "proxy"), proxy)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read(t, own))
	var peers sync.Map
	upstream := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peers.Store(r.TLS.PeerCertificates[0].Subject.CommonName, r.TLS.ServerName)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	upstream.TLS = &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS12}
	upstream.StartTLS()
	defer upstream.Close()
	site.Upstream = strings.TrimPrefix(upstream.URL, "https://")
	a := authSite{
		scheme:  "https",
		site:    "tls internal {\nclient_auth {\nmode require_and_verify\ntrust_pool pki_root {\nauthority local\n}\n}\n}",
		handler: "identity {http.request.tls.client.subject}\nrefusals off",
		proxy: "transport http {\ntls\ntls_trust_pool file " + own + "\ntls_server_name server.internal\ntls_client_auth " +
			filepath.Join(dir, "proxy.crt") + " " + filepath.Join(dir, "proxy.key") + "\n}",
	}
	c := harness.StartCaddyfile(t, site, a.render)
	pki := filepath.Join(c.Dir, "home", "data", "caddy", "pki", "authorities", "local")
	certificate := clientCertificate(t, "robot", filepath.Join(pki, "intermediate.crt"), filepath.Join(pki, "intermediate.key"))
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(read(t, filepath.Join(pki, "root.crt")))
	url := "https://" + c.Listen + "/mcp"
	post := func(token string, certificates ...tls.Certificate) (*http.Response, error) {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: trusted, Certificates: certificates, MinVersion: tls.VersionTLS12},
		}}
		r := c.NewRequest(t, call("1", "echo", `{"message":"x"}`))
		parsed, err := r.URL.Parse(url)
		if err != nil {
			t.Fatal(err)
		}
		r.URL, r.Host = parsed, ""
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		return resp, err
	}
	var resp *http.Response
	var err error
	harness.Eventually(t, "Caddy to have its certificate", func() bool {
		resp, err = post("", certificate)
		return err == nil
	})
	if resp.StatusCode != 200 {
		t.Fatal(resp)
	}
	if _, err := post(""); err == nil {
		t.Error("a client without a certificate is let in")
	}
	if _, err := post("", clientCertificate(t, "robot", own, own+".key")); err == nil {
		t.Error("a certificate of another authority is let in")
	}
	if name, _ := peers.Load("caddy.internal"); name != "server.internal" {
		t.Errorf("the server was called %v", name)
	}
	calls := harness.Select(c.Records(t), func(r harness.Record) bool { return r.Kind == "intent" })
	if len(calls) != 1 || calls[0].Principal["subject"] != "CN=robot" || calls[0].Principal["source"] != "{http.request.tls.client.subject}" {
		t.Errorf("calls: %+v", calls)
	}
	// A certificate for the connection and a token for the caller.
	a.provider = oidc(i, "")
	a.handler = "refusals off"
	if refusal := c.Load(t, a.render(c.Site, c.Admin)); refusal != "" {
		t.Fatal(refusal)
	}
	resp, err = post("", certificate)
	if err != nil || resp.StatusCode != 401 || !regexp.MustCompile(`^Bearer resource_metadata="https://localhost:\d+/\.well-known/oauth-protected-resource/mcp"$`).MatchString(resp.Header.Get("WWW-Authenticate")) {
		t.Errorf("without a token: %v %v", resp, err)
	}
	if resp, err = post(i.Token(t, "alice"), certificate); err != nil || resp.StatusCode != 200 {
		t.Errorf("with both: %v %v", resp, err)
	}
	c.Stop(t)
	harness.VerifyClean(t, c.Log)
}

// writeAuthority writes a certificate authority to files, and returns that of
// the certificate; the key is beside it.
func writeAuthority(t *testing.T, dir string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "own authority"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "own.crt")
	writePEM(t, path, "CERTIFICATE", der)
	writeKey(t, path+".key", key)
	return path
}

func writeCertificate(t *testing.T, path string, c tls.Certificate) {
	t.Helper()
	writePEM(t, path+".crt", "CERTIFICATE", c.Certificate[0])
	writeKey(t, path+".key", c.PrivateKey.(*ecdsa.PrivateKey))
}

func writeKey(t *testing.T, path string, key *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, path, "PRIVATE KEY", der)
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	write(t, path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
