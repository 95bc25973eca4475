//go:build cgo

package sqlite

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"io"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const testSecret = "an unpublished secret of the tests, 43"

var testKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, ed25519.SeedSize))

func dbPath(t testing.TB) string { return filepath.Join(t.TempDir(), "audit.db") }

func openLog(t testing.TB, path string, opts Options) *auditlog.Log {
	t.Helper()
	store, err := New(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), auditlog.Config{
		Store: store, Name: "audit.example/sqlite", Secret: []byte(testSecret), SigningKey: testKey, CheckpointAfter: -1,
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return l
}

func closeLog(t testing.TB, l *auditlog.Log) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func call(t testing.TB, l *auditlog.Log) {
	t.Helper()
	op, err := l.Begin(context.Background(), auditlog.Intent{
		Message: auditlog.Message{
			Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", RequestID: "7", RequestIDType: "number",
			MCPName: "read_file", ToolName: "read_file", ClientID: "desktop", ServerID: "files",
			Principal: &auditlog.Principal{Subject: "alice"}, Policy: &auditlog.Policy{Decision: "allow", RuleID: "r1"},
		},
		Params:  auditlog.Payload{Received: []byte(`{"name":"read_file","arguments":{"path":"a"}}`)},
		Request: []byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call"}`),
	})
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	err = op.End(context.Background(), auditlog.Outcome{
		Result: auditlog.Success, Direction: auditlog.ServerToClient, Duration: 18 * time.Millisecond,
		Answer:   auditlog.Payload{Received: []byte(`{"content":[{"type":"text","text":"ok"}]}`)},
		Response: []byte(`{"jsonrpc":"2.0","id":7,"result":{}}`),
	})
	if err != nil {
		t.Fatalf("End: %v", err)
	}
}

// lines exports a log.
func lines(t testing.TB, path string) []byte {
	t.Helper()
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	from, err := r.Lines()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	data, err := io.ReadAll(from)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func verify(t testing.TB, path string) *auditlog.Report {
	t.Helper()
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	report, err := auditlog.Verify(context.Background(), []auditlog.Source{r.Source()}, auditlog.VerifyOptions{Secret: []byte(testSecret), Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestALogIsWrittenReadAndVerified(t *testing.T) {
	path := dbPath(t)
	l := openLog(t, path, Options{})
	for range 40 {
		call(t, l)
	}
	if r := verify(t, path); r.Exit != 0 || len(r.Findings) > 0 || r.Records != 82 {
		t.Fatalf("while in use: exit %d, %d records, %+v", r.Exit, r.Records, r.Findings)
	}
	closeLog(t, l)
	l = openLog(t, path, Options{Synchronous: Normal})
	call(t, l)
	closeLog(t, l)
	if r := verify(t, path); r.Exit != 0 || len(r.Findings) > 0 || r.Records != 89 {
		t.Fatalf("exit %d, %d records, %+v", r.Exit, r.Records, r.Findings)
	}
	text := lines(t, path)
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	size, err := r.Size()
	if err != nil || size != int64(len(text)) {
		t.Fatalf("size %d, %v; the export has %d bytes", size, err, len(text))
	}
	tree := int64(bytes.Count(text, []byte("\n")))
	root, err := tlog.TreeHash(tree, r)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := tlog.ProveRecord(tree, 17, r)
	if err != nil {
		t.Fatal(err)
	}
	record, fault := auditlog.SplitLine(bytes.Split(text, []byte("\n"))[17])
	if fault != auditlog.LineOK || tlog.CheckRecord(proof, tree, root, 17, tlog.Hash(record.LeafHash())) != nil {
		t.Error("the proof of a record does not hold")
	}
	for _, n := range []int{1, 7, 500, 4096, len(text), len(text) + 1} {
		for pos := 0; pos <= len(text); pos += n*3 + 11 {
			buf := make([]byte, n)
			got, err := r.ReadAt(buf, int64(pos))
			want := text[pos:min(pos+n, len(text))]
			if !bytes.Equal(buf[:got], want) || (err == io.EOF) != (len(want) < n) || err != nil && err != io.EOF {
				t.Fatalf("ReadAt %d at %d: %d bytes, %v", n, pos, got, err)
			}
		}
	}
}
