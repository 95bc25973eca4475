package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func asExit(err error, into **exec.ExitError) bool { return errors.As(err, into) }

// Site describes a Caddy with one audited route, /mcp*.
type Site struct {
	// Dir holds everything; StartCaddy fills it in. A second Caddy of the same
	// folder shares the log.
	Dir string
	// Listen is the site's address; StartCaddy fills it in.
	Listen string
	// Upstream is the host:port behind the route.
	Upstream string
	// Store is how the log is kept, jsonl (also if it is empty) or sqlite.
	Store string
	// Log is the log's file; empty is audit/audit.jsonl, or audit/audit.db, in Dir.
	Log string
	// Output are the lines of the block of `output`.
	Output string
	// LogOptions are further lines of the log's block.
	LogOptions string
	// Handler are the lines of the mcp_audit block.
	Handler string
	// Proxy are the lines of the reverse_proxy block.
	Proxy string
	// Global are further global options, Routes further routes of the site.
	Global, Routes string
	// Unaudited leaves the handler and the log out.
	Unaudited bool
	// Bare leaves the log's configuration out; Log says where it must then be.
	Bare bool
}

// Caddyfile renders the site.
func (s Site) Caddyfile(admin string) string {
	audit := "mcp_audit {\n" + s.Handler + "\n}"
	output := "output " + cmp.Or(s.Store, "jsonl") + " " + s.Log
	if s.Output != "" {
		output += " {\n" + s.Output + "\n}"
	}
	logs := "mcp_audit {\nlog default {\n" + output + "\n" + s.LogOptions + "\n}\n}"
	if s.Unaudited {
		audit = ""
	}
	if s.Unaudited || s.Bare {
		logs = ""
	}
	return "{\nadmin " + admin + "\nauto_https off\ngrace_period 2s\n" + s.Global + "\n" + logs + "\n}\n" +
		"http://" + s.Listen + " {\nbind 127.0.0.1\n" + s.Routes + "\nroute /mcp* {\n" + audit +
		"\nreverse_proxy " + s.Upstream + " {\n" + s.Proxy + "\n}\n}\n}\n"
}

// Caddy is a running Caddy.
type Caddy struct {
	*Process
	Site
	Admin string // its admin endpoint, as --address takes it
	URL   string // of the audited endpoint
	file  string
	env   []string
}

// StartCaddy starts Caddy with a site and returns when it serves.
func StartCaddy(t testing.TB, site Site, env ...string) *Caddy {
	t.Helper()
	c := Prepare(t, site, env...)
	c.Start(t)
	return c
}

// Prepare writes the configuration of a Caddy that is not started.
func Prepare(t testing.TB, site Site, env ...string) *Caddy {
	t.Helper()
	if site.Dir == "" {
		site.Dir = TempDir(t)
	}
	if site.Listen == "" {
		site.Listen = FreeAddress(t)
	}
	if site.Log == "" {
		site.Log = filepath.Join(site.Dir, "audit", "audit.jsonl")
		if site.Store == "sqlite" {
			site.Log = filepath.Join(site.Dir, "audit", "audit.db")
		}
	}
	port := site.Listen[strings.LastIndex(site.Listen, ":")+1:]
	c := &Caddy{
		Site:  site,
		Admin: "unix/" + filepath.Join(site.Dir, port+".sock"),
		URL:   "http://" + site.Listen + "/mcp",
		file:  filepath.Join(site.Dir, port+".caddyfile"),
		env:   Environment(site.Dir, env...),
	}
	c.write(t, site)
	return c
}

func (c *Caddy) write(t testing.TB, site Site) {
	t.Helper()
	if err := os.WriteFile(c.file, []byte(site.Caddyfile(c.Admin)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// command is a caddy command with the site's configuration file.
func (c *Caddy) command(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(Find(t).Caddy, args...)
	cmd.Env = c.env
	cmd.Dir = c.Dir
	return cmd
}

// Start runs the prepared Caddy, again after its end, and returns when it
// serves.
func (c *Caddy) Start(t testing.TB) {
	t.Helper()
	served, err := c.start(t)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-served:
	case <-c.Done():
		t.Fatalf("caddy ended with %d before it served:\n%s", c.Exit(t), c.Err)
	case <-time.After(Patience):
		t.Fatalf("caddy does not serve after %s:\n%s", Patience, c.Err)
	}
}

// StartFails runs the prepared Caddy, which must end before it serves, and
// returns its stderr.
func (c *Caddy) StartFails(t testing.TB) string {
	t.Helper()
	served, err := c.start(t)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-served:
		t.Fatalf("caddy serves although it should not:\n%s", c.Err)
	case <-c.Done():
	case <-time.After(Patience):
		t.Fatalf("caddy neither serves nor ends after %s:\n%s", Patience, c.Err)
	}
	return c.Err.String()
}

// start uses the call-back that `caddy start` waits for.
func (c *Caddy) start(t testing.TB) (<-chan struct{}, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	const token = "caddy serves"
	cmd := c.command(t, "run", "--config", c.file, "--adapter", "caddyfile", "--pingback", listener.Addr().String())
	cmd.Stdin = strings.NewReader(token)
	served := make(chan struct{})
	go func() {
		defer listener.Close()
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if got, err := io.ReadAll(conn); err == nil && string(got) == token {
			close(served)
		}
	}()
	c.Process = Launch(t, cmd)
	go func() {
		<-c.Done()
		listener.Close()
	}()
	return served, nil
}

// Reload loads another configuration for the same site; err is what caddy
// reload printed if it refused.
func (c *Caddy) Reload(t testing.TB, change func(*Site)) (refusal string) {
	t.Helper()
	site := c.Site
	change(&site)
	c.write(t, site)
	_, stderr, code := Run(t, c.command(t, "reload", "--config", c.file, "--adapter", "caddyfile", "--address", c.Admin, "--force"))
	if code != 0 {
		return stderr
	}
	c.Site = site
	return ""
}

// Validate runs caddy validate on the site's configuration.
func (c *Caddy) Validate(t testing.TB) (stderr string, code int) {
	t.Helper()
	_, stderr, code = Run(t, c.command(t, "validate", "--config", c.file, "--adapter", "caddyfile"))
	return stderr, code
}

// Adapt is caddy adapt on the site's configuration.
func (c *Caddy) Adapt(t testing.TB) *exec.Cmd {
	return c.command(t, "adapt", "--config", c.file, "--adapter", "caddyfile")
}

// Stop ends Caddy in an orderly way.
func (c *Caddy) Stop(t testing.TB) {
	t.Helper()
	c.Signal(t, os.Interrupt)
	c.Exit(t)
}

// AdminGet asks the admin endpoint.
func (c *Caddy) AdminGet(t testing.TB, path string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(c.Admin, "unix/"))
		},
		DisableKeepAlives: true,
	}}
	resp, err := client.Get("http://127.0.0.1" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// FreeAddress returns a loopback address on which nothing listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Answer is what the route answered.
type Answer struct {
	Status int
	Header http.Header
	Body   string
}

// NewRequest makes a POST of an MCP message to the route; header are pairs of
// name and value.
func (c *Caddy) NewRequest(t testing.TB, body string, header ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// Post sends an MCP message to the route and reads the whole answer.
func (c *Caddy) Post(t testing.TB, body string, header ...string) Answer {
	t.Helper()
	return c.Do(t, c.NewRequest(t, body, header...))
}

// Do sends any request and reads the whole answer.
func (c *Caddy) Do(t testing.TB, r *http.Request) Answer {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return Answer{resp.StatusCode, resp.Header, string(data)}
}
