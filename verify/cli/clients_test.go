package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestClientsAreListedWrappedAndUnwrapped(t *testing.T) {
	home := clean(t)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Chdir(home)
	shim := filepath.Join(home, "mcp-audit-shim")
	cursor, claude := filepath.Join(home, ".cursor", "mcp.json"), filepath.Join(home, ".claude.json")
	const text = "{\n  // mine\n  \"mcpServers\": {\n    \"notes\": {\"command\": \"npx\", \"args\": [\"notes\"]},\n    \"far\": {\"url\": \"https://u:hush@x.example/mcp?key=hush\"}\n  }\n}\n"
	for path, content := range map[string]string{cursor: text, claude: `{"mcpServers":{"notes":{"command":"node"}}}`} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list := func() string {
		t.Helper()
		stdout, stderr, code := command(t, "clients")
		if code != 0 || strings.Contains(stdout, "hush") {
			t.Fatalf("exit %d: %s%s", code, stdout, stderr)
		}
		return stdout
	}
	if got := list(); strings.Count(got, "not audited") != 2 || !strings.Contains(got, "remote") || !strings.Contains(got, "Claude Code") {
		t.Errorf("%s", got)
	}
	if _, stderr, code := command(t, "clients", "wrap", "notes", "--shim", shim); code != 2 || !strings.Contains(stderr, "--client") {
		t.Errorf("an ambiguous name: exit %d: %s", code, stderr)
	}
	stdout, stderr, code := command(t, "clients", "wrap", "notes", "--client", "cursor", "--shim", shim, "--dry-run")
	if code != 0 || !strings.Contains(stdout, "-    \"notes\"") || !strings.Contains(stdout, "+    \"notes\"") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if now, _ := os.ReadFile(cursor); string(now) != text {
		t.Error("a dry run changed the file")
	}
	stdout, stderr, code = command(t, "clients", "wrap", "notes", "--client", "cursor", "--shim", shim, "--caddy", "http://127.0.0.1:4422/notes")
	if code != 0 || !strings.Contains(stdout, "is audited once") {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	now, _ := os.ReadFile(cursor)
	if !strings.Contains(string(now), "// mine") || !strings.Contains(string(now), `"--caddy","http://127.0.0.1:4422/notes","--","npx","notes"`) {
		t.Errorf("%s", now)
	}
	if got := list(); strings.Count(got, "not audited") != 1 {
		t.Errorf("%s", got)
	}
	if _, stderr, code := command(t, "clients", "unwrap", "notes", "--file", cursor); code != 0 {
		t.Errorf("exit %d: %s", code, stderr)
	}
	for args, want := range map[string]string{
		"wrap none": "no client", "wrap far": "remote server", "unwrap notes --client claude-code": "not audited", "wrap notes --client emacs": "there is no client",
	} {
		if _, stderr, code := command(t, append([]string{"clients"}, strings.Fields(args)...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d: %s", args, code, stderr)
		}
	}
}
