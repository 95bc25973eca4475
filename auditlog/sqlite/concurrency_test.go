//go:build cgo

package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// Readers see the log as it was at one moment, and the writer does not wait for
// them, however long they stay there.
func TestReadersDoNotHoldTheWriterUp(t *testing.T) {
	path := dbPath(t)
	l := openLog(t, path, Options{})
	call(t, l)
	held, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	then, err := held.Size()
	if err != nil {
		t.Fatal(err)
	}
	half, err := held.Lines()
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	if _, err := half.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var readers, writers sync.WaitGroup
	var readings atomic.Int64
	readers.Go(func() {
		for ctx.Err() == nil {
			if r := verify(t, path); !onlyWarnings(r) {
				t.Errorf("a reader found %+v", r.Findings)
				return
			}
			readings.Add(1)
		}
	})
	const goroutines, calls = 4, 100
	start := time.Now()
	for range goroutines {
		writers.Go(func() {
			for range calls {
				call(t, l)
			}
		})
	}
	writers.Wait()
	took := time.Since(start)
	stop()
	readers.Wait()
	if now, err := held.Size(); err != nil || now != then {
		t.Errorf("the held reader moved from %d to %d, %v", then, now, err)
	}
	if err := held.Refresh(); err != nil {
		t.Fatal(err)
	}
	if now, err := held.Size(); err != nil || now != int64(len(lines(t, path))) || now <= then {
		t.Errorf("the refreshed reader sees %d bytes, %v", now, err)
	}
	closeLog(t, l)
	t.Logf("%d calls in %v beside %d verifications", goroutines*calls, took, readings.Load())
}

// While another program keeps SQLite's own write lock, nothing is acknowledged,
// and what is asked is written when the lock is given back.
func TestAForeignWriteLockFailsCallsUntilItEnds(t *testing.T) {
	path := dbPath(t)
	store, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), auditlog.Config{
		Store: store, Name: "audit.example/sqlite", Secret: []byte(testSecret), SigningKey: testKey, CheckpointAfter: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	call(t, l)
	must(t, store.db, "PRAGMA busy_timeout=50")
	other := attack(t, path)
	tx, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Event(context.Background(), event())
	if !errors.Is(err, auditlog.ErrUnavailable) || !strings.Contains(err.Error(), "another program") {
		t.Errorf("%v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	call(t, l)
	closeLog(t, l)
	if r := verify(t, path); r.Exit != 0 && !onlyWarnings(r) {
		t.Errorf("%+v", r.Findings)
	}
}

func event() auditlog.Event {
	return auditlog.Event{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "notifications/initialized"},
		Request: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`),
	}
}

func onlyWarnings(r *auditlog.Report) bool {
	for _, f := range r.Findings {
		if f.Class != auditlog.ClassWarning {
			return false
		}
	}
	return true
}

// A full disk fails calls, loses nothing that was acknowledged, and the log goes
// on when there is space again.
func TestAFullDatabaseRefusesCallsAndRecovers(t *testing.T) {
	path := dbPath(t)
	store, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), auditlog.Config{
		Store: store, Name: "audit.example/sqlite", Secret: []byte(testSecret), SigningKey: testKey, CheckpointAfter: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	limit := func(pages int) {
		if err := store.Lock(); err != nil {
			t.Fatal(err)
		}
		must(t, store.db, fmt.Sprintf("PRAGMA max_page_count=%d", pages))
		if err := store.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	limit(40)
	acknowledged := 0
	for {
		if _, err = l.Event(context.Background(), event()); err != nil {
			break
		}
		acknowledged++
	}
	if !errors.Is(err, auditlog.ErrUnavailable) || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("after %d events: %v", acknowledged, err)
	}
	if s := l.Status(); s.Healthy {
		t.Errorf("a full log is healthy: %+v", s)
	}
	limit(100_000)
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err = l.Event(context.Background(), event()); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the log did not go on:", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	closeLog(t, l)
	r := verify(t, path)
	if !onlyWarnings(r) || r.Kinds["event"] != acknowledged+1 || r.Kinds["disk_full"] != 1 {
		t.Errorf("%d acknowledged, %v, %+v", acknowledged+1, r.Kinds, r.Findings)
	}
}

// A flush that failed is made up for: what SQLite's log file holds is written
// anew, into the database.
func TestAFailedFlushIsMadeUpFor(t *testing.T) {
	path := dbPath(t)
	layer := &failing{FS: fsys.OS()}
	store, err := New(path, Options{FS: layer, Synchronous: Normal})
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), auditlog.Config{
		Store: store, Name: "audit.example/sqlite", Secret: []byte(testSecret), SigningKey: testKey, CheckpointAfter: -1, Durability: auditlog.Durable,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		call(t, l)
		layer.failOnce.Store(true)
		call(t, l)
		if layer.failOnce.Load() {
			t.Fatal("no flush was asked for")
		}
	}
	closeLog(t, l)
	if r := verify(t, path); !onlyWarnings(r) || r.Kinds["intent"] != 6 || r.Kinds["io_error"] == 0 {
		t.Errorf("%v %+v", r.Kinds, r.Findings)
	}
}

func TestTheViewShowsEntriesAsTheyAreFinished(t *testing.T) {
	path := dbPath(t)
	l := openLog(t, path, Options{})
	call(t, l)
	if _, err := l.Event(context.Background(), event()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(context.Background(), auditlog.Intent{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "ping"}, Request: []byte(`{}`),
	}); err != nil {
		t.Fatal(err)
	}
	db := connect(path, "ro")
	defer db.Close()
	rows, err := db.Query("SELECT * FROM audit_entries LIMIT 0")
	if err != nil {
		t.Fatal(err)
	}
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	rows.Close()
	want := "id timestamp audit_operation_id outcome direction transport method request_id mcp_name tool_name params result error duration_ms client_id server_id principal policy"
	if got := strings.Join(columns, " "); got != want {
		t.Errorf("columns %s", got)
	}
	var n int
	var params, result, principal, policy, outcome, method string
	var duration int64
	if err := db.QueryRow("SELECT count(*) FROM audit_entries").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d entries, %v", n, err)
	}
	err = db.QueryRow("SELECT params,result,principal,policy,outcome,method,duration_ms FROM audit_entries WHERE tool_name='read_file'").
		Scan(&params, &result, &principal, &policy, &outcome, &method, &duration)
	if err != nil {
		t.Fatal(err)
	}
	if params != `{"arguments":{"path":"a"},"name":"read_file"}` || result != `{"content":[{"text":"ok","type":"text"}]}` ||
		principal != `{"subject":"alice"}` || policy != `{"decision":"allow","rule_id":"r1"}` || outcome != "success" || method != "tools/call" || duration != 18 {
		t.Error(params, result, principal, policy, outcome, method, duration)
	}
	for _, query := range []string{
		"SELECT * FROM audit_entries WHERE tool_name=? ", "SELECT * FROM audit_entries WHERE method=?", "SELECT * FROM audit_entries WHERE client_id=?",
		"SELECT * FROM audit_entries WHERE audit_operation_id=?", "SELECT * FROM audit_entries WHERE timestamp>=? ORDER BY timestamp",
	} {
		plan := ""
		rows, err := db.Query("EXPLAIN QUERY PLAN "+query, "x")
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var a, b, c int
			var text string
			if err := rows.Scan(&a, &b, &c, &text); err != nil {
				t.Fatal(err)
			}
			plan += text + "; "
		}
		rows.Close()
		if !strings.Contains(plan, "SEARCH o USING INDEX records_") || strings.Contains(plan, "SCAN") || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("%s: %s", query, plan)
		}
	}
	closeLog(t, l)
}

// Openings stand in a table of their own and in their places in the export.
func TestOpeningsAreKeptApartAndExportedInTheirPlace(t *testing.T) {
	data, err := io.ReadAll(vector(t))
	if err != nil {
		t.Fatal(err)
	}
	path := dbPath(t)
	store, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Open(strings.Repeat("r", 22)), store.Lock(), store.Create()); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Stat(); err != nil {
		t.Fatal(err)
	}
	if err := store.Append(data, 0); err != nil {
		t.Fatal(err)
	}
	if info, err := store.Stat(); err != nil || info.Size != int64(len(data)) {
		t.Errorf("size %d of %d, %v", info.Size, len(data), err)
	}
	var n int
	if err := store.db.QueryRow("SELECT count(*) FROM openings WHERE field='params'").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d openings, %v", n, err)
	}
	if err := errors.Join(store.Unlock(), store.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(lines(t, path), data) {
		t.Error("the export is not what was written")
	}
	r, err := OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	report, err := auditlog.Verify(context.Background(), []auditlog.Source{r.Source()}, auditlog.VerifyOptions{Secret: []byte("example secret, never use it 0001"), Strict: true})
	if err != nil || report.Exit != 0 || len(report.Findings) > 0 {
		t.Errorf("%v %+v", err, report)
	}
	db := connect(path, "ro")
	defer db.Close()
	var params string
	if err := db.QueryRow("SELECT params FROM audit_entries").Scan(&params); err != nil || !strings.HasPrefix(params, `{"arguments":{`) {
		t.Errorf("params %s, %v", params, err)
	}
}

func TestOddPathsAreTheirOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?mode=memory&x#y%41.db")
	l := openLog(t, path, Options{})
	call(t, l)
	closeLog(t, l)
	if r := verify(t, path); r.Exit != 0 || r.Records == 0 {
		t.Errorf("%+v", r)
	}
}
