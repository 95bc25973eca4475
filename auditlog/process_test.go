package auditlog_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// The tests of several processes run this test binary again, as a worker: see
// TestWorker.

// sharedKey is the signing key of all workers.
var sharedKey = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize))

func sharedConfig(path string, durability auditlog.Durability) (auditlog.Config, error) {
	store, err := storeAt(path, nil)
	return auditlog.Config{
		Store: store, Name: "audit.example/shared", Secret: []byte(testSecret), SigningKey: sharedKey,
		Durability: durability, CheckpointEvery: 50,
	}, err
}

// worker starts a process that writes to a log with so many goroutines, each
// so many calls (0: until it is killed). It prints the ids of acknowledged
// intents and outcomes.
func worker(path string, durability auditlog.Durability, goroutines, calls int) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^TestWorker$", "-test.count=1")
	cmd.Env = append(os.Environ(), "AUDITLOG_WORKER="+path, fmt.Sprintf("AUDITLOG_WORKER_PLAN=%d %d %d", durability, goroutines, calls))
	cmd.Stderr = os.Stderr
	return cmd
}

// limitWorker limits the worker's files where the system can; nil: it cannot.
var limitWorker func() error

// TestWorker is no test: it is the process that worker starts.
func TestWorker(t *testing.T) {
	path := os.Getenv("AUDITLOG_WORKER")
	if path == "" {
		return
	}
	var durability, goroutines, calls int
	if _, err := fmt.Sscan(os.Getenv("AUDITLOG_WORKER_PLAN"), &durability, &goroutines, &calls); err != nil {
		t.Fatal(err)
	}
	cfg, err := sharedConfig(path, auditlog.Durability(durability))
	if err != nil {
		t.Fatal(err)
	}
	if size := os.Getenv("AUDITLOG_WORKER_ROTATE"); size != "" {
		if cfg.Rotation.Size, err = strconv.ParseInt(size, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	if limitWorker != nil {
		if err := limitWorker(); err != nil {
			t.Fatal(err)
		}
	}
	l, err := auditlog.Open(context.Background(), cfg)
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for n := 0; calls == 0 || n < calls; n++ {
				op, err := l.Begin(context.Background(), anIntent())
				if err != nil {
					fmt.Println("failed", err)
					os.Exit(1)
				}
				_, _ = os.Stdout.WriteString("intent " + op.ID() + "\n")
				if err := op.End(context.Background(), anOutcome()); err != nil {
					fmt.Println("failed", err)
					os.Exit(1)
				}
				_, _ = os.Stdout.WriteString("outcome " + op.ID() + "\n")
			}
		})
	}
	wg.Wait()
	if err := l.Close(context.Background()); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestManyProcessesShareOneLogWithoutGapOrFork(t *testing.T) {
	for _, durability := range []auditlog.Durability{auditlog.Written, auditlog.Durable} {
		t.Run(durability.String(), func(t *testing.T) {
			path := logPath(t)
			const processes, goroutines, calls = 8, 8, 4
			var wg sync.WaitGroup
			for range processes {
				wg.Go(func() {
					out, err := worker(path, durability, goroutines, calls).Output()
					if err != nil || bytes.Count(out, []byte("outcome ")) != goroutines*calls {
						t.Errorf("worker: %v\n%s", err, out)
					}
				})
			}
			wg.Wait()
			list := check(t, path)
			if n := count(list, "intent"); n != processes*goroutines*calls {
				t.Errorf("%d intents", n)
			}
			if open := openIntents(list); len(open) > 0 {
				t.Errorf("intents %v have no outcome", open)
			}
			runs := map[any]bool{}
			for _, r := range list {
				if r.kind == "start" {
					runs[r.body["run"]] = true
				}
			}
			if len(runs) != processes || count(list, "stop") != processes || count(list, "genesis") != 1 {
				t.Errorf("%d runs, %d stops", len(runs), count(list, "stop"))
			}
		})
	}
}

func TestNothingAcknowledgedIsLostWhenProcessesAreKilled(t *testing.T) {
	path := logPath(t)
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	if n, err := strconv.Atoi(os.Getenv("AUDITLOG_KILL_ROUNDS")); err == nil {
		rounds = n
	}
	var promised []string
	for round := range rounds {
		durability := auditlog.Durability(round % 2)
		workers := []*exec.Cmd{worker(path, durability, 4, 0), worker(path, durability, 4, 0)}
		outs := make([][]string, len(workers))
		var wg sync.WaitGroup
		for i, cmd := range workers {
			pipe, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				lines := bufio.NewScanner(pipe)
				// Killed after a number of acknowledged records that differs from
				// round to round, in the middle of the next ones.
				for limit := 20 + 37*round%200; lines.Scan(); limit-- {
					outs[i] = append(outs[i], lines.Text())
					if limit == 0 {
						_ = cmd.Process.Kill()
					}
				}
				_ = cmd.Wait()
			})
		}
		wg.Wait()
		for _, out := range outs {
			for _, line := range out {
				if strings.HasPrefix(line, "failed") {
					t.Fatalf("round %d: %s", round, line)
				}
				if kind, id, ok := strings.Cut(line, " "); ok && len(id) == 36 {
					promised = append(promised, kind+" "+id)
				}
			}
		}
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
	list := check(t, path)
	have := map[string]bool{}
	unknown := 0
	for _, r := range list {
		if id, ok := r.body["audit_operation_id"].(string); ok {
			have[r.kind+" "+id] = true
		}
		if r.body["outcome"] == "unknown" {
			unknown++
		}
	}
	for _, p := range promised {
		if !have[p] {
			t.Errorf("acknowledged and lost: %s", p)
		}
	}
	if open := openIntents(list); len(open) > 0 {
		t.Errorf("intents %v have no outcome", open)
	}
	if left, _ := os.ReadDir(path + ".runs"); len(left) > 0 {
		t.Errorf("%d runs are still registered", len(left))
	}
	t.Logf("%d records, %d promises kept, %d closed as unknown", len(list), len(promised), unknown)
}

func TestAStartOnALargeLogReadsOnlyItsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in full without the race detector")
	}
	size := int64(1 << 30)
	if testing.Short() {
		size = 64 << 20
	}
	path := quickPath(t)
	l := setup{}.open(t, path)
	in := anIntent()
	in.Params = auditlog.Payload{Received: []byte(`"` + strings.Repeat("x", 900<<10) + `"`)}
	for l.Status().Bytes < size {
		op, err := l.Begin(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		if err := op.End(context.Background(), anOutcome()); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	best := time.Hour
	for range 5 {
		start := time.Now()
		l := setup{}.open(t, path)
		best = min(best, time.Since(start))
		closeLog(t, l)
	}
	if best > 50*time.Millisecond {
		t.Errorf("opening a log of %s MiB took %v", strconv.FormatInt(size>>20, 10), best)
	}
	t.Logf("opening a log of %d MiB took %v", size>>20, best)
}
