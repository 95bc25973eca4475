//go:build unix

package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// reports are the params of the events with a reason.
func reports(recs []record, reason string) (all []map[string]any) {
	for _, r := range recs {
		if r.str("kind") == "event" && r.str("reason") == reason {
			all = append(all, r["params"].(map[string]any))
		}
	}
	return all
}

const awsKey = "AKIAIOSFODNN7EXAMPLE"

// bothModes runs a test with the embedded Caddy and with a running one.
func bothModes(t *testing.T, test func(t *testing.T, o options, log func() string)) {
	t.Run("embedded", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "audit")
		test(t, options{dir: dir}, func() string { return dir })
	})
	t.Run("a running Caddy", func(t *testing.T) {
		m := startCaddy(t)
		test(t, options{flags: []string{"--caddy", m.http, "--runtime-dir", m.runtime}}, func() string { m.stop(); return m.dir })
	})
}

func TestLaunchIsRecordedBeforeTheFirstMessage(t *testing.T) {
	bothModes(t, func(t *testing.T, o options, log func() string) {
		o.env = []string{"SOME_VARIABLE=its-value", "MCP_AUDIT_STATIC_BEARER_TOKEN=0f1e2d3c4b5a69788796a5b4c3d2e1f0"}
		s := launch(t, o, "--api-key", "abc-hidden", "--token=def-hidden", "--key", awsKey, "plain argument $(id)")
		s.initialized()
		_ = s.in.Close()
		s.exit()
		recs := records(t, log())
		at := slices.IndexFunc(recs, func(r record) bool { return r.str("reason") == "launch" })
		first := slices.IndexFunc(recs, func(r record) bool { return r.str("kind") == "intent" })
		if at < 0 || at > first {
			t.Fatalf("the launch is record %d, the first intent %d", at, first)
		}
		p := reports(recs, "launch")[0]
		program, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(program)
		if p["executable"] != os.Args[0] || p["executable_sha256"] != base64.RawURLEncoding.EncodeToString(sum[:]) || p["protocol_version"] != "2025-11-25" {
			t.Errorf("%v", p)
		}
		if client, _ := p["client"].(map[string]any); client["name"] != "t" {
			t.Errorf("client %v", p["client"])
		}
		text, _ := json.Marshal(p["arguments"])
		if got, want := string(text), `["--api-key","[REDACTED]","--token=[REDACTED]","--key","[REDACTED:aws_key]","plain argument $(id)"]`; got != want {
			t.Errorf("arguments %s, want %s", got, want)
		}
		all := fmt.Sprint(recs)
		if names := fmt.Sprint(p["environment"]); !strings.Contains(names, "SOME_VARIABLE") || strings.Contains(names, "BEARER") || strings.Contains(all, "its-value") || strings.Contains(all, "hidden") {
			t.Errorf("environment %v", names)
		}
	})
}

func TestOutputBesideTheProtocolIsRecordedAndRedacted(t *testing.T) {
	bothModes(t, func(t *testing.T, o options, log func() string) {
		o.flags = append(o.flags, "--record-stderr")
		s := launch(t, o, "say=the key is "+awsKey, `say={"level":"info","password":"hush"}`)
		s.initialized()
		s.send(call("1", "noise"))
		s.gets(done("1"))
		_ = s.in.Close()
		s.exit()
		if !strings.Contains(s.errText(), "the key is "+awsKey) {
			t.Errorf("standard error was changed: %s", s.errText())
		}
		recs := records(t, log())
		stderr, stdout := fmt.Sprint(reports(recs, "stderr")), fmt.Sprint(reports(recs, "stdout"))
		if !strings.Contains(stderr, "the key is [REDACTED:aws_key]") || !strings.Contains(stderr, `"password":"[REDACTED]"`) || !strings.Contains(stdout, "starting up ...") {
			t.Errorf("stderr %s\nstdout %s", stderr, stdout)
		}
		if all := fmt.Sprint(recs); strings.Contains(all, awsKey) || strings.Contains(all, "hush") {
			t.Error("a secret is in the log")
		}
	})
}

func TestEnvironmentIsWhatTheFlagsLeaveOfIt(t *testing.T) {
	for _, c := range []struct {
		flags []string
		gets  map[string]string
	}{
		{[]string{"--env-deny", "AWS_*"}, map[string]string{"AWS_SECRET_ACCESS_KEY": "", "OTHER": "o"}},
		{[]string{"--env-deny", "AWS_*,OTHER"}, map[string]string{"AWS_SECRET_ACCESS_KEY": "", "OTHER": ""}},
		{[]string{"--env-allow", roleVariable, "--env-allow", "OTHER"}, map[string]string{"AWS_SECRET_ACCESS_KEY": "", "OTHER": "o", "PATH": ""}},
		{[]string{"--env-allow", "*", "--env-deny", "?THER"}, map[string]string{"AWS_SECRET_ACCESS_KEY": "a", "OTHER": ""}},
	} {
		t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
			s := launch(t, options{flags: c.flags, env: []string{"AWS_SECRET_ACCESS_KEY=a", "OTHER=o"}})
			s.initialized()
			for name, want := range c.gets {
				s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"env","arguments":{"text":%q}}}`, name))
				s.gets(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":%q}]}}`, want))
			}
			_ = s.in.Close()
			s.exit()
		})
	}
}

func TestConfigurationOfAnOperatorDecidesInTheShim(t *testing.T) {
	file := filepath.Join(t.TempDir(), "Caddyfile")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const site = "{\n\tmcp_audit {\n\t\tlog default {\n\t\t\tdurability durable\n\t\t}\n\t}\n}\n\nhttp://127.0.0.1:1 {\n\tmcp_audit {\n\t\tpolicy {\n\t\t\trule NO deny {\n\t\t\t\ttool die\n\t\t\t}\n\t\t}\n\t\trate_limit 2/1m by tool_name\n\t\tredact {\n\t\t\tkeys +shoe_size\n\t\t}\n\t}\n}\n"
	write(site)
	s := launch(t, options{flags: []string{"--config", file}})
	s.initialized()
	s.send(call("1", "die"))
	if got := s.next(); !strings.Contains(got, "-32030") {
		t.Errorf("the denied call is answered %s", got)
	}
	for i, want := range []string{`"result"`, `"result"`, "-32029"} {
		s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"list","arguments":{"shoe_size":47}}}`, i+2))
		if got := s.next(); !strings.Contains(got, want) {
			t.Errorf("call %d is answered %s", i, got)
		}
	}
	_ = s.in.Close()
	s.exit()
	recs := records(t, s.dir)
	if text := fmt.Sprint(recs); strings.Contains(text, "shoe_size:47") || !strings.Contains(text, "shoe_size:[REDACTED]") {
		t.Error("the profile does not hold")
	}
	if out := outcome(t, recs, "tools/call", "2"); out["principal"].(map[string]any)["source"] != "shim" {
		t.Errorf("%v", out)
	}
	for text, want := range map[string]string{
		"http://127.0.0.1:1 {\n\trespond hi\n}\n":                                        "there is no mcp_audit directive",
		strings.Replace(site, "tool die", "toool die", 1):                                "Caddyfile:",
		"http://127.0.0.1:1 {\n\tmcp_audit\n}\n\nhttp://127.0.0.1:2 {\n\tmcp_audit\n}\n": "there are 2",
	} {
		write(text)
		s := launch(t, options{flags: []string{"--config", file}})
		s.send(initLine)
		if got := s.next(); !strings.Contains(got, want) {
			t.Errorf("the client is told %s, want %s", got, want)
		}
		_ = s.in.Close()
		if code := s.exit(); code != 3 {
			t.Errorf("exit code %d", code)
		}
	}
}

// A process that leaves the server's group, and is not its child any more, ends
// with the server all the same.
func TestDaemonOfAServerEndsWithIt(t *testing.T) {
	for name, end := range map[string]func(s *session){
		"the client leaves": func(s *session) { _ = s.in.Close() },
		"the server dies":   func(s *session) { s.send(call("1", "die")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := launch(t, options{}, "daemon")
			s.initialized()
			daemon := s.pid("daemon")
			end(s)
			s.exit()
			isGone(t, daemon, time.Second)
		})
	}
}
