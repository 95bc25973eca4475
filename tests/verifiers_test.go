package tests

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// otherVerifiers runs the two verifiers of docs/verifiers and returns what each
// says, by name.
func otherVerifiers(t *testing.T, args ...string) map[string]struct {
	out  string
	code int
} {
	t.Helper()
	folder := filepath.Join(harness.Find(t).Root, "docs", "verifiers")
	said := make(map[string]struct {
		out  string
		code int
	})
	for name, command := range map[string][]string{
		"Python":  {"python3", filepath.Join(folder, "verify.py")},
		"Node.js": {"node", filepath.Join(folder, "verify.mjs")},
	} {
		out, stderr, code := harness.Run(t, exec.Command(command[0], append(command[1:], args...)...))
		if stderr != "" {
			t.Errorf("%s: %s", name, stderr)
		}
		said[name] = struct {
			out  string
			code int
		}{out, code}
	}
	return said
}

const vectorSecret = "example secret, never use it 0001"

// vectors is the folder of the published vectors, the public key of their log,
// and a key file with its MAC key.
func vectors(t *testing.T) (folder, vkey, keys string) {
	t.Helper()
	folder = filepath.Join(harness.Find(t).Root, "docs", "vectors")
	var expected struct {
		Keys struct {
			Vkey string
			K0   string `json:"k0_hex"`
		}
	}
	if err := json.Unmarshal(read(t, filepath.Join(folder, "expected.json")), &expected); err != nil {
		t.Fatal(err)
	}
	raw, err := hex.DecodeString(expected.Keys.K0)
	if err != nil {
		t.Fatal(err)
	}
	keys = filepath.Join(harness.TempDir(t), "keys.json")
	write(t, keys, []byte(`{"keys":[{"kty":"oct","alg":"HS256","kid":"k1","use":"audit-mac","k":"`+base64.RawURLEncoding.EncodeToString(raw)+`"}]}`))
	return folder, expected.Keys.Vkey, keys
}

func TestThreeVerifiersAgreeOnTheVectors(t *testing.T) {
	folder, vkey, keys := vectors(t)
	files, err := filepath.Glob(filepath.Join(folder, "tampered", "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	whole, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(whole) < 3 {
		t.Fatal(whole, err)
	}
	for _, file := range append(files, whole...) {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(name, func(t *testing.T) {
			finding, _, _ := strings.Cut(name, "~")
			want := 1
			if filepath.Dir(file) == folder {
				finding, want = "intact", 0
			}
			report := harness.Verify(t, file, "--pub", vkey, "--keys", keys)
			if report.Exit != want || want == 1 && !report.Has(finding) {
				t.Errorf("mcp-audit: %s", report)
			}
			for name, said := range otherVerifiers(t, file, "--pub", vkey, "--secret", vectorSecret) {
				if said.code != want || !strings.Contains(said.out, finding) {
					t.Errorf("%s: %d %s", name, said.code, said.out)
				}
			}
		})
	}
}

func TestProofOfTheVectorsIsCheckedByTheOtherVerifiers(t *testing.T) {
	folder, vkey, _ := vectors(t)
	at := func(name string) string { return filepath.Join(folder, name) }
	for _, c := range []struct {
		name, record, proof string
		code                int
	}{
		{"good", at("record-1.json"), at("record-1.tlog-proof"), 0},
		{"another path", at("record-1.json"), at("tampered/proof_invalid.tlog-proof"), 1},
		{"another record", at("tampered/proof_invalid.json"), at("record-1.tlog-proof"), 1},
	} {
		for name, said := range otherVerifiers(t, "--proof", c.record, c.proof, "--pub", vkey) {
			if said.code != c.code || c.code == 1 && !strings.Contains(said.out, "proof_invalid") {
				t.Errorf("%s, %s: %d %s", name, c.name, said.code, said.out)
			}
		}
	}
}

func TestThreeVerifiersAgreeOnALogOfTheProduct(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, LogOptions: "checkpoint every 5 records"})
	for range 10 {
		caddy.Post(t, call("1", "echo", `{"m":"\u00e9","n":-0,"$c":"x","seal":{"version":3}}`))
	}
	caddy.Stop(t)
	keys := filepath.Join(filepath.Dir(caddy.Log), "keys.json")
	var set struct{ Keys []struct{ Kty, K string } }
	if err := json.Unmarshal(read(t, keys), &set); err != nil {
		t.Fatal(err)
	}
	var macKey string
	for _, k := range set.Keys {
		if k.Kty == "oct" {
			raw, err := base64.RawURLEncoding.DecodeString(k.K)
			if err != nil {
				t.Fatal(err)
			}
			macKey = hex.EncodeToString(raw)
		}
	}
	var genesis struct{ Vkey string }
	log := string(read(t, caddy.Log))
	first, _, _ := strings.Cut(log, "\n")
	if err := json.Unmarshal([]byte(first), &genesis); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(log, "\n")
	for _, c := range []struct {
		name   string
		change func([]string) []string
		code   int
	}{
		{"as written", func(l []string) []string { return l }, 0},
		{"a record edited", func(l []string) []string {
			l[7] = strings.Replace(l[7], `"server_id"`, `"server_ix"`, 1)
			l[7] = strings.Replace(l[7], `"client_id":"anonymous"`, `"client_id":"someone else"`, 1)
			return l
		}, 1},
		{"a record deleted", func(l []string) []string { return append(l[:5], l[6:]...) }, 1},
		{"two swapped", func(l []string) []string { l[4], l[5] = l[5], l[4]; return l }, 1},
		{"one twice", func(l []string) []string { return append(l[:4:4], l[3:]...) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			copied := filepath.Join(harness.TempDir(t), "audit.jsonl")
			text := strings.Join(c.change(append([]string(nil), lines...)), "")
			write(t, copied, []byte(text))
			if report := harness.Verify(t, copied, "--keys", keys, "--pub", genesis.Vkey); report.Exit != c.code {
				t.Errorf("mcp-audit: %s", report)
			}
			for name, said := range otherVerifiers(t, copied, "--pub", genesis.Vkey, "--mac-key", macKey) {
				if said.code != c.code {
					t.Errorf("%s: %d %s", name, said.code, said.out)
				}
			}
		})
	}
}
