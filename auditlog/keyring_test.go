package auditlog_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func TestAKeyringIsMadeOnceAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "keys.json")
	const processes = 16
	rings := make([]*auditlog.Keyring, processes)
	var wg sync.WaitGroup
	for i := range rings {
		wg.Go(func() {
			k, err := auditlog.LoadOrCreateKeyring(path, "k1", "audit.example/x")
			if err != nil {
				t.Error(err)
				return
			}
			rings[i] = k
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	first, _ := rings[0].MACKey("k1")
	for _, k := range rings {
		mac, ok := k.MACKey("k1")
		private, signs := k.SigningKey("k1")
		other, _ := rings[0].SigningKey("k1")
		if !ok || !signs || !bytes.Equal(mac, first) || len(mac) != 32 || !private.Equal(other) {
			t.Fatal("two keyrings of one file differ")
		}
	}
	loaded, err := auditlog.LoadKeyring(path)
	if err != nil || loaded.Name() != "audit.example/x" || len(loaded.PublicKeys()) != 1 {
		t.Fatalf("loaded: %v", err)
	}
	if info, _ := os.Stat(path); info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if info, _ := os.Stat(filepath.Dir(path)); info.Mode().Perm() != 0o700 {
		t.Errorf("folder mode %v", info.Mode())
	}
	var set struct {
		Keys []map[string]string `json:"keys"`
	}
	if err := json.Unmarshal(read(t, path), &set); err != nil || len(set.Keys) != 2 {
		t.Fatalf("the file is no JWK set: %v", err)
	}
	if k := set.Keys[0]; k["kty"] != "oct" || k["alg"] != "HS256" || k["use"] != "audit-mac" || k["kid"] != "k1" {
		t.Errorf("MAC key %v", k)
	}
	if k := set.Keys[1]; k["kty"] != "OKP" || k["crv"] != "Ed25519" || k["kid"] != "k1" {
		t.Errorf("signing key %v", k)
	}
}

func TestAKeyringThatIsNotSafeIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	if _, err := auditlog.LoadOrCreateKeyring(path, "k1", ""); err != nil {
		t.Fatal(err)
	}
	good := string(read(t, path))
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o644: false, 0o660: false, 0o604: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := auditlog.LoadKeyring(path)
		if (err == nil) != ok {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if err != nil && !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %04o: no remedy in %v", mode, err)
		}
	}
	for name, text := range map[string]string{
		"empty":            "",
		"no JSON":          "oops",
		"wrong algorithm":  strings.Replace(good, "HS256", "HS512", 1),
		"no algorithm":     strings.Replace(good, `"alg": "HS256",`, "", 1),
		"wrong use":        strings.Replace(good, "audit-mac", "sig", 1),
		"bad kid":          strings.ReplaceAll(good, `"k1"`, `"K 1"`),
		"unknown type":     `{"keys":[{"kty":"RSA","kid":"k1","n":"AQAB","e":"AQAB"}]}`,
		"short MAC key":    `{"keys":[{"kty":"oct","kid":"k1","alg":"HS256","use":"audit-mac","k":"c2hvcnQ"}]}`,
		"repeated MAC key": `{"keys":[{"kty":"oct","kid":"k1","alg":"HS256","use":"audit-mac","k":"MDEyMzQ1Njc4OTAxMjM0NQ"},{"kty":"oct","kid":"k1","alg":"HS256","use":"audit-mac","k":"MDEyMzQ1Njc4OTAxMjM0Ng"}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = os.Chmod(path, 0o600)
		if _, err := auditlog.LoadKeyring(path); err == nil {
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error does not name the file: %v", name, err)
		}
	}
}

func TestSavingReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.json")
	k, err := auditlog.GenerateKeyring("k1", "")
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := k.Save(path); err == nil {
		t.Error("a key file was replaced")
	}
}

func TestALogWithAGeneratedKeyring(t *testing.T) {
	path := quickPath(t)
	keys, err := auditlog.LoadOrCreateKeyring(filepath.Join(filepath.Dir(path), "keys.json"), "k1", "")
	if err != nil {
		t.Fatal(err)
	}
	s := setup{change: func(c *auditlog.Config) { c.Secret, c.Keys = nil, keys }}
	for range 2 {
		l := s.open(t, path)
		call(t, l)
		closeLog(t, l)
	}
	check(t, path)
}

func TestSecretsThatMustNotBeUsed(t *testing.T) {
	for _, bad := range []string{"", "   \n", "short", "123456789012345", "aaaaaaaaaaaaaaaaaaaaaaaa", "example secret, never use it 0001",
		"change-me-please-now-1", "CHANGE-ME-PLEASE-NOW-1", "replace-with-a-long-random-secret", "your-secret-goes-here"} {
		err := auditlog.CheckSecret([]byte(bad))
		if err == nil {
			t.Errorf("%q was accepted", bad)
		} else if bad != "" && len(strings.TrimSpace(bad)) > 8 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error quotes the secret: %v", err)
		}
		if _, err := auditlog.Open(t.Context(), setup{change: func(c *auditlog.Config) { c.Secret = []byte(bad) }}.config(t, quickPath(t))); err == nil {
			t.Errorf("a log was opened with %q", bad)
		}
	}
	for _, good := range []string{testSecret, "0f8e2c9ab4d1735566e0c1d2a3b4f5e6", "k9#Lm2$pQz7!wX4v"} {
		if err := auditlog.CheckSecret([]byte(good)); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}
