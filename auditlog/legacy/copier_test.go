package legacy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

func TestCopiedLineIsThatOfTheWorkedExample(t *testing.T) {
	v := loadVector(t)
	raw, err := os.ReadFile("../testdata/evidence-vector.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	intent, _ := auditlog.ParseRecord([]byte(lines[1]))
	outcome, fault := auditlog.ParseRecord([]byte(lines[2]))
	if fault != auditlog.LineOK {
		t.Fatal(fault)
	}
	got, err := appendEntry(nil, outcome.Line.Body(), intent.Member("params"), []byte(vectorSecret), v.Compat.KeyID)
	if err != nil || string(got) != v.Compat.Line {
		t.Errorf("%v\n%s\nwant\n%s", err, got, v.Compat.Line)
	}
}

// copiedLog opens a log with a copy beside it.
func copiedLog(t *testing.T, queue int) (*auditlog.Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	keys, err := auditlog.GenerateKeyring("k1", "test")
	if err != nil {
		t.Fatal(err)
	}
	store, err := jsonl.New(path, jsonl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	copier, err := NewCopier(CopierOptions{Path: path + ".v2.jsonl", Secret: []byte(testSecret), KeyID: "k1", QueueBytes: queue})
	if err != nil {
		t.Fatal(err)
	}
	log, err := auditlog.Open(t.Context(), auditlog.Config{Store: store, Name: "audit.example/test", Secret: []byte(testSecret), Keys: keys, Copier: copier})
	if err != nil {
		t.Fatal(err)
	}
	return log, path
}

func call(t *testing.T, log *auditlog.Log, params string, out auditlog.Outcome) {
	t.Helper()
	op, err := log.Begin(t.Context(), auditlog.Intent{
		Message: auditlog.Message{
			Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", RequestID: "7", RequestIDType: "number",
			MCPName: "read_file", ToolName: "read_file", ClientID: "desktop", ServerID: "filesystem",
			Principal: &auditlog.Principal{Subject: "alice", Roles: []string{"operator"}}, Policy: &auditlog.Policy{Decision: "allow", Reason: "x"},
		},
		Params: auditlog.Payload{Received: []byte(params)}, Request: []byte(params),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := op.End(t.Context(), out); err != nil {
		t.Fatal(err)
	}
}

func TestCopyOfALogVerifiesWithTheReaderOfItsFormat(t *testing.T) {
	log, path := copiedLog(t, 0)
	answer := func(json string) auditlog.Outcome {
		return auditlog.Outcome{Result: auditlog.Success, Direction: auditlog.ServerToClient, Duration: 18 * time.Millisecond, Answer: auditlog.Payload{Received: []byte(json)}}
	}
	failure := func(json string) auditlog.Outcome {
		return auditlog.Outcome{Result: auditlog.RPCError, Error: auditlog.Payload{Received: []byte(json)}}
	}
	call(t, log, `{"name":"read_file","arguments":{"html":"<b>&\u2028","n":9007199254740993,"$x":-0}}`, answer(`{"content":[1.0,1e400]}`))
	call(t, log, `{"a":1,"a":2}`, answer(`[`))
	call(t, log, strings.Repeat("[", 63)+"1e400"+strings.Repeat("]", 63), answer(`null`))
	call(t, log, `{}`, failure(`{"code":-32603,"message":"no","data":{"x":1}}`))
	call(t, log, `{}`, failure(`{"code":9007199254740993,"message":"no"}`))
	call(t, log, `{}`, failure(`{"code":1.5,"message":7}`))
	call(t, log, `{}`, failure(`[`))
	if _, err := log.Event(t.Context(), auditlog.Event{Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "stdio"}, Params: auditlog.Payload{Received: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := log.Status().Copy; s == nil || s.Written != 8 || s.Dropped+s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	r := verify(t, FormatP4ST4S, Options{Keys: withSecret().Keys, Require: RequireV2, Strict: true}, auditlog.FileSource(path+".v2.jsonl"))
	expect(t, r, auditlog.ExitClean)
	if r.Statuses[V2Valid] != 8 {
		t.Errorf("%+v", r)
	}
	if info, err := os.Stat(path + ".v2.jsonl"); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	main, err := auditlog.Verify(t.Context(), []auditlog.Source{auditlog.FileSource(path)}, auditlog.VerifyOptions{Secret: []byte(testSecret), Strict: true})
	if err != nil || main.Exit != auditlog.ExitClean {
		t.Errorf("the log itself: %+v, %v", main, err)
	}
}

func TestCopyThatDoesNotFitIsCountedAndHoldsNothingUp(t *testing.T) {
	log, path := copiedLog(t, 64)
	big := `{"x":"` + strings.Repeat("y", 4096) + `"}`
	for range 20 {
		call(t, log, big, auditlog.Outcome{Result: auditlog.Success, Answer: auditlog.Payload{Received: []byte(big)}})
	}
	if err := log.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s := log.Status().Copy
	if s.Dropped == 0 || s.Written+s.Dropped != 20 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	if s.Written == 0 {
		return
	}
	if r := verify(t, FormatP4ST4S, withSecret(), auditlog.FileSource(path+".v2.jsonl")); r.Exit != 0 {
		t.Errorf("%+v", r.Findings)
	}
}

func TestCopyThatCannotBeWrittenLeavesTheLogAlone(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full")
	}
	c, err := NewCopier(CopierOptions{Path: "/dev/full", Secret: []byte(testSecret), KeyID: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Copy(auditlog.Copied{Kind: auditlog.CopiedEvent, Body: []byte(`{"id":"x","timestamp":"2026-05-25T12:34:57.518250000Z"}`)})
	c.Copy(auditlog.Copied{Kind: auditlog.CopiedEvent, Body: []byte(`{"id":"x"}`)})
	_ = c.Close()
	if s := c.Status(); s.Failed != 2 || s.Err == "" || s.Written != 0 {
		t.Errorf("%+v", s)
	}
}

func TestCopyGoesOnBehindALineThatACrashCutOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.v2.jsonl")
	if err := os.WriteFile(path, []byte(`{"id":"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := NewCopier(CopierOptions{Path: path, Secret: []byte(testSecret), KeyID: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	c.Copy(auditlog.Copied{Kind: auditlog.CopiedEvent, Body: []byte(`{"id":"x","timestamp":"2026-05-25T12:34:57.518250000Z"}`)})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	r := verify(t, FormatP4ST4S, withSecret(), auditlog.FileSource(path))
	if r.Statuses[V2Valid] != 1 || r.Statuses[Unreadable] != 1 {
		t.Errorf("%+v", r)
	}
	if _, err := NewCopier(CopierOptions{Path: path}); err == nil {
		t.Error("a copy without a secret was begun")
	}
}
