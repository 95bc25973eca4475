//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// managed is a Caddy of the test's process with an audited route for shims, on
// a port and on a socket.
type managed struct {
	dir, runtime string
	http, unix   string // for --caddy
}

func startCaddy(t *testing.T) *managed {
	t.Helper()
	// Socket paths are short; the test's own folder may not be.
	base, err := os.MkdirTemp("/tmp", "shim")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	m := &managed{
		dir: filepath.Join(base, "log"), runtime: filepath.Join(base, "run"),
		http: "http://" + address + "/fs", unix: "unix/" + filepath.Join(base, "caddy.sock") + ":/fs",
	}
	t.Setenv("HOME", base)
	t.Setenv("XDG_DATA_HOME", filepath.Join(base, "data"))
	type object = map[string]any
	cfg, err := json.Marshal(object{
		"admin":   object{"disabled": true, "config": object{"persist": false}},
		"logging": object{"logs": object{"default": object{"level": "FATAL"}}},
		"apps": object{
			"mcp_audit": object{"logs": object{"default": object{"path": filepath.Join(m.dir, "audit.jsonl")}}},
			"http": object{"grace_period": "1s", "servers": object{"s": object{
				"listen": []string{address, "unix/" + filepath.Join(base, "caddy.sock") + "|0600"}, "automatic_https": object{"disable": true},
				"routes": []object{{"match": []object{{"path": []string{"/fs"}}}, "handle": []object{
					{"handler": "mcp_audit", "server_id": "managed", "principal": object{"subject": "me"}},
					{"handler": "reverse_proxy", "dynamic_upstreams": object{"source": "mcp_shim", "runtime_dir": m.runtime}},
				}}},
			}}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(cfg, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.stop)
	return m
}

func (m *managed) stop() { _ = caddy.Stop() }

func TestShimsOfARunningCaddyEachReachTheirOwnServer(t *testing.T) {
	m := startCaddy(t)
	var all []*session
	for i, at := range []string{m.http, m.unix, m.http} {
		all = append(all, launch(t, options{
			flags: []string{"--caddy", at, "--runtime-dir", m.runtime},
			env:   []string{fmt.Sprintf("WHO=%d", i)},
		}))
	}
	for _, s := range all {
		s.initialized()
	}
	for i, s := range all {
		s.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"env","arguments":{"text":"WHO"}}}`)
		s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"%d"}]}}`, i))
		s.send(call("2", "ask"))
		s.gets(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`)
		s.send(`{"jsonrpc":"2.0","id":1,"result":{"action":"decline"}}`)
		s.next()
		s.send(call("3", "progress"))
		for range 4 {
			s.next()
		}
	}
	sockets, _ := filepath.Glob(filepath.Join(m.runtime, "*.sock"))
	if len(sockets) != 3 {
		t.Errorf("%d sockets for three shims", len(sockets))
	}
	for _, s := range all {
		_ = s.in.Close()
		if code := s.exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if entries, err := os.ReadDir(s.dir); err == nil {
			t.Errorf("the shim wrote a log of its own: %v", entries)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(m.runtime, "*")); len(left) != 0 {
		t.Errorf("sockets are left: %v", left)
	}
	m.stop()
	recs := records(t, m.dir)
	calls := 0
	for _, rec := range recs {
		if rec.str("kind") == "outcome" && rec.str("outcome") == "success" && rec.str("server_id") == "managed" {
			calls++
		}
	}
	if calls != 3*5 {
		t.Errorf("%d operations succeeded, want %d", calls, 3*5)
	}
	data, err := os.ReadFile(filepath.Join(m.dir, "audit.jsonl"))
	if err != nil || strings.Contains(strings.ToLower(string(data)), "capability") {
		t.Errorf("the log knows of the capability, %v", err)
	}
}

func TestManyLinesBeforeTheEndPassARunningCaddy(t *testing.T) {
	m := startCaddy(t)
	s := launch(t, options{flags: []string{"--caddy", m.http, "--runtime-dir", m.runtime}})
	s.initialized()
	s.send(call("1", "flood"))
	for i := range 20_000 {
		s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, i))
	}
	s.gets(done("1"), "")
	s.exit()
}

func TestCaddyThatIsDownIsNeverBypassed(t *testing.T) {
	m := startCaddy(t)
	m.stop()
	for _, at := range []string{m.http, m.unix} {
		s := launch(t, options{flags: []string{"--caddy", at, "--runtime-dir", m.runtime}})
		s.send(initLine)
		got := s.next()
		if !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":0,"error":{"code":-32028,`) || !strings.Contains(got, "start it, or correct --caddy") {
			t.Errorf("the client was told %q", got)
		}
		s.send(`{"jsonrpc":"2.0","id":"m","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
		if got := s.next(); !strings.Contains(got, `"id":"m","error":{"code":-31028,`) {
			t.Errorf("the client was told %q", got)
		}
		_ = s.in.Close()
		s.exit()
	}
}

func TestCaddyThatDoesNotFindTheShimSaysHow(t *testing.T) {
	m := startCaddy(t)
	s := launch(t, options{flags: []string{"--caddy", m.http, "--runtime-dir", m.runtime + "2"}})
	s.send(initLine)
	if got := s.next(); !strings.Contains(got, `"id":0,"error"`) || !strings.Contains(got, "runtime directory") {
		t.Errorf("the client was told %q", got)
	}
	_ = s.in.Close()
	s.exit()
}

func TestRuntimeFolderThatOthersMayEnterIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := launch(t, options{flags: []string{"--caddy", "http://127.0.0.1:1/fs", "--runtime-dir", dir}})
	s.send(initLine)
	if got := s.next(); !strings.Contains(got, `"code":-32028`) || !strings.Contains(got, "chmod 700") {
		t.Errorf("the client was told %q", got)
	}
	if code := s.exit(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
}

func TestSocketsOfKilledShimsAreRemoved(t *testing.T) {
	m := startCaddy(t)
	flags := []string{"--caddy", m.http, "--runtime-dir", m.runtime}
	killed := launch(t, options{flags: flags})
	killed.initialized()
	_ = killed.cmd.Process.Kill()
	killed.exit()
	old, _ := filepath.Glob(filepath.Join(m.runtime, "*.sock"))
	if len(old) != 1 {
		t.Fatalf("%d sockets after one kill", len(old))
	}
	backdate(t, old[0])
	s := launch(t, options{flags: flags})
	s.initialized()
	if _, err := os.Lstat(old[0]); err == nil {
		t.Error("the socket of a killed shim is still there")
	}
	_ = s.in.Close()
	s.exit()
}
