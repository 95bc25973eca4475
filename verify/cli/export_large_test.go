//go:build cgo && linux

package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// writeLarge writes a log of n records, two a call, of about 1 KB each. The
// chain and the MACs are not real: nothing here looks at them but as names.
func writeLarge(t *testing.T, path string, n int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	filling := strings.Repeat("payload ", 55)
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	var line, body []byte
	var chain auditlog.Hash
	for seq := range n {
		op, call := auditlog.NewOperationID(), seq/2
		if seq%2 == 1 {
			op = operationOf(line)
		}
		stamp := at.Add(time.Duration(seq) * time.Millisecond).Format("2006-01-02T15:04:05.000000000Z")
		common := fmt.Sprintf(`{"audit_operation_id":%q,"client_id":"client-%d","direction":"client→server",`, op, call%10)
		tail := fmt.Sprintf(`"principal":{"issuer":"https://idp.example","subject":"user-%d"},"request_id":"%d","request_id_type":"number",`, call%1000, call)
		if seq%2 == 0 {
			body = fmt.Appendf(body[:0], `%s"id":"01KSFJ35TW2491650N2RBHG68T","kind":"intent","mcp_name":"tool_%d","method":"tools/call","nonce":"EBESExQVFhcYGRobHB0eHw","params":{"text":"%s"},"policy":{"decision":"allow"},%s"server_id":"files","timestamp":%q,"tool_name":"tool_%[2]d","transport":"http"}`,
				common, call%50, filling, tail, stamp)
		} else {
			body = fmt.Appendf(body[:0], `%s"duration_ms":%d,"id":"01KSFJ35VE44H269154RKJGA9A","intent_seq":%d,"kind":"outcome","mcp_name":"tool_%d","method":"tools/call","nonce":"EBESExQVFhcYGRobHB0eHw","outcome":"success","policy":{"decision":"allow"},%s"result":{"text":"%s"},"server_id":"files","timestamp":%q,"tool_name":"tool_%[4]d","transport":"http"}`,
				common, call%100, seq-1, call%50, tail, filling, stamp)
		}
		seal := auditlog.Seal{Seq: uint64(seq), Leaf: auditlog.LeafHash(body), Chain: chain, KeyID: "k1"}
		chain = auditlog.ChainHash(chain, seal.Seq, seal.Leaf)
		line = auditlog.AppendLine(line[:0], body, &seal, nil)
		if _, err := w.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func operationOf(line []byte) string {
	r, _ := auditlog.ParseRecord(bytes.TrimSuffix(line, []byte("\n")))
	return r.Text("audit_operation_id")
}

// resident is the memory of the process in bytes, SQLite's included.
func resident(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// peak calls do and returns how much the process grew meanwhile, at most.
func peak(t *testing.T, do func()) (most int64) {
	t.Helper()
	before := resident(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	for {
		most = max(most, resident(t)-before)
		select {
		case <-done:
			return most
		case <-time.After(5 * time.Millisecond):
		}
	}
}

type rowCounter struct{ rows, bytes int64 }

func (c *rowCounter) Write(p []byte) (int, error) {
	c.rows += int64(bytes.Count(p, []byte("\n")))
	c.bytes += int64(len(p))
	return len(p), nil
}

func TestAMillionRecordsInBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	clean(t)
	const records = 1_000_000
	const bound = 64 << 20
	path := filepath.Join(t.TempDir(), logName)
	writeLarge(t, path, records)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	run := func(out io.Writer, args ...string) (time.Duration, int64) {
		start := time.Now()
		grown := peak(t, func() {
			root := New()
			var errs bytes.Buffer
			root.SetOut(out)
			root.SetErr(&errs)
			root.SetArgs(append(args, path))
			if err := root.ExecuteContext(t.Context()); err != nil || errs.Len() > 0 {
				t.Errorf("%q: %v: %s", args, err, &errs)
			}
		})
		if grown > bound {
			t.Errorf("%q took %d MiB of memory", args, grown>>20)
		}
		return time.Since(start), grown
	}
	took, grown := run(io.Discard, "index")
	size, err := os.Stat(path + ".index")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("index: %d records of %d MiB in %v, +%d MiB of memory, index %d MiB", records, info.Size()>>20, took, grown>>20, size.Size()>>20)
	for _, args := range [][]string{
		{"export"}, {"export", "--format", "csv", "--until", "2026-12-01T00:01:40Z"}, {"export", "--format", "cef", "--until", "2026-12-01T00:01:40Z"},
		{"export", "--tool", "tool_7", "--principal", "user-7"}, {"export", "--since", "2026-12-01T00:16:00Z", "--until", "2026-12-01T00:16:01Z"}, {"index"},
	} {
		var count rowCounter
		took, grown := run(&count, args...)
		t.Logf("%s: %d lines, %d MiB in %v, +%d MiB of memory", strings.Join(args, " "), count.rows, count.bytes>>20, took, grown>>20)
		if len(args) == 1 && args[0] == "export" && count.rows != records/2 {
			t.Errorf("%d rows", count.rows)
		}
	}
}
