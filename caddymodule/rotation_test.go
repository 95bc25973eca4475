package caddymodule_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func TestMistakesInRotationNameTheirPlace(t *testing.T) {
	for options, want := range map[string]string{
		"rotate_sze 1MiB":                       `unrecognized subdirective "rotate_sze"`,
		"rotate_size 1MiB\nrotate_size 2MiB":    "rotate_size is given twice, first at Caddyfile:5",
		"rotate_size":                           "rotate_size takes exactly one argument",
		"rotate_size 1KiB":                      "4KiB or more",
		"rotate_size many":                      `"many" is not a size`,
		"rotate_every week":                     `unknown value "week"`,
		"rotate_size 1MiB\nkeep_files 0":        `"0" is not a number of 1 or more`,
		"rotate_size 1MiB\nkeep_for never":      `"never" is not a time`,
		"rotate_size 1MiB\ncompress zip":        `unknown format "zip"`,
		"rotate_size 1MiB\ncompress gzip fast":  "wrong argument count",
		"rotate_every hour {\n}":                `rotate_every`,
		"rotate_every hour\nkeep_files 3 files": "keep_files takes exactly one argument",
	} {
		text := "{\n\tmcp_audit {\n\t\tlog {\n\t\t\toutput jsonl /srv/audit.jsonl {\n" + options + "\n}\n\t\t}\n\t}\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%q: %v, want %q with its place", options, err, want)
		}
	}
}

func TestRetentionWithoutRotationFailsAtLoad(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	for _, option := range []string{"keep_files 3", "keep_for 1h", "compress"} {
		text := strings.Replace(r.caddyfile("", ""), r.log(), r.log()+" {\n"+option+"\n}", 1)
		name, _, _ := strings.Cut(option, " ")
		if err := r.load(text); err == nil || !strings.Contains(err.Error(), name+": it concerns closed files") || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v", option, err)
		}
	}
}

func TestAReloadBeginsToRotate(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.post(echoCall)
	r.await(2)
	text := strings.Replace(r.caddyfile("", ""), r.log(), r.log()+" {\nrotate_size 4KiB\nkeep_files 2\n}", 1)
	if err := r.load(text); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if status, answer := r.post(echoCall); status != 200 || strings.Contains(answer, `"error"`) {
			t.Fatalf("a call of a log that is rotated: %d %s", status, answer)
		}
	}
	// The surplus goes in the background, once its leaves are kept.
	eventually(t, "two closed files", func() bool {
		closed, err := filepath.Glob(r.log() + ".0*Z")
		return err == nil && len(closed) == 2
	})
}

func TestAReloadWithANewKeyRotatesIt(t *testing.T) {
	up := newUpstream(t, ok)
	newKey := func() string {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "key.pem")
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return "key ed25519 {file." + file + "}\nsecret {env.MCP_AUDIT_TEST_SECRET}\n"
	}
	t.Setenv("MCP_AUDIT_TEST_SECRET", "an unpublished secret of the tests, 43")
	first, second := newKey(), newKey()
	r := start(t, up, "", first)
	r.post(echoCall)
	r.await(2)
	if err := r.load(r.caddyfile("", first+"key_id k7")); err == nil || !strings.Contains(err.Error(), "give a new key, too") {
		t.Errorf("a new key_id without a key: %v", err)
	}
	if err := r.load(r.caddyfile("", second)); err != nil {
		t.Fatal(err)
	}
	if status, answer := r.post(echoCall); status != 200 || strings.Contains(answer, `"error"`) {
		t.Fatalf("a call after the rotation: %d %s", status, answer)
	}
	data, err := os.ReadFile(r.log())
	if err != nil || !strings.Contains(string(data), `"kind":"key_rotation"`) || !strings.Contains(string(data), `"key_id":"k2"`) {
		t.Errorf("the log: %v\n%s", err, data)
	}
	if err := r.load(r.caddyfile("", "")); err == nil {
		t.Error("a reload without a key was accepted")
	}
}

func TestEvolvingKeysNeedAKeyFileAndNoSecret(t *testing.T) {
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "")
	t.Setenv("AUDIT_SECRET", "")
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	elsewhere := filepath.Join(t.TempDir(), "audit.jsonl")
	text := strings.Replace(r.caddyfile("", "key_mode evolving"), r.log(), elsewhere, 1)
	if err := r.load(text); err == nil || !strings.Contains(err.Error(), "mcp-audit keygen") {
		t.Errorf("without a key file: %v", err)
	}
	keys, err := auditlog.GenerateKeyring("k1", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Save(filepath.Join(filepath.Dir(elsewhere), "keys.json")); err != nil {
		t.Fatal(err)
	}
	if err := r.load(text); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if status, answer := r.post(echoCall); status != 200 || strings.Contains(answer, `"error"`) {
			t.Fatalf("a call: %d %s", status, answer)
		}
	}
	if err := r.load(strings.Replace(text, "server_id test", "server_id other", 1)); err != nil {
		t.Errorf("a reload of the same log: %v", err)
	}
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "an unpublished secret of the tests, 44")
	if err := r.load(text); err == nil || !strings.Contains(err.Error(), "MCP_AUDIT_SIGNING_SECRET") || !strings.Contains(err.Error(), "Caddyfile:") {
		t.Errorf("with a secret: %v", err)
	}
}
