package auditlog_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// rotatingWorker is a worker whose log is rotated at so many bytes.
func rotatingWorker(path string, goroutines, calls int) *exec.Cmd {
	cmd := worker(path, auditlog.Written, goroutines, calls)
	cmd.Env = append(cmd.Env, "AUDITLOG_WORKER_ROTATE=32768")
	return cmd
}

func TestProcessesFollowEachOthersRotations(t *testing.T) {
	path := logPath(t)
	const processes, goroutines, calls = 4, 4, 25
	// One that does not rotate, and is idle meanwhile, follows too.
	idle, err := sharedConfig(path, auditlog.Written)
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), idle)
	if err != nil {
		t.Fatal(err)
	}
	op, err := l.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range processes {
		wg.Go(func() {
			out, err := rotatingWorker(path, goroutines, calls).Output()
			if err != nil || bytes.Count(out, []byte("outcome ")) != goroutines*calls {
				t.Errorf("worker: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Errorf("End in a log that was rotated meanwhile: %v", err)
	}
	if st := l.Status(); !st.Healthy || st.Segment < 4 {
		t.Errorf("status %+v", st)
	}
	closeLog(t, l)
	list := checkAll(t, path)
	if n := count(list, "intent"); n != processes*goroutines*calls+1 {
		t.Errorf("%d intents", n)
	}
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
}

func TestAnIdleProcessGoesOnBehindDeletedSegments(t *testing.T) {
	for _, compress := range []bool{false, true} {
		path := quickPath(t)
		first := setup{}.open(t, path)
		op, err := first.Begin(context.Background(), anIntent())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := first.Checkpoint(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := op.End(context.Background(), anOutcome()); err != nil {
			t.Fatal(err)
		}
		rotation := auditlog.Rotation{Size: 4 << 10, Compress: compress}
		if !compress {
			rotation.KeepFiles = 1
		}
		second := rotating(rotation).open(t, path)
		for range 30 {
			call(t, second)
		}
		gone := func() bool {
			names, err := filepath.Glob(path + ".000000.*Z")
			return err == nil && len(names) == 0 && len(archives(t, path)) > 0
		}
		eventually(t, "the first segment is gone", gone)
		call(t, first)
		if st := first.Status(); !st.Healthy || st.OpenIntents != 0 {
			t.Errorf("status %+v", st)
		}
		call(t, second)
		closeLog(t, first)
		closeLog(t, second)
	}
}

func TestNothingIsLostWhenRotatingProcessesAreKilled(t *testing.T) {
	path := logPath(t)
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	promised := map[string]bool{}
	var mu sync.Mutex
	for round := range rounds {
		var wg sync.WaitGroup
		for range 2 {
			cmd := rotatingWorker(path, 4, 0)
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				lines := bufio.NewScanner(pipe)
				for limit := 30 + 41*round%170; lines.Scan(); limit-- {
					if kind, id, ok := strings.Cut(lines.Text(), " "); ok && len(id) == 36 {
						mu.Lock()
						promised[kind+" "+id] = true
						mu.Unlock()
					} else if kind == "failed" {
						t.Error(lines.Text())
					}
					if limit == 0 {
						_ = cmd.Process.Kill()
					}
				}
				_ = cmd.Wait()
			})
		}
		wg.Wait()
	}
	cfg, err := sharedConfig(path, auditlog.Written)
	if err != nil {
		t.Fatal(err)
	}
	l, err := auditlog.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLog(t, l)
	list := checkAll(t, path)
	for _, r := range list {
		if id, ok := r.body["audit_operation_id"].(string); ok {
			delete(promised, r.kind+" "+id)
		}
	}
	for p := range promised {
		t.Errorf("acknowledged and lost: %s", p)
	}
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
	if left, _ := os.ReadDir(path + ".runs"); len(left) > 0 {
		t.Errorf("%d runs are still registered", len(left))
	}
	t.Logf("%d records in %d files", len(list), len(files(t, path)))
}
