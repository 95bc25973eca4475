//go:build cgo

package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func readLines(t *testing.T, path string) string {
	t.Helper()
	lines, err := openLines(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := lines.Close(); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEveryCommandTakesADatabase(t *testing.T) {
	home := clean(t)
	dir := filepath.Join(home, ".mcp-audit")
	path := filepath.Join(dir, databaseName)
	log := openLog(t, path)
	call(t, log, "read_file", auditlog.Success, "")
	call(t, log, "write_file", auditlog.Denied, "outside")
	closeLog(t, log)

	for _, args := range [][]string{{}, {path}, {dir}, {"--format", "sqlite", path}} {
		if r := verified(t, args...); r.Exit != 0 || len(r.Findings) > 0 || r.Watermarks.Beside == 0 {
			t.Errorf("verify %v: %+v", args, r)
		}
	}
	if r := verified(t, "--format", "jsonl", path); r.Exit != auditlog.ExitTampered {
		t.Errorf("read as lines: %+v", r)
	}
	t.Chdir(dir)
	if r := verified(t, databaseName); r.Exit != 0 || r.Records == 0 {
		t.Errorf("a relative path: %+v", r)
	}
	stdout, _, code := command(t, "tail")
	if code != 0 || strings.Count(stdout, "\n") != 2 || !strings.Contains(stdout, "✓ files/read_file") {
		t.Errorf("tail: %d %s", code, stdout)
	}
	stdout, _, _ = command(t, "tail", "--json", "-n", "100", "--all", path)
	for line := range strings.Lines(stdout) {
		if !strings.Contains(readLines(t, path), line) {
			t.Errorf("not a line of the log: %s", line)
		}
	}
	stdout, _, code = command(t, "show", "2", "--raw", path)
	if code != 0 || strings.Count(stdout, "\n") != 2 || !strings.Contains(readLines(t, path), stdout) {
		t.Errorf("show: %d %s", code, stdout)
	}
	vkey, stderr, code := command(t, "pubkey", path)
	if code != 0 || !strings.HasPrefix(vkey, "test/log/i0+") {
		t.Errorf("pubkey: %s %s", vkey, stderr)
	}
	note := filepath.Join(home, "held")
	if _, stderr, code := command(t, "checkpoint", path, "--output", note); code != 0 {
		t.Fatalf("checkpoint: %d %s", code, stderr)
	}
	if r := verified(t, path, "--anchor", note); r.Exit != 0 || r.Watermarks.Anchored == 0 {
		t.Errorf("%+v", r)
	}
	// The export is the same log.
	exported := filepath.Join(home, "exported.jsonl")
	if err := os.WriteFile(exported, []byte(readLines(t, path)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := verified(t, exported, "--anchor", note, "--keys", filepath.Join(dir, keysName)); r.Exit != 0 || len(r.Findings) > 0 {
		t.Errorf("the export: %+v", r)
	}

	if err := os.Remove(path + ".state"); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := command(t, "checkpoint", path); code != auditlog.ExitIncomplete || !strings.Contains(stderr, "state_missing") {
		t.Errorf("checkpoint without a state: %d %s", code, stderr)
	}
	if _, stderr, code := command(t, "recover", path, "--accept-chain-break", "a test"); code != 0 {
		t.Fatalf("recover: %d %s", code, stderr)
	}
	if r := verified(t, dir); r.Exit != 0 || r.Origin != "test/log/i1" || r.Kinds["chain_break"] != 1 || r.Kinds["genesis"] != 1 {
		t.Errorf("after recover: %+v", r)
	}
}

func TestADatabaseThatIsNoneIsFoundDamaged(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), databaseName)
	for name, data := range map[string][]byte{
		"rubbish": bytes.Repeat([]byte("rubbish "), 4096), "empty": nil, "header alone": []byte("SQLite format 3\x00"),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verified(t, path); r.Exit != auditlog.ExitTampered {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestTailFollowsADatabase(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), databaseName)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, in := io.Pipe()
	cmd := New()
	cmd.SetArgs([]string{"tail", "-f", path})
	cmd.SetOut(in)
	cmd.SetErr(io.Discard)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	log := openLog(t, path)
	for i, tool := range []string{"first", "second", "third"} {
		call(t, log, tool, auditlog.Success, "")
		if i == 1 {
			// Also while nobody writes.
			closeLog(t, log)
			log = openLog(t, path)
		}
		text := make([]byte, 4096)
		n, err := out.Read(text)
		if err != nil || !strings.Contains(string(text[:n]), "files/"+tool) {
			t.Fatalf("%v %s", err, text[:n])
		}
		for !strings.HasSuffix(string(text[:n]), "\n") {
			if n, err = out.Read(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeLog(t, log)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
