package auditlog_test

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// limitFiles gives this process the limit of the environment on the size of its
// files, which also reaches writes that SQLite makes by itself: with "fail" a
// write beyond it fails (EFBIG), else it kills the process, mostly in the
// middle of that write.
func limitFiles() error {
	size, mode, ok := strings.Cut(os.Getenv("AUDITLOG_WORKER_LIMIT"), " ")
	if !ok {
		return nil
	}
	n, err := strconv.ParseUint(size, 10, 64)
	if err != nil {
		return err
	}
	if mode == "fail" {
		signal.Ignore(syscall.SIGXFSZ)
	}
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: n})
}

func init() { limitWorker = limitFiles }

func TestNoWriteThatFailsOrKillsLosesWhatWasAcknowledged(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 8
	}
	unit := 9 << 10
	if isDatabase(logName()) {
		unit = 48 << 10 // a commit writes whole pages
	}
	stopped, kept := 0, 0
	for _, mode := range []string{"fail", "kill"} {
		for round := 0; round < 40; round += step {
			// Not only at the end of a page.
			limit := 8<<10 + round*unit + 512*(round%5) + round%3
			path := quickPath(t)
			cmd := worker(path, auditlog.Durability(round%2), 2, 60)
			cmd.Env = append(cmd.Env, "AUDITLOG_WORKER_LIMIT="+strconv.Itoa(limit)+" "+mode)
			cmd.Stderr = nil // a killed Go program says much
			out, err := cmd.Output()
			if err != nil {
				stopped++
			}
			cfg, err := sharedConfig(path, auditlog.Written)
			if err != nil {
				t.Fatal(err)
			}
			l, err := auditlog.Open(context.Background(), cfg)
			if err != nil {
				t.Fatalf("%s at %d bytes: the next start: %v\n%s", mode, limit, err, out)
			}
			closeLog(t, l)
			list := check(t, path)
			have := map[string]bool{}
			for _, r := range list {
				if id, ok := r.body["audit_operation_id"].(string); ok {
					have[r.kind+" "+id] = true
				}
			}
			for line := range bytes.Lines(out) {
				promise := strings.TrimSpace(string(line))
				if kind, id, ok := strings.Cut(promise, " "); !ok || kind == "failed" || len(id) != 36 {
					continue
				}
				if kept++; !have[promise] {
					t.Errorf("%s at %d bytes: acknowledged and lost: %s", mode, limit, promise)
				}
			}
			if open := openIntents(list); len(open) > 0 {
				t.Errorf("%s at %d bytes: intents %v have no outcome", mode, limit, open)
			}
		}
	}
	if stopped == 0 || kept == 0 {
		t.Errorf("%d workers were stopped, %d promises checked", stopped, kept)
	}
	t.Logf("%d workers were stopped, %d promises kept", stopped, kept)
}
