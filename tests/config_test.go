package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

func TestCaddyfileMistakesFailAtLoadWithFileAndLine(t *testing.T) {
	cases := []struct {
		name string
		site harness.Site
		bad  string // the text whose line the message must name
		want string
	}{
		{"unknown option", harness.Site{Handler: "polcy {\n}"}, "polcy", "polcy"},
		{"option twice", harness.Site{Handler: "server_id a\nserver_id b"}, "server_id b", "server_id"},
		{"unknown log option", harness.Site{LogOptions: "durabilty durable"}, "durabilty", "durabilty"},
		{"unknown durability", harness.Site{LogOptions: "durability sometimes"}, "sometimes", "sometimes"},
		{"rule id twice", harness.Site{Handler: "policy {\nrule A deny {\ntool x\n}\nrule A allow {\ntool y\n}\n}"}, "rule A allow", "A"},
		{"unknown action", harness.Site{Handler: "policy {\nrule A forbid {\ntool x\n}\n}"}, "forbid", "forbid"},
		{"bad size", harness.Site{Handler: "max_body lots"}, "lots", "lots"},
		{"environment not set", harness.Site{LogOptions: "secret {env.MCP_AUDIT_TEST_UNSET}"}, "MCP_AUDIT_TEST_UNSET", "MCP_AUDIT_TEST_UNSET"},
		{"file not there", harness.Site{LogOptions: "key ed25519 {file./no/such/key.jwk}"}, "/no/such/key.jwk", "/no/such/key.jwk"},
		{"secret too short", harness.Site{LogOptions: "secret short"}, "secret short", "secret"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.site.Upstream = "127.0.0.1:9"
			caddy := harness.Prepare(t, c.site)
			text := caddy.Caddyfile(caddy.Admin)
			before, _, found := strings.Cut(text, c.bad)
			if !found {
				t.Fatalf("the Caddyfile does not contain %q", c.bad)
			}
			line := strings.Count(before, "\n") + 1
			for name, message := range map[string]string{
				"validate": func() string { out, _ := caddy.Validate(t); return out }(),
				"run":      caddy.StartFails(t),
			} {
				if !namesLine(message, line, c.bad) || !strings.Contains(message, c.want) {
					t.Errorf("caddy %s does not name %q and line %d:\n%s", name, c.want, line, message)
				}
			}
		})
	}
}

// namesLine reports whether a message names the line, or one of the two after
// it if it begins a rule, whose fault may show only at its end.
func namesLine(message string, line int, bad string) bool {
	last := line
	if strings.HasPrefix(bad, "rule ") {
		last += 2
	}
	for ; line <= last; line++ {
		if regexp.MustCompile(fmt.Sprintf(`\.caddyfile:%d\b`, line)).MatchString(message) {
			return true
		}
	}
	return false
}

// Its ports are fixed: 4422, 8080 and 9091 on 127.0.0.1 must be free.
func TestExampleCaddyfileRunsAsItIs(t *testing.T) {
	p := harness.Find(t)
	dir := harness.TempDir(t)
	notes := exec.Command(p.Notes, "-http", "127.0.0.1:8080")
	notes.Env = harness.Environment(dir)
	harness.StartServer(t, notes, "127.0.0.1:8080")
	caddy := exec.Command(p.Caddy, "run", "--config", filepath.Join(p.Root, "Caddyfile.example"), "--adapter", "caddyfile")
	caddy.Env = harness.Environment(dir)
	caddy.Dir = dir
	server := harness.StartServer(t, caddy, "127.0.0.1:4422")

	for _, client := range harness.Clients() {
		report := client.Run(t, dir, harness.Plan{
			Target: harness.Target{URL: "http://127.0.0.1:4422/mcp"},
			Steps:  []harness.Step{{List: true}, {Call: "echo", Arguments: map[string]any{"message": "hi"}}},
		})
		if len(report.Steps) != 2 || report.Steps[1].Text != "hi" {
			t.Errorf("%s: %+v", client.Name, report)
		}
	}
	stdout, stderr, code := harness.Run(t, exec.Command("node", "-e",
		`fetch("http://127.0.0.1:9091/metrics").then(async (r) => { console.log(r.status, await r.text()) })`))
	if code != 0 || !strings.HasPrefix(stdout, "200 ") || !strings.Contains(stdout, "go_goroutines") {
		t.Errorf("the metrics endpoint: %.300s%s", stdout, stderr)
	}
	server.Signal(t, os.Interrupt)
	server.Exit(t)
	access := server.Err.String()
	if !strings.Contains(access, "http.log.access") {
		t.Errorf("there is no access log:\n%.2000s", access)
	}
	for _, header := range []string{"Mcp-Session-Id", "Mcp-Name"} {
		if regexp.MustCompile(`"` + header + `":\["[^R]`).MatchString(access) {
			t.Errorf("the access log shows %s", header)
		}
	}
	log := filepath.Join(dir, "home", "data", "caddy", "mcp-audit", "audit.jsonl")
	harness.Operations(t, harness.ReadLog(t, log))
	harness.VerifyClean(t, log)
}
