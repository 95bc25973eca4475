package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/anchor"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// vectorWithCheckpoint copies the worked example with its checkpoint beside
// it, and returns its path and public key.
func vectorWithCheckpoint(t *testing.T) (path, vkey string) {
	t.Helper()
	raw, err := os.ReadFile("../../auditlog/testdata/evidence-vector.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Checkpoint struct {
			Note string `json:"note"`
		} `json:"checkpoint"`
		Keys struct {
			VKey string `json:"vkey"`
		} `json:"keys"`
		Proof string `json:"tlog_proof_record_1"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	path = vector(t)
	write(t, path+".checkpoint", []byte(v.Checkpoint.Note))
	write(t, path+".proof", []byte(v.Proof))
	return path, v.Keys.VKey
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestProofBundleVerifiesWithThePublicKeyAlone(t *testing.T) {
	clean(t)
	path, vkey := vectorWithCheckpoint(t)
	out := filepath.Join(t.TempDir(), "call")
	stdout, stderr, code := command(t, "prove", path, "--seq", "1", "-o", out)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "not disclosed: params") {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	if !bytes.Equal(read(t, out+".tlog-proof"), read(t, path+".proof")) {
		t.Errorf("%s", read(t, out+".tlog-proof"))
	}
	if bytes.Contains(read(t, out+".json"), []byte("docs/")) {
		t.Error("a member was disclosed that was not named")
	}
	stdout, _, code = command(t, "verify-proof", out+".json", out+".tlog-proof", "--pub", vkey)
	golden(t, "verify-proof", filepath.Dir(out), stdout)
	if code != 0 {
		t.Error(code)
	}

	if _, stderr, code = command(t, "prove", path, "--seq", "1", "--disclose", "params", "-o", out); code != 0 {
		t.Fatal(stderr)
	}
	stdout, _, code = command(t, "verify-proof", out+".json", out+".tlog-proof", "--pub", vkey, "--json")
	var result struct {
		Proven    bool
		Seq       int
		Origin    string
		Disclosed map[string]json.RawMessage
		Withheld  []string
	}
	if err := json.Unmarshal([]byte(stdout), &result); err != nil || code != 0 || !result.Proven || result.Seq != 1 ||
		!strings.Contains(string(result.Disclosed["params"]), "docs/ü.txt") || len(result.Withheld) != 0 {
		t.Errorf("%d %v %s", code, err, stdout)
	}

	// What was changed, or is another's, is refused with the reason.
	other, err := auditlog.VKey("audit.example/gateway-1/i0", bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(record, proof []byte) ([]byte, []byte, string){
		"the record was changed": func(r, p []byte) ([]byte, []byte, string) {
			return bytes.Replace(r, []byte("alice"), []byte("mallo"), 1), p, vkey
		},
		"not what the record commits": func(r, p []byte) ([]byte, []byte, string) {
			return bytes.Replace(r, []byte("docs/"), []byte("DOCS/"), 1), p, vkey
		},
		"its checkpoint is not trusted": func(r, p []byte) ([]byte, []byte, string) { return r, p, other },
		"but the proof is of record": func(r, p []byte) ([]byte, []byte, string) {
			return r, bytes.Replace(p, []byte("index 1"), []byte("index 2"), 1), vkey
		},
	} {
		record, proof, key := change(read(t, out+".json"), read(t, out+".tlog-proof"))
		write(t, out+".bad.json", record)
		write(t, out+".bad.tlog-proof", proof)
		stdout, _, code := command(t, "verify-proof", out+".bad.json", out+".bad.tlog-proof", "--pub", key)
		if code != 1 || !strings.Contains(stdout, "proof_invalid") || !strings.Contains(stdout, name) {
			t.Errorf("%s: %d %s", name, code, stdout)
		}
		if stdout, _, code := command(t, "verify-proof", out+".bad.json", out+".bad.tlog-proof", "--pub", key, "--json"); code != 1 || !strings.Contains(stdout, `"finding":"proof_invalid"`) {
			t.Errorf("%s: %d %s", name, code, stdout)
		}
	}
}

func TestProofOfAnOperationHasBothItsRecords(t *testing.T) {
	clean(t)
	path, vkey := vectorWithCheckpoint(t)
	out := filepath.Join(t.TempDir(), "op")
	if _, stderr, code := command(t, "prove", path, "--operation", "019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9", "--disclose", "all", "-o", out); code != 0 {
		t.Fatal(stderr)
	}
	for _, kind := range []string{"intent", "outcome"} {
		if stdout, _, code := command(t, "verify-proof", out+"."+kind+".json", out+"."+kind+".tlog-proof", "--pub", vkey); code != 0 || !strings.Contains(stdout, kind+" tools/call") {
			t.Errorf("%d %s", code, stdout)
		}
	}
	if stdout, _, code := command(t, "verify-proof", out+".intent.json", out+".outcome.tlog-proof", "--pub", vkey); code != 1 {
		t.Errorf("%d %s", code, stdout)
	}
}

func TestProveSaysWhatIsMissing(t *testing.T) {
	clean(t)
	path, vkey := vectorWithCheckpoint(t)
	out := filepath.Join(t.TempDir(), "x")
	for want, args := range map[string][]string{
		"exactly one of":         {"prove", path},
		"exactly one of --seq":   {"prove", path, "--seq", "1", "--operation", "x"},
		"has no record 9":        {"prove", path, "--seq", "9", "-o", out},
		"operation or record":    {"prove", path, "--operation", "nobody", "-o", out},
		"no committed member":    {"prove", path, "--seq", "1", "--disclose", "result", "-o", out},
		"whole record":           {"prove", path, "--seq", "0", "--disclose", "params", "-o", out},
		"no such file":           {"prove", path, "--seq", "1", "--checkpoint", out + ".missing"},
		"give the record":        {"verify-proof", out, "--pub", vkey},
		"give the proof":         {"verify-proof", "--consistency", out, out, out, "--pub", vkey},
		"not a verifier key":     {"verify-proof", out, out, "--pub", "x"},
		"reading the policy":     {"verify-proof", out, out, "--policy", out},
		"reading the record":     {"verify-proof", out, out, "--pub", vkey},
		"says nothing by itself": {"verify-proof", out, out},
	} {
		_, stderr, code := command(t, args...)
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s, want %s", args, code, stderr, want)
		}
	}
	if err := os.Remove(path + ".checkpoint"); err != nil {
		t.Fatal(err)
	}
	if _, stderr, code := command(t, "prove", path, "--seq", "1", "-o", out); code == 0 || !strings.Contains(stderr, "sign one with `mcp-audit checkpoint`") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestConsistencyIsProvenFromAnOlderCheckpoint(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "first", auditlog.Success, "")
	held := filepath.Join(t.TempDir(), "held")
	if _, stderr, code := command(t, "checkpoint", path, "--output", held); code != 0 {
		t.Fatal(stderr)
	}
	for range 20 {
		call(t, log, "more", auditlog.Success, "")
	}
	closeLog(t, log)
	out := filepath.Join(t.TempDir(), "since")
	if _, stderr, code := command(t, "prove", path, "--consistency", held, "-o", out); code != 0 {
		t.Fatal(stderr)
	}
	vkey, _, _ := command(t, "pubkey", path)
	vkey = strings.TrimSpace(vkey)
	if stdout, _, code := command(t, "verify-proof", "--consistency", held, out+".tlog-consistency", "--pub", vkey); code != 0 || !strings.Contains(stdout, "continues that of") {
		t.Errorf("%d %s", code, stdout)
	}
	proof := read(t, out+".tlog-consistency")
	proof[10] ^= 1
	write(t, out+".tlog-consistency", proof)
	if stdout, _, code := command(t, "verify-proof", "--consistency", held, out+".tlog-consistency", "--pub", vkey, "--json"); code != 1 || !strings.Contains(stdout, "proof_invalid") {
		t.Errorf("%d %s", code, stdout)
	}
	// A checkpoint that the log does not continue.
	forged, err := auditlog.ReadTreeHead(read(t, held))
	if err != nil {
		t.Fatal(err)
	}
	forged.Root[0] ^= 1
	keys, err := auditlog.LoadKeyring(keysBeside(path))
	if err != nil {
		t.Fatal(err)
	}
	key, _ := keys.SigningKey(auditlog.DefaultKeyID)
	note, err := auditlog.SignTreeHead(forged, key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, held, note)
	if _, stderr, code := command(t, "prove", path, "--consistency", held, "-o", out); code != 1 || !strings.Contains(stderr, "was rewritten") {
		t.Errorf("%d %s", code, stderr)
	}
}

// lockedBuffer is a buffer that two goroutines use.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// witnessAt runs `mcp-audit witness` until the test ends and returns its
// address and key.
func witnessAt(t *testing.T, key, log string) (url, vkey string) {
	t.Helper()
	var out lockedBuffer
	ctx, cancel := context.WithCancel(context.Background())
	root := New()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs([]string{"witness", "--listen", "127.0.0.1:0", "--key", key, "--name", "witness.example/w1", "--log", log})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text := out.String()
		if at := strings.Index(text, "http://"); at > 0 {
			fields := strings.Fields(text)
			return strings.Fields(text[at:])[0], fields[1]
		}
		if time.Now().After(end) {
			t.Fatal(text)
		}
	}
}

func TestWitnessedProofMeetsAPolicy(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	url, vkey := witnessAt(t, filepath.Join(t.TempDir(), "witness.json"), log.Status().VKey)
	w, err := anchor.NewWitness(url, vkey, nil)
	if err != nil {
		t.Fatal(err)
	}
	log.SetAnchors(anchor.New(anchor.Options{
		Log: path, VKey: func() string { return log.Status().VKey }, Targets: []anchor.Target{{Anchor: w}},
		Sources: func() ([]auditlog.Source, error) { return jsonl.Sources(path) },
	}))
	for range 5 {
		call(t, log, "read_file", auditlog.Success, "")
	}
	closeLog(t, log)
	again := openLog(t, path) // a newer checkpoint that no witness has seen
	call(t, again, "later", auditlog.Success, "")
	closeLog(t, again)

	dir := t.TempDir()
	out, policy := filepath.Join(dir, "p"), filepath.Join(dir, "trust.policy")
	write(t, policy, []byte("# who is trusted\nlog "+again.Status().VKey+"\nwitness W "+vkey+"\nquorum W\n"))
	if _, stderr, code := command(t, "prove", path, "--seq", "3", "-o", out); code != 0 {
		t.Fatal(stderr)
	}
	stdout, _, code := command(t, "verify-proof", out+".json", out+".tlog-proof", "--policy", policy)
	if code != 0 || !strings.Contains(stdout, "witnessed: by witness.example/w1 at ") {
		t.Errorf("%d %s", code, stdout)
	}
	// The newest checkpoint has no cosignature.
	if _, stderr, code := command(t, "prove", path, "--seq", "3", "--checkpoint", path+".checkpoint", "-o", out); code != 0 {
		t.Fatal(stderr)
	}
	if stdout, _, code := command(t, "verify-proof", out+".json", out+".tlog-proof", "--policy", policy); code != 1 || !strings.Contains(stdout, "quorum W of the policy is not met") {
		t.Errorf("%d %s", code, stdout)
	}
	// verify counts the receipt for whoever knows the witness.
	if r := verified(t, path); r.Exit != 0 || r.Watermarks.Anchored != 0 {
		t.Errorf("%+v", r)
	}
	r := verified(t, path, "--witness", vkey)
	if r.Exit != 0 || r.Watermarks.Anchored == 0 || r.Watermarks.AnchoredBy[0].Witnesses[0].Witness != "witness.example/w1" {
		t.Errorf("%+v", r)
	}
	if _, stderr, code := command(t, "verify", path, "--witness", "x"); code != 2 || !strings.Contains(stderr, "witness key") {
		t.Errorf("%d %s", code, stderr)
	}
	if stdout, _, _ := command(t, "verify", path, "--witness", vkey); !strings.Contains(stdout, ", witnessed by witness.example/w1 at ") {
		t.Error(stdout)
	}
	if r := verified(t, path, "--anchor", path+".anchors"); r.Exit != 0 || r.Watermarks.Anchored == 0 {
		t.Errorf("a folder of anchors: %+v", r)
	}
}

func TestWitnessCommandNamesMistakes(t *testing.T) {
	home := clean(t)
	key := filepath.Join(home, "witness.json")
	stdout, _, code := command(t, "witness", "--key", key, "--name", "witness.example/w1", "--print-vkey")
	if code != 0 || !strings.HasPrefix(stdout, "witness.example/w1+") {
		t.Fatal(code, stdout)
	}
	if again, _, _ := command(t, "witness", "--key", key, "--print-vkey"); again != stdout {
		t.Errorf("another key: %s", again)
	}
	logs := filepath.Join(home, "logs")
	write(t, logs, []byte("# logs\n\nnonsense\n"))
	for want, args := range map[string][]string{
		"no log to serve":    {},
		"malformed":          {"--log", "@" + logs},
		"not a verifier key": {"--log", strings.TrimSpace(stdout)},
		"reading the logs":   {"--log", "@" + logs + ".missing"},
		"cannot name":        {"--name", "a b", "--log", strings.TrimSpace(stdout)},
	} {
		_, stderr, code := command(t, append([]string{"witness", "--key", key, "--listen", "127.0.0.1:0"}, args...)...)
		if code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s, want %s", args, code, stderr, want)
		}
	}
}
