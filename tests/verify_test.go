package tests

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// sealedLog makes a log of four calls and returns its path; keys and checkpoint
// lie beside it.
func sealedLog(t *testing.T) string {
	t.Helper()
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	for i := range 4 {
		caddy.Post(t, call(fmt.Sprint(i), "echo", fmt.Sprintf(`{"m":"call %d"}`, i)))
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
	return caddy.Log
}

// altered writes a changed copy of a log into a folder of its own and verifies
// it with the original's keys.
func altered(t *testing.T, log string, lines [][]byte, args ...string) harness.Report {
	t.Helper()
	copied := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, copied, bytes.Join(lines, nil))
	keys := filepath.Join(filepath.Dir(log), "keys.json")
	return harness.Verify(t, append([]string{copied, "--keys", keys}, args...)...)
}

func linesOf(t *testing.T, log string) [][]byte {
	t.Helper()
	lines := bytes.SplitAfter(read(t, log), []byte("\n"))
	return lines[:len(lines)-1]
}

// A flipped byte of a log of 12 records is found. Every byte is tried with
// MCP_AUDIT_LONG=1, else every 13th; the package tests always try every one.
func TestFlippedByteIsFound(t *testing.T) {
	log := sealedLog(t)
	data := read(t, log)
	if records := bytes.Count(data, []byte("\n")); records < 12 {
		t.Fatalf("the log has %d records, want 12", records)
	}
	step := 13
	if long() {
		step = 1
	}
	offsets := make(chan int)
	var wg sync.WaitGroup
	for worker := range 4 {
		copied := filepath.Join(t.TempDir(), fmt.Sprintf("audit%d.jsonl", worker))
		wg.Go(func() {
			for at := range offsets {
				changed := bytes.Clone(data)
				changed[at] ^= 1
				if err := os.WriteFile(copied, changed, 0o600); err != nil {
					t.Error(err)
					continue
				}
				report := harness.Verify(t, copied, "--keys", filepath.Join(filepath.Dir(log), "keys.json"))
				line := bytes.Count(data[:at], []byte("\n")) + 1
				if report.Exit == 0 || len(report.Findings) == 0 {
					t.Errorf("byte %d, in line %d: not found", at, line)
				} else if first := report.Findings[0].Line; first < line-1 || first > line+1 {
					t.Errorf("byte %d, in line %d: found in line %d, as %s", at, line, first, report.Findings[0].Finding)
				}
			}
		})
	}
	for at := 0; at < len(data)-1; at += step {
		offsets <- at
	}
	close(offsets)
	wg.Wait()
}

func TestTamperingIsFoundAndNamed(t *testing.T) {
	log := sealedLog(t)
	other := linesOf(t, sealedLog(t))
	const at = 5
	cases := []struct {
		name   string
		change func(lines [][]byte) [][]byte
		kinds  []string
		line   int
	}{
		{"a record deleted", func(l [][]byte) [][]byte { return slices.Delete(l, at, at+1) }, []string{"seq_gap"}, at + 1},
		{"two records swapped", func(l [][]byte) [][]byte { l[at], l[at+1] = l[at+1], l[at]; return l }, []string{"seq_gap", "seq_regression"}, at + 1},
		{"a record repeated", func(l [][]byte) [][]byte { return slices.Insert(l, at, l[at]) }, []string{"duplicate_record"}, at + 2},
		{"a record of another log", func(l [][]byte) [][]byte { l[at] = other[at]; return l }, []string{"chain_broken"}, at + 1},
		{"a record of another log inserted", func(l [][]byte) [][]byte { return slices.Insert(l, at, other[at]) }, []string{"chain_broken", "fork"}, at + 1},
		{"an argument changed", func(l [][]byte) [][]byte { return replaced(l, "call 1", "call 9") }, []string{"content_modified"}, 0},
		{"an outcome changed", func(l [][]byte) [][]byte { return replaced(l, `"outcome":"success"`, `"outcome":"denied"`) }, []string{"content_modified"}, 0},
		{"the caller changed", func(l [][]byte) [][]byte { return replaced(l, "anonymous", "anonymouz") }, []string{"content_modified"}, 0},
		{"blank line", func(l [][]byte) [][]byte { return slices.Insert(l, at, []byte("\n")) }, []string{"malformed_line"}, at + 1},
		{"emptied", func([][]byte) [][]byte { return nil }, []string{"empty_log"}, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			report := altered(t, log, c.change(linesOf(t, log)))
			if report.Exit != 1 || !report.Has(c.kinds...) {
				t.Fatalf("want exit 1 and one of %q: %s", c.kinds, report)
			}
			for _, f := range report.Findings {
				if slices.Contains(c.kinds, f.Finding) && (c.line == 0 || f.Line == c.line) {
					return
				}
			}
			t.Errorf("want it in line %d: %s", c.line, report)
		})
	}
}

func replaced(lines [][]byte, old, with string) [][]byte {
	for i, line := range lines {
		if bytes.Contains(line, []byte(old)) {
			lines[i] = bytes.Replace(line, []byte(old), []byte(with), 1)
			return lines
		}
	}
	panic("no line contains " + old)
}

func TestCutTailIsFoundWithACheckpointAndDeclaredOpenWithoutOne(t *testing.T) {
	log := sealedLog(t)
	lines := linesOf(t, log)
	checkpoint := log + ".checkpoint"

	whole := harness.VerifyLog(t, log, "--anchor", checkpoint)
	if whole.Exit != 0 {
		t.Errorf("the whole log with its checkpoint: %s", whole)
	}
	cut := lines[:len(lines)-3]
	if report := altered(t, log, cut, "--anchor", checkpoint); report.Exit != 4 || !report.Has("tail_truncated") {
		t.Errorf("the cut log with the checkpoint: %s", report)
	}
	copied := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, copied, bytes.Join(cut, nil))
	stdout, _, code := harness.Run(t, harness.CLI(t, t.TempDir(), "verify", copied, "--keys", filepath.Join(filepath.Dir(log), "keys.json")))
	if code != 0 || !strings.Contains(stdout, "not covered by any external anchor") {
		t.Errorf("the cut log without a checkpoint: exit %d\n%s", code, stdout)
	}

	torn := bytes.Join(lines, nil)
	if report := altered(t, log, [][]byte{torn[:len(torn)-40]}); !report.Has("torn_tail") || report.Exit == 0 {
		t.Errorf("a log that ends within a line: %s", report)
	}
}

// A third party holds the log and the public key, and nothing else.
func TestThirdPartyVerifiesWithThePublicKeyAlone(t *testing.T) {
	log := sealedLog(t)
	vkey, stderr, code := harness.Run(t, harness.CLI(t, filepath.Dir(log), "pubkey", "--keys", filepath.Join(filepath.Dir(log), "keys.json"), log))
	if code != 0 {
		t.Fatalf("mcp-audit pubkey: %s", stderr)
	}
	vkey = strings.TrimSpace(vkey)

	elsewhere := t.TempDir()
	copied := filepath.Join(elsewhere, "received.jsonl")
	write(t, copied, read(t, log))
	report := harness.Verify(t, copied, "--pub", vkey)
	if report.Exit != 0 || report.MAC == "checked" || len(report.Findings) > 0 {
		t.Errorf("the log as received: mac %q, %s", report.MAC, report)
	}
	if files, _ := os.ReadDir(elsewhere); len(files) != 1 {
		t.Errorf("verify left files behind: %v", files)
	}

	lines := linesOf(t, log)
	write(t, copied, bytes.Join(replaced(lines, "call 2", "call 7"), nil))
	if report := harness.Verify(t, copied, "--pub", vkey); report.Exit != 1 || !report.Has("content_modified") {
		t.Errorf("a changed log: %s", report)
	}
	foreign, _, _ := harness.Run(t, harness.CLI(t, t.TempDir(), "pubkey", "--keys", filepath.Join(filepath.Dir(sealedLog(t)), "keys.json"), log))
	write(t, copied, read(t, log))
	if report := harness.Verify(t, copied, "--pub", strings.TrimSpace(foreign)); report.Exit == 0 {
		t.Errorf("another log's public key: %s", report)
	}
}
