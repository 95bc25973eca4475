//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEveryMessageIsRecordedAndTheLogVerifies(t *testing.T) {
	s := launch(t, options{flags: []string{"--server-id", "fs", "--client-id", "desk"}})
	s.initialized()
	s.send(call("1", "list"))
	s.gets(done("1"))
	s.send(call("2", "progress"))
	for i := range 3 {
		s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t2","progress":%d}}`, i))
	}
	s.gets(done("2"))
	s.send(call("3", "ask"))
	s.gets(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`)
	answer := `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`
	s.send(answer)
	s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":%q}]}}`, answer+"\n"))
	_ = s.in.Close()
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	recs := records(t, s.dir)
	for _, c := range [][2]string{{"initialize", "0"}, {"tools/call", "1"}, {"tools/call", "2"}, {"tools/call", "3"}, {"elicitation/create", "1"}} {
		out := outcome(t, recs, c[0], c[1])
		if out.str("outcome") != "success" {
			t.Errorf("%s %s: %v", c[0], c[1], out)
		}
		if out.str("server_id") != "fs" || out.str("client_id") != "desk" || out.str("transport") != "stdio" {
			t.Errorf("%s %s is recorded as %v", c[0], c[1], out)
		}
	}
	if counts, _ := outcome(t, recs, "tools/call", "2")["counts"].(map[string]any); counts["progress"] != 3.0 {
		t.Errorf("progress is counted as %v", counts)
	}
}

func TestNothingIsWrittenOutsideTheLogsFolder(t *testing.T) {
	s := launch(t, options{})
	s.initialized()
	_ = s.in.Close()
	s.exit()
	entries, err := os.ReadDir(s.home)
	if err != nil || len(entries) != 0 {
		t.Errorf("the home directory has %v, %v", entries, err)
	}
	err = filepath.Walk(s.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if text := s.errText(); strings.Count(text, "\n") != 1 {
		t.Errorf("standard error has more than the server's own line:\n%s", text)
	}
}

func TestHomeIsTheDefaultFolder(t *testing.T) {
	s := launch(t, options{env: []string{"MCP_AUDIT_DIR="}})
	s.initialized()
	_ = s.in.Close()
	s.exit()
	records(t, filepath.Join(s.home, ".mcp-audit"))
}

func TestChildsEndComesThrough(t *testing.T) {
	for name, c := range map[string]struct {
		server []string
		raw    []string
		tool   string
		want   string // of the error for the last request
		code   int
	}{
		"exits during initialize": {server: []string{"exit=3"}, code: 3,
			want: `{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"the server process exited with code 3","data":{"exitCode":3}}}`},
		"killed during a call": {tool: "die", code: 137,
			want: `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"the server process was killed by SIGKILL","data":{"exitCode":137,"signal":"SIGKILL"}}}`},
		"not found": {raw: []string{"/no/such/server"}, code: 127,
			want: `{"jsonrpc":"2.0","id":0,"error":{"code":-32000,"message":"the server command \"/no/such/server\" was not found: install it, or give its full path after --"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, options{raw: c.raw}, c.server...)
			method, id := "initialize", "0"
			if c.tool == "" {
				s.send(initLine)
			} else {
				method, id = "tools/call", "1"
				s.initialized()
				s.send(call("1", c.tool))
			}
			s.gets(c.want, "")
			if code := s.exit(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			out := outcome(t, records(t, s.dir), method, id)
			if out.str("outcome") != "rpc_error" {
				t.Errorf("recorded as %v", out)
			}
		})
	}
}

func TestEveryLineBeforeTheChildsEndIsDelivered(t *testing.T) {
	s := launch(t, options{})
	s.initialized()
	s.send(call("1", "flood"))
	for i := range 20_000 {
		s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`, i))
	}
	s.gets(done("1"), "")
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	records(t, s.dir)
}

func TestPipedScriptGetsItsAnswers(t *testing.T) {
	s := launch(t, options{})
	s.send(initLine, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, call("1", "list"))
	_ = s.in.Close()
	s.next()
	s.gets(done("1"), "")
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// ends is a way in which the client's side can end.
var ends = map[string]func(s *session){
	"end of input":              func(s *session) { _ = s.in.Close() },
	"SIGTERM":                   func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGTERM) },
	"SIGINT":                    func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGINT) },
	"SIGHUP":                    func(s *session) { _ = s.cmd.Process.Signal(syscall.SIGHUP) },
	"end of input, then a TERM": func(s *session) { _ = s.in.Close(); _ = s.cmd.Process.Signal(syscall.SIGTERM) },
}

func TestTheEndLeavesNoProcessAndASealedLog(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			// A server, and a process of its own, that ignore all but SIGKILL,
			// with a call that is never answered.
			s := launch(t, options{}, "grandchild", "deaf")
			s.initialized()
			s.send(call("1", "slow"))
			server, grandchild := s.pid("server"), s.pid("grandchild")
			s.awaitIntent("1")
			begin := time.Now()
			end(s)
			s.exit()
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("it took %s", took)
			}
			isGone(t, server, 0)
			isGone(t, grandchild, time.Second)
			if out := outcome(t, records(t, s.dir), "tools/call", "1"); out.str("outcome") == "success" {
				t.Errorf("recorded as %v", out)
			}
		})
	}
}

// awaitIntent waits until a call is in the log.
func (s *session) awaitIntent(id string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		data, _ := os.ReadFile(filepath.Join(s.dir, "audit.jsonl"))
		if strings.Contains(string(data), `"method":"tools/call"`) && strings.Contains(string(data), `"request_id":"`+id+`"`) {
			return
		}
		time.Sleep(2 * time.Millisecond) // polls a file of another process
	}
	s.t.Fatal("the call is not in the log")
}

func TestOpenCallIsAnsweredAfterTheClientsEndOfInput(t *testing.T) {
	s := launch(t, options{raw: []string{"sh", "-c", `read a; sleep 0.3; echo '{"jsonrpc":"2.0","id":0,"result":{}}'; cat >/dev/null`}})
	s.send(initLine)
	_ = s.in.Close()
	s.gets(`{"jsonrpc":"2.0","id":0,"result":{}}`, "")
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestRequestOfTheServerThatIsNeverAnsweredDoesNotKeepTheLogOpen(t *testing.T) {
	s := launch(t, options{})
	s.initialized()
	s.send(call("7", "ask"))
	s.next()
	_ = s.in.Close()
	s.exit()
	outcome(t, records(t, s.dir), "elicitation/create", "1")
	data, err := os.ReadFile(filepath.Join(s.dir, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(strings.TrimSpace(string(data)), "\n"); !strings.Contains(lines[len(lines)-1], `"kind":"checkpoint"`) {
		t.Error("the log is not sealed")
	}
}

func TestKilledClientLeavesNoChild(t *testing.T) {
	s := launch(t, options{}, "deaf")
	s.initialized()
	s.send(call("1", "slow"))
	server := s.pid("server")
	// All of a dead client's ends close at once.
	_ = s.in.Close()
	s.closeOut()
	s.exit()
	isGone(t, server, 0)
}

func TestKilledShimLeavesNoServer(t *testing.T) {
	s := launch(t, options{}, "deaf")
	s.initialized()
	server := s.pid("server")
	_ = s.cmd.Process.Kill()
	s.exit()
	// Linux kills the child with its parent; elsewhere only its input ends.
	if _, err := os.Stat("/proc/self/stat"); err == nil {
		isGone(t, server, 2*time.Second)
	} else {
		_ = syscall.Kill(server, syscall.SIGKILL)
	}
	// The next run closes what the dead one left open.
	again := launch(t, options{dir: s.dir})
	again.initialized()
	_ = again.in.Close()
	again.exit()
	records(t, s.dir)
}

func TestOnlyTheProtocolReachesStandardOutput(t *testing.T) {
	s := launch(t, options{})
	s.initialized()
	s.send(call("1", "noise"))
	s.gets(done("1"))
	_ = s.in.Close()
	s.gets("")
	s.exit()
	if text := s.errText(); !strings.Contains(text, "starting up ...") {
		t.Errorf("the stray output is nowhere:\n%s", text)
	}
}

func TestServersEnvironmentIsTheClientsWithoutOurSecrets(t *testing.T) {
	secret := "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
	s := launch(t, options{env: []string{"MCP_AUDIT_SIGNING_SECRET=" + secret, "GITHUB_TOKEN=theirs", "XDG_DATA_HOME=/their/data"}})
	s.initialized()
	for i, c := range [][2]string{{"MCP_AUDIT_SIGNING_SECRET", ""}, {"GITHUB_TOKEN", "theirs"}, {"XDG_DATA_HOME", "/their/data"}, {"MCP_AUDIT_DIR", s.dir}} {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"env","arguments":{"text":%q}}}`, i+1, c[0]))
		s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":%q}]}}`, i+1, c[1]))
	}
	_ = s.in.Close()
	s.exit()
	data, err := os.ReadFile(filepath.Join(s.dir, "audit.jsonl"))
	if err != nil || strings.Contains(string(data)+s.errText(), secret) {
		t.Errorf("the secret is in the log or in messages, %v", err)
	}
}

func TestAmbiguousMessagesNeverReachTheServerAndAreRecorded(t *testing.T) {
	s := launch(t, options{})
	s.initialized()
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","name":"die"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","Name":"die"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list"}} {}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list","arguments":{"x":NaN}}}`,
		"\xef\xbb\xbf" + call("1", "list"),
		`[` + call("1", "list") + `]`,
		`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"die"}}`,
	} {
		s.send(line)
		if got := s.next(); !strings.Contains(got, `"error":{"code":-32`) {
			t.Errorf("%q was answered with %q", line, got)
		}
	}
	s.send(call("2", "list"))
	s.gets(done("2"))
	_ = s.in.Close()
	s.exit()
	refused := 0
	for _, rec := range records(t, s.dir) {
		if rec.str("outcome") == "denied" {
			refused++
		}
	}
	if refused != 7 {
		t.Errorf("%d refusals are recorded, want 7", refused)
	}
}

func TestLogThatRefusesToOpenIsToldToTheClient(t *testing.T) {
	first := launch(t, options{})
	first.initialized()
	_ = first.in.Close()
	first.exit()
	path := filepath.Join(first.dir, "audit.jsonl")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/2); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		initLine: `{"jsonrpc":"2.0","id":0,"error":{"code":-32028,`,
		`{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`: `{"jsonrpc":"2.0","id":"d","error":{"code":-31028,`,
	} {
		s := launch(t, options{dir: first.dir})
		s.send(line)
		got := s.next()
		if !strings.HasPrefix(got, want) || !strings.Contains(got, "--accept-chain-break") || !strings.Contains(got, path) {
			t.Errorf("the client was told %q", got)
		}
		if code := s.exit(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
		if strings.Contains(s.errText(), "server ") && strings.Contains(s.errText(), "server 1") {
			t.Error("the server was started")
		}
	}
	s := launch(t, options{dir: first.dir, flags: []string{"--accept-chain-break", "the disk was restored"}})
	s.initialized()
	_ = s.in.Close()
	if code := s.exit(); code != 0 {
		t.Errorf("exit code %d after recovery:\n%s", code, s.errText())
	}
	data, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(data), `"kind":"chain_break"`) || !strings.Contains(string(data), "the disk was restored") {
		t.Errorf("the new log does not say why it begins, %v:\n%s", err, data)
	}
}

func TestSeveralShimsShareOneLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "audit")
	var all []*session
	for range 3 {
		all = append(all, launch(t, options{dir: dir}))
	}
	for _, s := range all {
		s.initialized()
	}
	for i := 1; i <= 20; i++ {
		for _, s := range all {
			s.send(call(fmt.Sprint(i), "list"))
		}
		for _, s := range all {
			s.gets(done(fmt.Sprint(i)))
		}
	}
	for _, s := range all {
		_ = s.in.Close()
		s.exit()
	}
	calls := 0
	for _, rec := range records(t, dir) {
		if rec.str("kind") == "outcome" && rec.str("method") == "tools/call" && rec.str("outcome") == "success" {
			calls++
		}
	}
	if calls != 60 {
		t.Errorf("%d calls are recorded, want 60", calls)
	}
}

func TestCommandLineMistakesAreUsageErrors(t *testing.T) {
	for _, flags := range [][]string{
		{"--log-level", "loud"}, {"--max-line", "0"}, {"--max-line", "99999999"}, {"--server-id", "{env.HOME}"},
		{"--caddy", "http://example.com/fs"}, {"--caddy", "unix/relative"}, {"--accept-chain-break", " "}, {"--nope"},
	} {
		s := launch(t, options{flags: flags})
		if code := s.exit(); code != 2 {
			t.Errorf("%q: exit code %d, want 2", flags, code)
		}
		if !strings.Contains(s.errText(), "mcp-audit-shim: ") {
			t.Errorf("%q: %s", flags, s.errText())
		}
	}
}
