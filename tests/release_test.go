package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// A release is made for this machine's kind alone, once: each other target
// compiles all of Caddy anew.
func TestAReleaseArchiveHasProgramsThatRun(t *testing.T) {
	if testing.Short() {
		t.Skip("links Caddy anew")
	}
	p := harness.Find(t)
	dir := harness.TempDir(t)
	run := func(folder, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	const stamp = "github.com/caddy-mcp-audit/mcp-audit/verify/release."
	run(p.Root, "go", "run", "./caddymodule/cmd/release", "-version", "v1.2.3", "-time", "2026-12-01T10:00:00Z",
		"-output", dir, "-targets", "linux/amd64", "-tags", "nobadger,nomysql,nopgx",
		"-ldflags", "-s -w -X "+stamp+"version=v1.2.3")
	if out := run(dir, "sha256sum", "--check", "--strict", "SHA256SUMS"); out != "mcp-audit_v1.2.3_linux_amd64.tar.gz: OK\n" {
		t.Errorf("sha256sum --check prints %q", out)
	}
	run(dir, "tar", "-xzf", "mcp-audit_v1.2.3_linux_amd64.tar.gz")
	unpacked := filepath.Join(dir, "mcp-audit_v1.2.3_linux_amd64")
	var names []string
	files, err := os.ReadDir(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	if got, want := strings.Join(names, " "), "BUILD Caddyfile.example LICENSE README.md caddy-mcp-audit mcp-audit mcp-audit-shim mcp-audit.service"; got != want {
		t.Errorf("the archive has %s, want %s", got, want)
	}
	for _, program := range []string{"mcp-audit", "mcp-audit-shim"} {
		if out := run(unpacked, "./"+program, "--version"); !strings.HasPrefix(out, program+" v1.2.3") {
			t.Errorf("%s --version prints %q", program, out)
		}
	}
	if out := run(unpacked, "./caddy-mcp-audit", "list-modules"); !strings.Contains(out, "http.handlers.mcp_audit\n") {
		t.Error("its Caddy lacks http.handlers.mcp_audit")
	}
}

// What the unit names has to be what `make install` and docs/install.md have.
func TestTheServiceUnitRunsTheInstalledCaddy(t *testing.T) {
	root := harness.Find(t).Root
	path := filepath.Join(root, "examples", "deploy", "mcp-audit.service")
	unit := string(read(t, path))
	guide := string(read(t, filepath.Join(root, "docs", "install.md")))
	for _, m := range regexp.MustCompile(`(?m)^Exec\w+=(\S+) \w+ --config (\S+)`).FindAllStringSubmatch(unit, -1) {
		if m[1] != "/usr/local/bin/caddy-mcp-audit" || !strings.Contains(guide, m[2]) {
			t.Errorf("%s: docs/install.md has another program or configuration", m[0])
		}
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("there is no systemd-analyze")
	}
	// The program is not installed here, and systemd looks for it.
	own := filepath.Join(harness.TempDir(t), "mcp-audit.service")
	write(t, own, []byte(strings.ReplaceAll(unit, "/usr/local/bin/caddy-mcp-audit", harness.Find(t).Caddy)))
	if out, err := exec.Command("systemd-analyze", "verify", own).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
