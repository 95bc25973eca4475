package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// openLog opens a log with the keys beside it, as a shim does.
func openLog(t *testing.T, path string) *auditlog.Log {
	t.Helper()
	keys, err := auditlog.LoadOrCreateKeyring(keysBeside(path), auditlog.DefaultKeyID, "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := storeOf(path)
	if err != nil {
		t.Fatal(err)
	}
	log, err := auditlog.Open(t.Context(), auditlog.Config{Store: store, Keys: keys, Name: "test/log", CheckpointEvery: -1, CheckpointAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// call records one finished call of a tool.
func call(t *testing.T, log *auditlog.Log, tool string, result auditlog.Result, reason string) {
	t.Helper()
	m := auditlog.Message{
		Direction: auditlog.ClientToServer, Transport: "stdio", Method: "tools/call", ToolName: tool, MCPName: tool,
		ServerID: "files", ClientID: "local", RequestID: "1", RequestIDType: "number",
	}
	op, err := log.Begin(t.Context(), auditlog.Intent{
		Message: m, Params: auditlog.Payload{Received: []byte(`{"name":"` + tool + `"}`)}, Request: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := op.End(t.Context(), auditlog.Outcome{Result: result, Reason: reason, Duration: 7 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
}

func closeLog(t *testing.T, log *auditlog.Log) {
	t.Helper()
	if err := log.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// verified runs verify --json and returns the report.
func verified(t *testing.T, args ...string) (r auditlog.Report) {
	t.Helper()
	stdout, stderr, code := command(t, append([]string{"verify", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s %s", err, stdout, stderr)
	}
	if r.Exit != code {
		t.Errorf("exit %d, the report says %d", code, r.Exit)
	}
	return r
}

func TestTheDefaultFolderNeedsNoPath(t *testing.T) {
	home := clean(t)
	for _, dir := range []string{filepath.Join(home, ".mcp-audit"), filepath.Join(home, "elsewhere")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(dir, ".mcp-audit") {
			t.Setenv("MCP_AUDIT_DIR", dir)
		}
		log := openLog(t, filepath.Join(dir, logName))
		call(t, log, "read_file", auditlog.Success, "")
		closeLog(t, log)
		r := verified(t)
		if r.Exit != 0 || len(r.Findings) > 0 || r.MAC != auditlog.MACChecked || r.Watermarks.Beside == 0 {
			t.Errorf("%s: %+v", dir, r)
		}
		stdout, _, code := command(t, "tail")
		if code != 0 || strings.Count(stdout, "\n") != 1 || !strings.Contains(stdout, "✓ files/read_file") {
			t.Errorf("tail: %d %s", code, stdout)
		}
		id := strings.Fields(stdout)[6]
		if shown, _, code := command(t, "show", id); code != 0 || !strings.Contains(shown, `"outcome": "success"`) {
			t.Errorf("show %s: %d %s", id, code, shown)
		}
	}
}

func TestLogInUseVerifiesAndTakesACheckpointBesideItsWriter(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "first", auditlog.Success, "")
	note := filepath.Join(t.TempDir(), "held")
	stdout, stderr, code := command(t, "checkpoint", path, "--output", note)
	if code != 0 || stdout != "" {
		t.Fatalf("exit %d %s", code, stderr)
	}
	call(t, log, "second", auditlog.Success, "")
	if r := verified(t, path, "--anchor", note); r.Exit != 0 || r.Watermarks.Anchored == 0 || r.NotCovered[0] != r.Watermarks.Anchored+1 {
		t.Errorf("%+v", r)
	}
	closeLog(t, log)

	vkey, _, _ := command(t, "pubkey", path)
	elsewhere := filepath.Join(t.TempDir(), "received.jsonl")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, elsewhere, data)
	if r := verified(t, elsewhere, "--pub", strings.TrimSpace(vkey)); r.Exit != 0 || r.MAC != auditlog.MACUnchecked || len(r.Findings) > 0 {
		t.Errorf("public key alone: %+v", r)
	}

	cut := bytes.Join(bytes.SplitAfter(data, []byte("\n"))[:4], nil)
	write(t, elsewhere, cut)
	if r := verified(t, elsewhere, "--keys", keysBeside(path), "--anchor", note); r.Exit != 4 {
		t.Errorf("cut, anchored: %+v", r)
	}
	if r := verified(t, elsewhere, "--keys", keysBeside(path)); r.Exit != 0 {
		t.Errorf("cut, without an anchor: %+v", r)
	}
	write(t, path, cut)
	if r := verified(t, path); r.Exit != 4 || r.Findings[len(r.Findings)-1].Kind != "tail_truncated" {
		t.Errorf("cut beside its checkpoint: %+v", r)
	}
}

func TestRecoveredLogVerifiesWithItsBreak(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	log := openLog(t, path)
	for range 3 {
		call(t, log, "read_file", auditlog.Success, "")
	}
	closeLog(t, log)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, bytes.Join(bytes.SplitAfter(data, []byte("\n"))[:5], nil))
	if _, stderr, code := command(t, "checkpoint", path); code != 3 || !strings.Contains(stderr, "mcp-audit recover") {
		t.Errorf("checkpoint of a cut log: exit %d %s", code, stderr)
	}
	if _, stderr, code := command(t, "recover", path, "--accept-chain-break", "a test cut it"); code != 0 {
		t.Fatalf("recover: exit %d %s", code, stderr)
	}
	log = openLog(t, path)
	call(t, log, "read_file", auditlog.Success, "")
	closeLog(t, log)

	// A copy of the file alone is the new chain.
	data, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), logName)
	write(t, alone, data)
	r := verified(t, alone, "--keys", filepath.Join(dir, keysName))
	if r.Exit != 0 || len(r.Findings) != 1 || r.Findings[0].Kind != "chain_break" || !strings.Contains(r.Findings[0].Detail, "a test cut it") {
		t.Errorf("the new chain: %+v", r)
	}
	// The whole folder has the cut chain, too, whose checkpoint tells.
	r = verified(t, dir)
	kinds := map[string]bool{}
	for _, f := range r.Findings {
		kinds[f.Kind] = true
	}
	if !kinds["chain_break"] || !kinds["tail_truncated"] || kinds["foreign_log"] || kinds["mac_invalid"] {
		t.Errorf("the folder: %+v", r.Findings)
	}
	if stdout, _, _ := command(t, "tail", path); !strings.Contains(stdout, "! chain_break: a test cut it") {
		t.Errorf("tail: %s", stdout)
	}
}

func TestSecretAndKeyFileTogetherVerifyEither(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "read_file", auditlog.Success, "")
	closeLog(t, log)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "a secret that another log is sealed with")
	if r := verified(t, path); r.Exit != 0 || r.MAC != auditlog.MACChecked {
		t.Errorf("%+v", r)
	}
}

func TestTailShowsRefusalsWithTheirReason(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	call(t, log, "slow", auditlog.Timeout, "no answer in 5s")
	_, err := log.Event(t.Context(), auditlog.Event{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ToolName: "rm\u202e", ServerID: "files",
			Policy: &auditlog.Policy{Decision: "deny", RuleID: "R-1", Reason: "not here"}},
		Result: auditlog.Denied,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Event(t.Context(), auditlog.Event{Message: auditlog.Message{Method: "notifications/progress", ServerID: "files"}}); err != nil {
		t.Fatal(err)
	}
	closeLog(t, log)
	stdout, _, _ := command(t, "tail", path)
	for _, want := range []string{"✗ files/slow", "timeout: no answer in 5s", `✗ files/rm\u202e`, "denied: not here (rule R-1)"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "progress") || strings.Contains(stdout, "\x1b") {
		t.Errorf("%s", stdout)
	}
	if all, _, _ := command(t, "tail", "--all", path); !strings.Contains(all, "· files/notifications/progress") {
		t.Errorf("%s", all)
	}
}

func TestTailFollowsAndSurvivesANewFile(t *testing.T) {
	clean(t)
	dir := t.TempDir()
	path := filepath.Join(dir, logName)
	out, in := io.Pipe()
	root := New()
	root.SetOut(in)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"tail", "-f", path})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	lines := bufio.NewScanner(out)
	expect := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("want %q, got %q", want, lines.Text())
		}
	}

	log := openLog(t, path) // tail waits for it
	call(t, log, "one", auditlog.Success, "")
	expect("files/one")
	call(t, log, "two", auditlog.ToolError, "")
	expect("files/two")
	closeLog(t, log)

	// The file is moved aside, and another one takes its place.
	if err := os.Rename(path, path+".000000.20260101T000000Z"); err != nil {
		t.Fatal(err)
	}
	for _, beside := range []string{".state", ".checkpoint"} {
		if err := os.Remove(path + beside); err != nil {
			t.Fatal(err)
		}
	}
	log = openLog(t, path)
	call(t, log, "three", auditlog.Success, "")
	expect("files/three")
	closeLog(t, log)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTailFindsTheLastCallsInALongLog(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), logName)
	log := openLog(t, path)
	for i := range 40 {
		call(t, log, fmt.Sprintf("tool%02d-%s", i, strings.Repeat("x", 20<<10)), auditlog.Success, "")
	}
	closeLog(t, log)
	stdout, _, _ := command(t, "tail", "-n", "12", path)
	if n := strings.Count(stdout, "\n"); n != 12 || !strings.Contains(stdout, "tool28-") || strings.Contains(stdout, "tool27-") {
		t.Errorf("%d lines", n)
	}
}

func TestKeygenMakesKeysOnceThatOnlyTheOwnerReads(t *testing.T) {
	home := clean(t)
	stdout, stderr, code := command(t, "keygen", "--name", "gateway.example")
	path := strings.TrimSpace(stdout)
	if code != 0 || path != filepath.Join(home, ".mcp-audit", keysName) {
		t.Fatalf("exit %d %s %s", code, stdout, stderr)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, stderr, code := command(t, "keygen"); code != 1 || !strings.Contains(stderr, "exists already") {
		t.Errorf("a second time: exit %d %s", code, stderr)
	}
	vkey, _, code := command(t, "pubkey", path)
	if code != 0 || !strings.HasPrefix(vkey, "gateway.example/i0+") {
		t.Errorf("pubkey: exit %d %s", code, vkey)
	}
	if again, _, _ := command(t, "pubkey"); again != vkey {
		t.Errorf("pubkey without a path: %s", again)
	}
}
