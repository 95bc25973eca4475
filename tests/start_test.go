package tests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// A log that was changed behind the product's back stops the start, and the
// remedy that the message names works.
func TestStartIsRefusedOnALogThatWasChanged(t *testing.T) {
	u := upstream.Start(t)
	cases := []struct {
		name   string
		change func(t *testing.T, log string)
	}{
		{"shortened", func(t *testing.T, log string) { cutLines(t, log, 3) }},
		{"emptied", func(t *testing.T, log string) { write(t, log, nil) }},
		{"removed", func(t *testing.T, log string) { remove(t, log) }},
		{"replaced", func(t *testing.T, log string) {
			other := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			for range 20 {
				other.Post(t, call("1", "echo", `{"m":"another log"}`))
			}
			other.Stop(t)
			write(t, log, read(t, other.Log))
		}},
		{"state removed", func(t *testing.T, log string) { remove(t, log+".state") }},
		{"edited in the tail", func(t *testing.T, log string) {
			write(t, log, bytes.Replace(read(t, log), []byte(`"m":"2"`), []byte(`"m":"3"`), 1))
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			for range 4 {
				caddy.Post(t, call("1", "echo", `{"m":"1"}`))
			}
			if c.name == "edited in the tail" {
				// Only what the state does not cover yet is read at the start.
				caddy.Post(t, call("1", "echo", `{"m":"2"}`))
				caddy.Operation(t, "the call", with(`"m":"2"`))
				caddy.Kill()
			} else {
				caddy.Stop(t)
			}
			c.change(t, caddy.Log)
			message := caddy.StartFails(t)
			for _, part := range []string{"audit.jsonl", "mcp-audit recover", "--accept-chain-break"} {
				if !strings.Contains(message, part) {
					t.Errorf("the message does not name %q:\n%s", part, message)
				}
			}

			_, stderr, code := harness.Run(t, harness.CLI(t, caddy.Dir, "recover", caddy.Log, "--accept-chain-break", "a test did it"))
			if code != 0 {
				t.Fatalf("mcp-audit recover exited %d: %s", code, stderr)
			}
			caddy.Start(t)
			caddy.Post(t, call("1", "echo", `{"m":"after recovery"}`))
			caddy.Stop(t)
			report := harness.VerifyLog(t, caddy.Log)
			if report.Exit != 0 || !report.Has("chain_break") {
				t.Errorf("verify after the recovery: %s", report)
			}
			records := caddy.Records(t)
			if records[0].Kind != "chain_break" || !strings.Contains(records[0].Line, "a test did it") {
				t.Errorf("the new incarnation begins with %s", records[0].Line)
			}
		})
	}
}

func TestTornTailIsSetAsideAndTheLogGoesOn(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	caddy.Post(t, call("1", "echo", `{"m":"1"}`))
	caddy.Operation(t, "the call", with(`"m":"1"`))
	caddy.Kill()
	const torn = `{"audit_operation_id":"torn in the mid`
	data := read(t, caddy.Log)
	write(t, caddy.Log, append(data, torn...))
	if report := harness.VerifyLog(t, caddy.Log); !report.Has("torn_tail") {
		t.Errorf("verify before the start: %s", report)
	}
	caddy.Start(t)
	caddy.Post(t, call("1", "echo", `{"m":"2"}`))
	caddy.Stop(t)
	records := caddy.Records(t)
	harness.CheckChain(t, records)
	if len(harness.Select(records, func(r harness.Record) bool { return r.Kind == "recovered" })) != 1 {
		t.Error("no record says that a torn tail was set aside")
	}
	aside, err := filepath.Glob(caddy.Log + ".torn-*")
	if err != nil || len(aside) != 1 || string(read(t, aside[0])) != torn {
		t.Errorf("the torn bytes are not kept: %v, %v", aside, err)
	}
	harness.VerifyClean(t, caddy.Log)
}

func TestFirstUseNeedsNoConfiguration(t *testing.T) {
	u := upstream.Start(t)
	dir := harness.TempDir(t)
	listen := harness.FreeAddress(t)
	site := harness.Site{Dir: dir, Listen: listen, Upstream: u.Address, Log: filepath.Join(dir, "home", "data", "caddy", "mcp-audit", "audit.jsonl"), Bare: true}
	caddy := harness.StartCaddy(t, site)
	caddy.Post(t, call("1", "echo", `{"m":"first"}`))
	caddy.Stop(t)
	harness.Operations(t, caddy.Records(t))
	harness.VerifyClean(t, caddy.Log)
	checkModes(t, filepath.Dir(caddy.Log))
}

// checkModes checks that a folder and its files are for their owner alone.
func checkModes(t *testing.T, folder string) {
	t.Helper()
	info, err := os.Stat(folder)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o700 {
		t.Errorf("the folder %s has mode %v, want 0700", folder, info.Mode())
	}
	err = filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v; others may use it", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// cutLines removes the last n lines of a file.
func cutLines(t *testing.T, path string, n int) {
	t.Helper()
	lines := bytes.SplitAfter(read(t, path), []byte("\n"))
	write(t, path, bytes.Join(lines[:len(lines)-1-n], nil))
}
