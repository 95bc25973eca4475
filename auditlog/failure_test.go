package auditlog_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// scenario is a short life of a log. It returns what was acknowledged.
type acknowledged struct {
	begun, ended []string // operation ids
	events       []uint64
	notes        [][]byte
}

func scenario(cfg auditlog.Config) (a acknowledged) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := auditlog.Open(ctx, cfg)
	if err != nil {
		return a
	}
	// One operation stays open for Close to end.
	if op, err := l.Begin(ctx, anIntent()); err == nil {
		a.begun = append(a.begun, op.ID())
	}
	for range 3 {
		op, err := l.Begin(ctx, anIntent())
		if err != nil {
			continue
		}
		a.begun = append(a.begun, op.ID())
		if op.End(ctx, anOutcome()) == nil {
			a.ended = append(a.ended, op.ID())
		}
	}
	if seq, err := l.Event(ctx, anEvent()); err == nil {
		a.events = append(a.events, seq)
	}
	if note, err := l.Checkpoint(ctx); err == nil {
		a.notes = append(a.notes, note)
	}
	if op, err := l.Begin(ctx, anIntent()); err == nil {
		a.begun = append(a.begun, op.ID())
		if op.End(ctx, anOutcome()) == nil {
			a.ended = append(a.ended, op.ID())
		}
	}
	_ = l.Close(ctx)
	return a
}

// holds checks that a log kept its promises: everything acknowledged is there,
// and every intent has its outcome.
func holds(t *testing.T, path string, a acknowledged) {
	t.Helper()
	list := check(t, path)
	have := map[string]bool{}
	for _, r := range list {
		if id, ok := r.body["audit_operation_id"].(string); ok {
			have[r.kind+" "+id] = true
		}
	}
	for _, id := range a.begun {
		if !have["intent "+id] {
			t.Errorf("the acknowledged intent of %s is lost", id)
		}
	}
	for _, id := range a.ended {
		if !have["outcome "+id] {
			t.Errorf("the acknowledged outcome of %s is lost", id)
		}
	}
	for _, seq := range a.events {
		if seq >= uint64(len(list)) || list[seq].kind != "event" {
			t.Errorf("the acknowledged event %d is lost", seq)
		}
	}
	for _, note := range a.notes {
		head, err := auditlog.ReadTreeHead(note)
		if err != nil || head.Size > uint64(len(list)) {
			t.Errorf("the log has %d records, fewer than the checkpoint it gave away: %+v, %v", len(list), head, err)
		}
	}
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

func TestEveryCallOfTheFileLayerMayFail(t *testing.T) {
	faults := map[string]error{"ENOSPC": syscall.ENOSPC, "EIO": syscall.EIO, "short": errShort, "late": errLate}
	for name, fault := range faults {
		for _, durability := range []auditlog.Durability{auditlog.Written, auditlog.Durable} {
			for _, lasting := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/lasting=%v", name, durability, lasting), func(t *testing.T) {
					t.Parallel()
					for n := 0; ; n++ {
						if !failAt(t, n, fault, durability, lasting) || t.Failed() {
							break
						}
					}
				})
			}
		}
	}
}

// failAt runs the scenario with call n failing, then opens the log again
// without faults. It reports whether the scenario came to call n.
func failAt(t *testing.T, n int, fault error, durability auditlog.Durability, lasting bool) bool {
	path := quickPath(t)
	var what atomic.Value
	layer := newFaulty(func(i int, op, name string) error {
		short := errors.Is(fault, errShort)
		if errors.Is(fault, errLate) {
			// What landed cannot be taken back either.
			if i >= n && op == "truncate" || i == n && op != "write" {
				return syscall.EIO
			}
			if i != n && !(lasting && i > n && op == "write") {
				return nil
			}
		}
		if i != n && !(lasting && i > n) || lasting && short && op != "write" {
			return nil
		}
		if i == n {
			what.Store(op + " " + name)
		}
		if short && op != "write" {
			return syscall.EIO
		}
		return fault
	})
	a := scenario(setup{fs: layer, change: func(c *auditlog.Config) { c.Durability = durability }}.config(t, path))
	l, err := auditlog.Open(context.Background(), setup{}.config(t, path))
	if err != nil {
		t.Errorf("after a failure of call %d (%v): Open: %v", n, what.Load(), err)
		return false
	}
	closeLog(t, l)
	holds(t, path, a)
	if t.Failed() {
		t.Logf("after a failure of call %d (%v): %s", n, what.Load(), strings.Join(kinds(t, path), " "))
	}
	layer.mu.Lock()
	defer layer.mu.Unlock()
	return layer.calls > n
}

// diskFull fails everything that needs space: writes and allocations.
func diskFull(_ int, op, name string) error {
	if op == "write" || op == "allocate" {
		return syscall.ENOSPC
	}
	return nil
}

// eventually waits until a condition holds, without polling for longer than
// the log's own retry takes.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestAFullDiskRefusesCallsAndRecovers(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	ctx := context.Background()
	op, err := l.Begin(ctx, anIntent())
	if err != nil {
		t.Fatal(err)
	}
	call(t, l)
	layer.set(diskFull)
	for range 3 {
		if _, err := l.Begin(ctx, anIntent()); !errors.Is(err, auditlog.ErrUnavailable) || !errors.Is(err, syscall.ENOSPC) && !strings.Contains(err.Error(), "full") {
			t.Fatalf("Begin on a full disk: %v", err)
		}
	}
	if _, err := l.Event(ctx, anEvent()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("Event on a full disk: %v", err)
	}
	if err := op.End(ctx, anOutcome()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("End on a full disk: %v", err)
	}
	l.Missed(2, "the disk is full")
	l.Missed(1, "later")
	if s := l.Status(); s.Healthy || s.Err == "" || s.Owed != 1 || s.MissedPending != 3 {
		t.Fatalf("status on a full disk: %+v", s)
	}
	layer.set(nil)
	// The very next call works: nothing waits for a timer.
	call(t, l)
	if s := l.Status(); !s.Healthy || s.Owed != 0 || s.MissedPending != 0 || s.Missed != 3 {
		t.Fatalf("status after space returned: %+v", s)
	}
	closeLog(t, l)
	list := check(t, path)
	if n := count(list, "disk_full"); n != 1 {
		t.Errorf("%d disk_full records: %v", n, kinds(t, path))
	}
	for i, r := range list {
		switch r.kind {
		case "gap":
			if r.body["count"] != 3.0 || r.body["reason"] != "the disk is full" || r.body["from"] == nil || r.body["to"] == nil {
				t.Errorf("gap record %v", r.body)
			}
		case "disk_full":
			if r.body["op"] != "write" || r.body["error"] == nil || r.body["offset"] == nil || list[i+1].kind != "checkpoint" {
				t.Errorf("disk_full record %v, followed by %s", r.body, list[i+1].kind)
			}
		}
	}
	if n := count(list, "gap"); n != 1 {
		t.Errorf("%d gap records", n)
	}
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

func TestOwedOutcomesAreWrittenWithoutBeingAskedWhenSpaceReturns(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	ctx := context.Background()
	var ops []*auditlog.Operation
	for range 5 {
		op, err := l.Begin(ctx, anIntent())
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
	layer.set(func(_ int, op, name string) error {
		if op == "write" && strings.HasSuffix(name, "audit.jsonl") {
			return syscall.EIO
		}
		return nil
	})
	for _, op := range ops {
		if err := op.End(ctx, anOutcome()); !errors.Is(err, auditlog.ErrUnavailable) {
			t.Fatalf("End: %v", err)
		}
		if err := op.End(ctx, anOutcome()); err != nil {
			t.Fatalf("a second End: %v", err)
		}
	}
	l.Missed(1, "eio")
	if s := l.Status(); s.Owed != 5 || s.RepeatedEnds != 5 || s.OpenOperations != 5 {
		t.Fatalf("status %+v", s)
	}
	layer.set(nil)
	eventually(t, "the owed outcomes are written", func() bool { return l.Status().Owed == 0 && l.Status().Healthy })
	closeLog(t, l)
	list := check(t, path)
	if open := openIntents(list); len(open) > 0 || count(list, "io_error") != 1 || count(list, "gap") != 1 {
		t.Errorf("open %v, records %v", open, kinds(t, path))
	}
}

func TestTheLastSpaceIsForOutcomes(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	ctx := context.Background()
	op, err := l.Begin(ctx, anIntent())
	if err != nil {
		t.Fatal(err)
	}
	// The first write fails; the space of the reserve, once freed, takes
	// writes, but the reserve cannot be set aside again.
	freed := atomic.Bool{}
	layer.set(func(_ int, op, name string) error {
		switch {
		case op == "remove" && strings.HasSuffix(name, "audit.reserve"):
			freed.Store(true)
		case op == "allocate", op == "write" && !freed.Load():
			return syscall.ENOSPC
		}
		return nil
	})
	if _, err := l.Begin(ctx, anIntent()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("Begin: %v", err)
	}
	if err := op.End(ctx, anOutcome()); err != nil {
		t.Fatalf("End: %v", err)
	}
	if _, err := l.Begin(ctx, anIntent()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("Begin while only the reserve is left: %v", err)
	}
	if s := l.Status(); s.Healthy {
		t.Fatalf("healthy on a full disk: %+v", s)
	}
	layer.set(nil)
	call(t, l)
	closeLog(t, l)
	want := "genesis start intent disk_full checkpoint outcome intent outcome stop checkpoint"
	if got := strings.Join(kinds(t, path), " "); got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
	check(t, path)
}

func TestAFailedFlushIsNeverTakenForASuccess(t *testing.T) {
	for _, times := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			path := quickPath(t)
			layer := newFaulty(nil)
			l := setup{fs: layer, change: func(c *auditlog.Config) { c.Durability = auditlog.Durable }}.open(t, path)
			call(t, l)
			var left, opened atomic.Int32
			left.Store(int32(times))
			layer.set(func(_ int, op, name string) error {
				if name != path {
					return nil
				}
				switch {
				case op == "sync" && left.Add(-1) >= 0:
					return syscall.EIO
				case op == "open":
					opened.Add(1)
				}
				return nil
			})
			op, err := l.Begin(context.Background(), anIntent())
			// One failure is made up for on a new descriptor; a second in a row
			// fails the call.
			if times == 1 && err != nil || times > 1 && !errors.Is(err, auditlog.ErrUnavailable) {
				t.Fatalf("Begin with %d failing flushes: %v", times, err)
			}
			if opened.Load() < 1 {
				t.Error("the flush was repeated on the same descriptor")
			}
			if op != nil {
				if err := op.End(context.Background(), anOutcome()); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, "the log is healthy again", func() bool { s := l.Status(); return s.Healthy && s.Owed == 0 })
			call(t, l)
			closeLog(t, l)
			list := check(t, path)
			if open := openIntents(list); len(open) > 0 || count(list, "io_error") != 1 {
				t.Errorf("open %v, records %v", open, kinds(t, path))
			}
		})
	}
}

func TestTheStateNeverRunsAheadOfDurableData(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	// At each moment that a state or checkpoint is put in its place, the log
	// must have been flushed at least that far.
	layer.onOp = func(op, name string) {
		if op != "rename" || !strings.HasSuffix(name, ".state") && !strings.HasSuffix(name, ".checkpoint") {
			return
		}
		layer.mu.Lock()
		durable := layer.synced[path]
		layer.mu.Unlock()
		if strings.HasSuffix(name, ".state") {
			if offset := stagedOffset(t, path); offset > durable {
				t.Errorf("a state for offset %d is published while %d bytes are durable", offset, durable)
			}
		}
	}
	l := setup{fs: layer, change: func(c *auditlog.Config) { c.CheckpointEvery = 7 }}.open(t, path)
	for range 300 {
		call(t, l)
	}
	if _, err := l.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	check(t, path)
}

func TestAWriteThatFailedButLandedIsAccountedFor(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(nil)
	l := setup{fs: layer}.open(t, path)
	ctx := context.Background()
	ending, err := l.Begin(ctx, anIntent())
	if err != nil {
		t.Fatal(err)
	}
	landed := func(_ int, op, name string) error {
		switch {
		case name != path:
			return nil
		case op == "truncate":
			return syscall.EIO
		case op == "write":
			return errLate
		}
		return nil
	}
	layer.set(landed)
	if _, err := l.Begin(ctx, anIntent()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("Begin: %v", err)
	}
	layer.set(nil)
	call(t, l)
	layer.set(landed)
	if err := ending.End(ctx, anOutcome()); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Fatalf("End: %v", err)
	}
	layer.set(nil)
	call(t, l)
	if s := l.Status(); !s.Healthy || s.OpenIntents != 0 || s.OpenOperations != 0 || s.Owed != 0 {
		t.Errorf("status %+v", s)
	}
	list := check(t, path)
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome: %v", open, kinds(t, path))
	}
	refused := 0
	for _, r := range list {
		if r.body["outcome"] == "internal_error" {
			refused++
		}
	}
	if refused != 1 {
		t.Errorf("%d outcomes say that the request was refused: %v", refused, kinds(t, path))
	}
	closeLog(t, l)
	check(t, path)
}
