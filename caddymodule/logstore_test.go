//go:build cgo

package caddymodule_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

// inDatabase is the rig's configuration with its log in a database.
func (r *rig) inDatabase(options string) (caddyfile, path string) {
	path = filepath.Join(r.dir, "log", "audit.db")
	return strings.Replace(r.caddyfile("", ""), "output jsonl "+r.log(), "output sqlite "+path+" "+options, 1), path
}

func TestCallsAreRecordedInADatabase(t *testing.T) {
	up := newUpstream(t, ok)
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: up}
	t.Setenv("XDG_DATA_HOME", r.dir)
	t.Setenv("XDG_CONFIG_HOME", r.dir)
	t.Cleanup(func() { _ = caddy.Stop() })
	config, path := r.inDatabase("")
	for range 2 {
		if err := r.load(config); err != nil {
			t.Fatal(err)
		}
		if status, answer := r.post(echoCall); status != 200 {
			t.Fatal(status, answer)
		}
	}
	if changed, _ := r.inDatabase("{\nsynchronous normal\n}"); r.load(changed) == nil {
		t.Error("another synchronous was taken over while the log is open")
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		if runs, _ := os.ReadDir(path + ".runs"); len(runs) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log was not closed")
		}
	}
	reader, err := sqlite.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	keys, err := auditlog.LoadKeyring(filepath.Join(filepath.Dir(path), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	report, err := auditlog.Verify(context.Background(), []auditlog.Source{reader.Source()}, auditlog.VerifyOptions{Keys: keys, Strict: true})
	if err != nil || report.Exit != 0 || len(report.Findings) > 0 || report.Kinds["intent"] != 2 || report.Kinds["outcome"] != 2 {
		t.Errorf("%v %+v", err, report)
	}
}

func TestMistakesInADatabasesOptionsFailAtLoadWithTheirPlace(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	for options, want := range map[string]string{
		"{\nsynchronous lax\n}": `unknown value "lax"`, "{\nrotate_size 1MiB\n}": `unrecognized subdirective "rotate_size"`, "x": "exactly two", "\nkey_mode evolving": "keys evolve only",
	} {
		config, _ := r.inDatabase(options)
		if err := r.load(config); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v", options, err)
		}
	}
}
