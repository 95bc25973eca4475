package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// blocks returns the fenced blocks of the README in a language.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	text := string(read(t, filepath.Join(harness.Find(t).Root, "README.md")))
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("the README has no block in %s", language)
	}
	return found
}

func TestConfigurationsOfTheReadmeAreValid(t *testing.T) {
	dir := harness.TempDir(t)
	for i, text := range blocks(t, "json") {
		if !json.Valid([]byte(text)) {
			t.Errorf("JSON block %d is not valid:\n%s", i+1, text)
		}
	}
	for i, text := range blocks(t, "caddyfile") {
		file := filepath.Join(dir, "Caddyfile")
		write(t, file, []byte(text))
		cmd := exec.Command(harness.Find(t).Caddy, "validate", "--config", file)
		cmd.Env = harness.Environment(dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("Caddyfile %d does not load: %v\n%s", i+1, err, out)
		} else if strings.Contains(string(out), "not formatted") {
			t.Errorf("Caddyfile %d is not formatted as caddy fmt does", i+1)
		}
	}
}

// The commands of the README are run in their order, as a reader would type
// them, after a desktop client has used the shim. Those of make are only looked
// up: this test is part of one of them.
func TestCommandsOfTheReadmeRun(t *testing.T) {
	p := harness.Find(t)
	dir := harness.TempDir(t)
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	plan := func(target harness.Target) string {
		text, err := json.Marshal(map[string]any{
			"target": target,
			"steps":  []harness.Step{{List: true}, {Call: "echo", Arguments: map[string]any{"message": "hi"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("node %s/client-v1.mjs '%s'", p.NPM, text)
	}
	script := []string{
		"set -euo pipefail",
		`trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT`,
		"await() { for _ in $(seq 300); do (: </dev/tcp/127.0.0.1/$1) 2>/dev/null && return; sleep 0.1; done; echo nothing listens on $1; exit 1; }",
		plan(harness.Target{Command: "mcp-audit-shim", Args: []string{"--", p.Notes}}),
	}
	for _, block := range blocks(t, "sh") {
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			switch {
			case strings.HasPrefix(line, "make "):
				line = "make -n " + strings.TrimPrefix(line, "make ") + " >/dev/null"
			case strings.HasPrefix(line, "bin/"):
				line = filepath.Dir(p.Caddy) + strings.TrimPrefix(line, "bin")
			}
			script = append(script, fmt.Sprintf("echo %q", "$ "+line), line)
			switch {
			case strings.Contains(line, "/notes-server "):
				script = append(script, "await 8080")
			case strings.Contains(line, "/caddy run "):
				script = append(script, "await 4422", plan(harness.Target{URL: "http://127.0.0.1:4422/mcp"}))
			}
		}
	}
	cmd := exec.Command("bash", "-c", strings.Join(script, "\n"))
	cmd.Dir = p.Root
	cmd.Env = append(goEnvironment(t), "PATH="+filepath.Dir(p.CLI)+":"+os.Getenv("PATH"), "HOME="+home)
	stdout, stderr, code := harness.Run(t, cmd)
	if code != 0 {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	for _, part := range []string{"notes/echo", "findings: none", "not covered by any external anchor", `"tool_name"`, "anchored: "} {
		if !strings.Contains(stdout, part) {
			t.Errorf("the commands do not print %q:\n%s", part, stdout)
		}
	}
	checkModes(t, filepath.Join(home, ".mcp-audit"))
}

// goEnvironment is what make needs to find Go's caches from another home.
func goEnvironment(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Fields(string(out))
	return []string{"GOMODCACHE=" + values[0], "GOCACHE=" + values[1]}
}
