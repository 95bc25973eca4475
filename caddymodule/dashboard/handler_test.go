//go:build cgo

package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// plainLog is a log of one file.
type plainLog struct{ path string }

func (l plainLog) Files() ([]string, error) { return []string{l.path}, nil }

func (l plainLog) Verify(ctx context.Context, from *auditlog.Cursor) (*auditlog.Report, error) {
	return auditlog.Verify(ctx, []auditlog.Source{auditlog.FileSource(l.path)}, auditlog.VerifyOptions{Cursor: from, Jobs: 1})
}

func (l plainLog) Prove(context.Context, Wanted) (*Proof, error) {
	return nil, auditlog.ErrNoCheckpoint
}

func (l plainLog) Beside() []Note { return nil }

func newLog(t *testing.T) (*auditlog.Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	keys, err := auditlog.LoadOrCreateKeyring(filepath.Join(filepath.Dir(path), "keys.json"), auditlog.DefaultKeyID, "")
	if err != nil {
		t.Fatal(err)
	}
	store, err := jsonl.New(path, jsonl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := auditlog.Open(t.Context(), auditlog.Config{Store: store, Keys: keys, Name: "test/log", CheckpointEvery: 100, CheckpointAfter: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close(context.Background()) })
	return log, path
}

func call(log *auditlog.Log, tool string) error {
	op, err := log.Begin(context.Background(), auditlog.Intent{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ToolName: tool, MCPName: tool, ServerID: "files", ClientID: "desktop"},
		Params:  auditlog.Payload{Received: []byte(`{"name":"` + tool + `"}`)}, Request: []byte(`{}`),
	})
	if err != nil {
		return err
	}
	return op.End(context.Background(), auditlog.Outcome{Result: auditlog.Success, Duration: time.Millisecond})
}

func serve(t *testing.T, o Options) (*Handler, string) {
	t.Helper()
	h, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return h, server.URL + "/"
}

func fetch(t *testing.T, url string, into any) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && into != nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// A stream has each call once it is closed, whatever is written meanwhile, and
// the figures count them all.
func TestStreamsAndFiguresKeepUpWithWriters(t *testing.T) {
	log, path := newLog(t)
	_, base := serve(t, Options{Name: "test", Path: path, Log: plainLog{path}})
	var stats statsAnswer
	eventually(t, "the index", func() bool { return fetch(t, base+"api/stats", &stats) == http.StatusOK })
	const streams, writers, calls = 3, 4, 60
	var ready, done sync.WaitGroup
	for range streams {
		ready.Add(1)
		done.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"api/stream", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				ready.Done()
				return
			}
			defer resp.Body.Close()
			scan := bufio.NewScanner(resp.Body)
			scan.Buffer(nil, 4<<20)
			closed, first := map[string]bool{}, true
			for len(closed) < writers*calls && scan.Scan() {
				data, ok := strings.CutPrefix(scan.Text(), "data: ")
				if !ok {
					continue
				}
				if first {
					ready.Done()
					first = false
				}
				var m live
				if err := json.Unmarshal([]byte(data), &m); err != nil {
					t.Error(err)
				}
				if m.Skipped {
					// A reader who is behind asks for the list.
					var list entriesAnswer
					fetch(t, base+"api/entries?limit=500", &list)
					m.Entries = append(m.Entries, list.Entries...)
				}
				for _, e := range m.Entries {
					if e.Kind == "operation" {
						closed[e.Operation] = true
					}
				}
			}
			if len(closed) != writers*calls {
				t.Errorf("%d calls came", len(closed))
			}
		})
	}
	ready.Wait()
	for range writers {
		done.Go(func() {
			for i := range calls {
				if err := call(log, fmt.Sprintf("tool_%d", i%5)); err != nil {
					t.Error(err)
				}
				fetch(t, base+"api/entries?limit=5", nil)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	done.Wait()
	eventually(t, "the figures", func() bool {
		fetch(t, base+"api/stats", &stats)
		return stats.TotalToday == writers*calls && len(stats.TopTools) == 5
	})
}

// What cannot be recorded is not shown.
func TestReadingsThatCannotBeRecordedAreRefused(t *testing.T) {
	log, path := newLog(t)
	if err := call(log, "read_file"); err != nil {
		t.Fatal(err)
	}
	var fails atomic.Bool
	fails.Store(true)
	var recorded atomic.Int64
	_, base := serve(t, Options{Path: path, Log: plainLog{path}, Record: func(context.Context, auditlog.Access) error {
		if fails.Load() {
			return errors.New("the disk is full")
		}
		recorded.Add(1)
		return nil
	}})
	eventually(t, "the index", func() bool { return fetch(t, base+"api/stats", nil) == http.StatusOK })
	for _, path := range []string{"entries", "stream", "operations/seq-2", "operations/seq-2/proof"} {
		if status := fetch(t, base+"api/"+path, nil); status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", path, status)
		}
	}
	fails.Store(false)
	for range 5 {
		if status := fetch(t, base+"api/entries", nil); status != http.StatusOK {
			t.Error(status)
		}
	}
	if recorded.Load() != 1 {
		t.Errorf("%d records for a page that is polled", recorded.Load())
	}
	if status := fetch(t, base+"api/operations/seq-2/proof", nil); status != http.StatusConflict {
		t.Errorf("a proof that no checkpoint covers: %d", status)
	}
}

// The background verification goes on from the one before and is not begun by
// every question.
func TestTheVerificationIsNotRunForEveryReader(t *testing.T) {
	log, path := newLog(t)
	for range 20 {
		if err := call(log, "read_file"); err != nil {
			t.Fatal(err)
		}
	}
	h, base := serve(t, Options{Path: path, Log: plainLog{path}})
	var first verifyAnswer
	eventually(t, "a report", func() bool { fetch(t, base+"api/verify", &first); return first.State == "done" })
	if first.Watermarks.Recorded != 42 || first.Report == nil || first.Report.Records != 42 {
		t.Fatalf("%+v", first.Watermarks)
	}
	var second verifyAnswer
	for range 5 {
		fetch(t, base+"api/verify", &second)
	}
	if !second.At.Equal(first.At) || second.Running {
		t.Error("it ran again at once")
	}
	h.verifier.mu.Lock()
	h.verifier.at = h.verifier.at.Add(-2 * verifyEvery)
	h.verifier.took = 0
	h.verifier.mu.Unlock()
	if err := call(log, "read_file"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another report", func() bool {
		fetch(t, base+"api/verify", &second)
		return second.State == "done" && second.Report.Watermarks.Records == 44
	})
}

func TestAStreamEndsWithTheHandler(t *testing.T) {
	_, path := newLog(t)
	h, err := New(Options{Path: path, Log: plainLog{path}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer server.Close()
	eventually(t, "the index", func() bool { return fetch(t, server.URL+"/api/stats", nil) == http.StatusOK })
	resp, err := http.Get(server.URL + "/api/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Error(err)
	}
	if status := fetch(t, server.URL+"/api/stats", nil); status != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d", status)
	}
}

func TestALogThatIsNotThereYetIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	_, base := serve(t, Options{Path: path, Log: absentLog{plainLog{path}}})
	resp, err := http.Get(base + "api/stats")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	var status statusAnswer
	eventually(t, "the reason", func() bool {
		return fetch(t, base+"api/status", &status) == http.StatusOK && strings.Contains(status.IndexError, "not there")
	})
}

type absentLog struct{ plainLog }

func (absentLog) Files() ([]string, error) { return nil, errors.New("the log is not there") }
