//go:build cgo && linux

package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/dashboard"
)

// largeRecords is how many records the large log has: a million, or what the
// environment says.
func largeRecords(t *testing.T) int {
	text := os.Getenv("MCP_AUDIT_LARGE_RECORDS")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 10_000 {
		t.Fatalf("MCP_AUDIT_LARGE_RECORDS is %q, want a number from 10000", text)
	}
	return n
}

// largeSecret is the secret of the large log.
const largeSecret = "the secret of a log with very many records"

// writeLarge writes a log of about n records of 1 KB, two a call, as 64 clients
// would, and returns the times at which the last tenth and the last hundredth
// began.
func writeLarge(t *testing.T, path string, n int) (tenth, hundredth time.Time) {
	t.Helper()
	keys, err := auditlog.GenerateKeyring("k1", "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := jsonl.New(path, jsonl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(t.Context(), auditlog.Config{
		Store: store, Name: "large", Keys: keys, Secret: []byte(largeSecret),
		CheckpointEvery: 10_000, CheckpointAfter: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(`{"text":"` + strings.Repeat("payload ", 40) + `"}`)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for {
				call := int(next.Add(1)) - 1
				switch call {
				case n / 2 * 9 / 10:
					tenth = time.Now()
				case n / 2 * 99 / 100:
					hundredth = time.Now()
				}
				if call >= n/2 {
					return
				}
				tool := fmt.Sprintf("tool_%d", call%50)
				op, err := l.Begin(t.Context(), auditlog.Intent{
					Message: auditlog.Message{
						Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", RequestID: strconv.Itoa(call), RequestIDType: "number",
						MCPName: tool, ToolName: tool, ClientID: fmt.Sprintf("client-%d", call%10), ServerID: "files",
						Principal: &auditlog.Principal{Subject: fmt.Sprintf("user-%d", call%1000), Issuer: "https://idp.example"},
						Policy:    &auditlog.Policy{Decision: "allow"},
					},
					Params: auditlog.Payload{Received: text}, Request: text,
				})
				if err == nil {
					err = op.EndLater(t.Context(), auditlog.Outcome{
						Result: auditlog.Success, Direction: auditlog.ServerToClient, Answer: auditlog.Payload{Received: text}, Response: text,
						Duration: time.Duration(call%100) * time.Millisecond,
					})
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := l.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	return tenth, hundredth
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

// TestVeryManyRecordsInBoundedMemory runs the commands that read a log over one
// of a million records, or as many as MCP_AUDIT_LARGE_RECORDS says, and prints
// what they cost.
func TestVeryManyRecordsInBoundedMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	home := clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", largeSecret)
	records := largeRecords(t)
	const bound = 64 << 20
	path := filepath.Join(t.TempDir(), logName)
	start := time.Now()
	tenth, hundredth := writeLarge(t, path, records)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%-60s %8s %8s %9s", "command", "lines", "seconds", "memory")
	report := func(what string, lines int64, took time.Duration, grown int64) {
		t.Logf("%-60s %8d %8.2f %5d MiB", what, lines, took.Seconds(), grown>>20)
	}
	report(fmt.Sprintf("write %d records, %d MiB", records, info.Size()>>20), int64(records), time.Since(start), 0)
	debug.FreeOSMemory() // what writing it took is not theirs
	run := func(args ...string) (count rowCounter) {
		start := time.Now()
		grown := peak(t, func() {
			root := New()
			var errs bytes.Buffer
			root.SetOut(&count)
			root.SetErr(&errs)
			root.SetArgs(args)
			if err := root.ExecuteContext(t.Context()); err != nil || errs.Len() > 0 {
				t.Errorf("%q: %v: %s", args, err, &errs)
			}
		})
		if grown > bound {
			t.Errorf("%q took %d MiB of memory", args, grown>>20)
		}
		report(strings.NewReplacer(path, "LOG", home+"/", "").Replace(strings.Join(args, " ")), count.rows, time.Since(start), grown)
		return count
	}
	stamp := func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }
	run("verify", path)
	run("verify", "--jobs", "1", "--strict", path)
	run("verify", "--since", strconv.Itoa(records*9/10), path)
	for _, seq := range []int{7, records / 2} {
		out := filepath.Join(home, strconv.Itoa(seq))
		run("prove", "--seq", strconv.Itoa(seq), "--output", out, path)
		if _, err := os.Stat(out + ".tlog-proof"); err != nil {
			t.Error(err)
		}
	}
	if count := run("tail", "-n", "1000", path); count.rows < 1000 {
		t.Errorf("tail printed %d lines", count.rows)
	}
	run("index", path)
	size, err := os.Stat(path + ".index")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the index has %d MiB", size.Size()>>20)
	firstPages(t, path, records, report)
	if count := run("export", path); count.rows != int64(records/2) {
		t.Errorf("%d rows", count.rows)
	}
	run("export", "--format", "csv", "--since", stamp(tenth), path)
	run("export", "--format", "cef", "--since", stamp(tenth), path)
	run("export", "--tool", "tool_7", "--principal", "user-7", path)
	run("export", "--since", stamp(hundredth), path)
	run("index", path)
}

// firstPages measures the dashboard's first answers over the log, whose index
// is up to date.
func firstPages(t *testing.T, path string, records int, report func(string, int64, time.Duration, int64)) {
	t.Helper()
	h, err := dashboard.New(dashboard.Options{Name: "large", Path: path, Log: &LogReader{Path: path}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}()
	get := func(address string) (int, []byte) {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		h.ServeHTTP(w, r)
		return w.Code, w.Body.Bytes()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if code, _ := get("/api/entries?limit=1"); code == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the index is not opened")
		}
	}
	first := time.Duration(0)
	for i, address := range []string{
		"/", "/api/status", "/api/entries?limit=12", "/api/stats", "/api/series?by=all&hours=24", // the first page
		"/api/series?by=principal&hours=24", "/api/entries", "/api/entries?tool_name=tool_7&principal=user-7", "/api/entries?outcome=denied",
		"/api/entries?client_id=nobody", "/api/entries?text=never+to+be+found", fmt.Sprintf("/api/operations/seq-%d", records/2),
	} {
		start := time.Now()
		var code int
		var body []byte
		grown := peak(t, func() { code, body = get(address) })
		took := time.Since(start)
		if code != http.StatusOK {
			t.Errorf("%s: %d %.300s", address, code, body)
		}
		if grown > 64<<20 {
			t.Errorf("%s took %d MiB of memory", address, grown>>20)
		}
		report("dashboard "+address, int64(bytes.Count(body, []byte(`"mark"`))), took, grown)
		if i < 5 {
			first += took
		}
	}
	report("dashboard, the first page", 0, first, 0)
	if first > firstPageBudget {
		t.Errorf("the first page takes %v, the budget is %v", first, firstPageBudget)
	}
}

// firstPageBudget is what the answers of the first page may take together: 300
// ms, and as much again for a machine that is at work on something else.
const firstPageBudget = 600 * time.Millisecond
