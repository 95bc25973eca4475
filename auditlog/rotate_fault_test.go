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

// rotatingFaults is the rotation of the tests that inject faults: several
// segments in the few records of a scenario, all but one deleted.
var rotatingFaults = map[string]auditlog.Rotation{
	"rotate": {Size: 4 << 10},
	"retain": {Size: 4 << 10, KeepFiles: 1, Compress: true},
}

// holdsAll is holds for a log of several files. lost says that segments may
// have been deleted by retention.
func holdsAll(t *testing.T, path string, a acknowledged, lost bool) {
	t.Helper()
	var list []parsed
	if lost {
		verifyAll(t, path, "outcome_unknown", "partial_history", "outcome_missing", "gap")
		for _, name := range files(t, path) {
			list = append(list, records(t, name)...)
		}
		return
	}
	list = checkAll(t, path)
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

func TestEveryCallOfARotationMayFail(t *testing.T) {
	faults := map[string]error{"ENOSPC": syscall.ENOSPC, "EIO": syscall.EIO, "short": errShort, "late": errLate, "kill": errKill}
	step := 1
	if testing.Short() {
		step = 7
	}
	for name, fault := range faults {
		for kind, rotation := range rotatingFaults {
			for _, lasting := range []bool{false, true} {
				if errors.Is(fault, errKill) && !lasting {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/lasting=%v", name, kind, lasting), func(t *testing.T) {
					t.Parallel()
					for n := 0; rotationFails(t, n, fault, rotation, lasting) && !t.Failed(); n += step {
					}
				})
			}
		}
	}
}

// errKill ends the process at a call: it and everything after it fails, and a
// write lands half.
var errKill = errors.New("killed")

// rotationFails runs the scenario on a log that is rotated, with call n
// failing, then opens the log again without faults. It reports whether the
// scenario came to call n.
func rotationFails(t *testing.T, n int, fault error, rotation auditlog.Rotation, lasting bool) bool {
	path := quickPath(t)
	var what atomic.Value
	layer := newFaulty(func(i int, op, name string) error {
		if i == n {
			what.Store(op + " " + name)
		}
		switch {
		case errors.Is(fault, errKill):
			if i < n {
				return nil
			}
			if i == n && op == "write" {
				return errShort
			}
			return syscall.EIO
		case errors.Is(fault, errLate):
			// What landed cannot be taken back either.
			if i >= n && op == "truncate" || i == n && op != "write" {
				return syscall.EIO
			}
			if i != n && !(lasting && i > n && op == "write") {
				return nil
			}
			return fault
		case i != n && !(lasting && i > n):
			return nil
		case errors.Is(fault, errShort) && op != "write":
			if i != n {
				return nil
			}
			return syscall.EIO
		}
		return fault
	})
	change := func(c *auditlog.Config) { c.Rotation = rotation }
	a := scenario(setup{fs: layer, change: change}.config(t, path))
	l, err := auditlog.Open(context.Background(), setup{change: change}.config(t, path))
	if err != nil {
		t.Errorf("after a failure of call %d (%v): Open: %v", n, what.Load(), err)
		return false
	}
	call(t, l)
	closeLog(t, l)
	holdsAll(t, path, a, rotation.KeepFiles > 0)
	if t.Failed() {
		t.Logf("after a failure of call %d (%v): %s", n, what.Load(), allKinds(t, path))
	}
	layer.mu.Lock()
	defer layer.mu.Unlock()
	return layer.calls > n
}

func TestARotationThatCannotBePreparedIsPutOff(t *testing.T) {
	path := quickPath(t)
	layer := newFaulty(func(_ int, op, name string) error {
		if op == "write" && strings.Contains(name, ".log.tmp-") {
			return syscall.ENOSPC
		}
		return nil
	})
	c := newClock(time.Now())
	s := setup{fs: layer, change: func(cfg *auditlog.Config) { cfg.Rotation.Size, cfg.Now = 3<<10, c.now }}
	l := s.open(t, path)
	for range 10 {
		call(t, l)
	}
	if st := l.Status(); !st.Healthy || st.Segment != 0 {
		t.Fatalf("status %+v", st)
	}
	layer.set(nil)
	c.advance(11 * time.Second)
	call(t, l)
	if st := l.Status(); st.Segment != 1 {
		t.Fatalf("status %+v", st)
	}
	closeLog(t, l)
	checkAll(t, path)
}
