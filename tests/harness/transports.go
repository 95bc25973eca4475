package harness

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/quic-go/quic-go/http3"
)

// StartCaddyfile starts Caddy with a configuration of the test's own in place
// of the site's. render gets the site with its folder and log, and the admin
// endpoint.
func StartCaddyfile(t testing.TB, site Site, render func(site Site, admin string) string) *Caddy {
	t.Helper()
	c := Prepare(t, site)
	if err := os.WriteFile(c.file, []byte(render(c.Site, c.Admin)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Start(t)
	return c
}

// Load loads another configuration of the test's own; err is what caddy reload
// printed if it refused.
func (c *Caddy) Load(t testing.TB, caddyfile string) (refusal string) {
	t.Helper()
	if err := os.WriteFile(c.file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := Run(t, c.command(t, "reload", "--config", c.file, "--adapter", "caddyfile", "--address", c.Admin, "--force"))
	if code != 0 {
		return stderr
	}
	return ""
}

// Clients are HTTP clients that speak one version of HTTP each, by its name:
// h1, h2 and h3 over TLS, h1c and h2c without. They trust the certificates of
// `tls internal` and end with the test.
func (c *Caddy) Clients(t testing.TB) map[string]*http.Client {
	t.Helper()
	root := filepath.Join(c.Dir, "home", "data", "caddy", "pki", "authorities", "local", "root.crt")
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(root)
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("the certificate of `tls internal`: %v", err)
	}
	trust := func() *tls.Config { return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13} }
	clients := make(map[string]*http.Client)
	for name, choose := range map[string]func(*http.Protocols){
		"h1":  func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2":  func(p *http.Protocols) { p.SetHTTP2(true) },
		"h1c": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2c": func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		protocols := new(http.Protocols)
		choose(protocols)
		transport := &http.Transport{TLSClientConfig: trust(), Protocols: protocols}
		t.Cleanup(transport.CloseIdleConnections)
		clients[name] = &http.Client{Transport: transport}
	}
	quic := &http3.Transport{TLSClientConfig: trust()}
	t.Cleanup(func() { quic.Close() })
	clients["h3"] = &http.Client{Transport: quic}
	return clients
}
