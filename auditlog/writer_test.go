package auditlog_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

const testSecret = "an unpublished secret of the tests, 42"

// testKey is one Ed25519 key for all tests, so that logs can be reopened.
var testKeys = func() *auditlog.Keyring {
	k, err := auditlog.GenerateKeyring("k1", "test")
	if err != nil {
		panic(err)
	}
	return k
}()

// setup describes a log under test; its zero value is a plain log.
type setup struct {
	fs     fsys.FS
	change func(*auditlog.Config)
}

func (s setup) config(t testing.TB, path string) auditlog.Config {
	t.Helper()
	store, err := storeAt(path, s.fs)
	if err != nil {
		t.Fatal(err)
	}
	cfg := auditlog.Config{
		Store: store, Name: "audit.example/test", Secret: []byte(testSecret), Keys: testKeys,
		Version: "test", Actor: "tester", CheckpointAfter: -1,
	}
	if s.change != nil {
		s.change(&cfg)
	}
	return cfg
}

func (s setup) open(t testing.TB, path string) *auditlog.Log {
	t.Helper()
	l, err := auditlog.Open(context.Background(), s.config(t, path))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l
}

func init() {
	auditlog.NewBenchStore = func(path string) auditlog.Store {
		store, err := jsonl.New(path, jsonl.Options{})
		if err != nil {
			panic(err)
		}
		return store
	}
}

func logPath(t testing.TB) string { return filepath.Join(t.TempDir(), logName()) }

// quickPath is logPath in memory, where there is such a folder, for tests that
// open many logs: a flush costs nothing there.
func quickPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "auditlog-test-")
	if err != nil {
		return logPath(t)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, logName())
}

func closeLog(t testing.TB, l *auditlog.Log) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func anIntent() auditlog.Intent {
	body := []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"a"}}}`)
	return auditlog.Intent{
		Message: auditlog.Message{
			Direction: auditlog.ClientToServer, Transport: "http", ProtocolVersion: "2025-11-25", Method: "tools/call",
			RequestID: "7", RequestIDType: "number", MCPName: "read_file", ToolName: "read_file", SessionID: "s1",
			ClientID: "desktop", ServerID: "filesystem", Principal: &auditlog.Principal{Subject: "alice"},
			Policy: &auditlog.Policy{Decision: "allow"},
		},
		Params: auditlog.Payload{Received: []byte(`{"name":"read_file","arguments":{"path":"a"}}`)}, Request: body,
	}
}

func anOutcome() auditlog.Outcome {
	return auditlog.Outcome{
		Result: auditlog.Success, Direction: auditlog.ServerToClient, Duration: 18 * time.Millisecond,
		Answer:   auditlog.Payload{Received: []byte(`{"content":[{"type":"text","text":"ok"}]}`)},
		Response: []byte(`{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"ok"}]}}`),
	}
}

func anEvent() auditlog.Event {
	return auditlog.Event{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "notifications/initialized"},
		Request: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`),
	}
}

// call records one whole operation.
func call(t testing.TB, l *auditlog.Log) {
	t.Helper()
	op, err := l.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Fatalf("End: %v", err)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	if isDatabase(path) {
		return exported(t, path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// kinds lists the kinds of a log's records, in order.
func kinds(t testing.TB, path string) []string {
	t.Helper()
	var out []string
	for _, r := range records(t, path) {
		out = append(out, r.kind)
	}
	return out
}

func TestALogBeginsAndEndsInOrder(t *testing.T) {
	path := logPath(t)
	l := setup{}.open(t, path)
	call(t, l)
	if _, err := l.Event(context.Background(), anEvent()); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	closeLog(t, l)
	want := "genesis start intent outcome event stop checkpoint"
	if got := strings.Join(kinds(t, path), " "); got != want {
		t.Fatalf("kinds %s, want %s", got, want)
	}
	check(t, path)

	l = setup{}.open(t, path)
	call(t, l)
	closeLog(t, l)
	want += " start intent outcome stop checkpoint"
	if got := strings.Join(kinds(t, path), " "); got != want {
		t.Fatalf("after reopening: kinds %s, want %s", got, want)
	}
	check(t, path)
	for name, mode := range map[string]os.FileMode{"": 0o600, ".state": 0o600, ".lock": 0o600, ".checkpoint": 0o600, ".runs": os.ModeDir | 0o700} {
		info, err := os.Lstat(path + name)
		if err != nil || info.Mode() != mode {
			t.Errorf("audit.jsonl%s: mode %v, %v; want %v", name, info.Mode(), err, mode)
		}
	}
	if left, _ := os.ReadDir(path + ".runs"); len(left) != 0 {
		t.Errorf("the run registry still has %v", left)
	}
	note := read(t, path+".checkpoint")
	if head, err := auditlog.OpenTreeHead(note, l.Status().VKey); err != nil || head.Size != uint64(len(kinds(t, path))-1) {
		t.Errorf("checkpoint file: %+v, %v", head, err)
	}
	if !bytes.HasSuffix(read(t, path), []byte("}\n")) {
		t.Error("the log does not end in a line feed")
	}
}
