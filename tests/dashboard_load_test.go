package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// cpuOf is the processor time of a process so far.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat := string(read(t, fmt.Sprintf("/proc/%d/stat", pid)))
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// callers sends calls over some connections until the context ends, and
// returns how long each took.
func callers(ctx context.Context, url string, body []byte) []time.Duration {
	const connections = 8
	var mu sync.Mutex
	var took []time.Duration
	var group sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	for range connections {
		group.Go(func() {
			var own []time.Duration
			for ctx.Err() == nil {
				r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
				if err != nil {
					return
				}
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Accept", "application/json, text/event-stream")
				began := time.Now()
				resp, err := client.Do(r)
				if err != nil {
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err == nil && resp.StatusCode == http.StatusOK {
					own = append(own, time.Since(began))
				}
			}
			mu.Lock()
			took = append(took, own...)
			mu.Unlock()
		})
	}
	group.Wait()
	slices.Sort(took)
	return took
}

// readers poll and stream the dashboard, as two open pages do.
func readers(ctx context.Context, base string) (answers *atomic.Int64, wait func()) {
	answers = new(atomic.Int64)
	var group sync.WaitGroup
	get := func(path string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			return
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			answers.Add(1)
		}
		io.Copy(io.Discard, resp.Body)
	}
	for range 2 {
		group.Go(func() { get("api/stream") })
		group.Go(func() {
			for ctx.Err() == nil {
				get("api/stats")
				get("api/entries?limit=50")
				get("api/series?by=tool")
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
			}
		})
	}
	return answers, group.Wait
}

// Readers of the dashboard cost callers next to nothing: the processor time of
// an audited call, in rounds with and without readers, is nearly the same. On a
// log of 1 GB with MCP_AUDIT_LONG=1, where the difference must be below 10 %;
// otherwise it is a small log, and what is tested is that calls and readers get
// their answers.
func TestReadersOfTheDashboardDoNotSlowCalls(t *testing.T) {
	c := harness.StartCaddy(t, harness.Site{
		Upstream: echoing(t), Handler: "server_id notes", Routes: "route /audit/* {\nmcp_audit_dashboard\n}",
	})
	base := dashboardOf(c)
	body := []byte(toolCall(1, "read_file", map[string]any{"path": "/notes/today.md", "text": strings.Repeat("payload ", 50)}))
	size, round, rounds := int64(5<<20), 500*time.Millisecond, 2
	if long() {
		size, round, rounds = 1<<30, 4*time.Second, 8
	}
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		callers(ctx, c.URL, body)
		cancel()
		if info, err := os.Stat(c.Log); err != nil || info.Size() >= size {
			break
		}
	}
	harness.Eventually(t, "an answer of the dashboard", func() bool {
		resp, err := http.Get(base + "api/stats")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	var cost, p50, p99 [2][]float64
	var answered int64
	for i := range 2 * rounds {
		with := i % 2
		ctx, cancel := context.WithTimeout(t.Context(), round)
		answers, wait := new(atomic.Int64), func() {}
		if with == 1 {
			answers, wait = readers(ctx, base)
		}
		before := cpuOf(t, c.Cmd.Process.Pid)
		took := callers(ctx, c.URL, body)
		used := cpuOf(t, c.Cmd.Process.Pid) - before
		cancel()
		wait()
		answered += answers.Load()
		if len(took) == 0 {
			t.Fatal("no call was answered")
		}
		cost[with] = append(cost[with], float64(used.Microseconds())/float64(len(took)))
		p50[with] = append(p50[with], float64(took[len(took)/2].Microseconds()))
		p99[with] = append(p99[with], float64(took[len(took)*99/100].Microseconds()))
	}
	mid := func(values []float64) float64 { slices.Sort(values); return values[len(values)/2] }
	a, b := mid(cost[0]), mid(cost[1])
	t.Logf("processor time of a call: %.0f µs without readers, %.0f µs with (%+.1f %%); latency p50 %.0f and %.0f µs, p99 %.0f and %.0f µs; %d answers to readers",
		a, b, 100*(b-a)/a, mid(p50[0]), mid(p50[1]), mid(p99[0]), mid(p99[1]), answered)
	if answered == 0 {
		t.Error("readers got no answer")
	}
	if long() && b > 1.1*a {
		t.Errorf("readers make a call cost %.0f µs instead of %.0f µs", b, a)
	}
	harness.VerifyClean(t, c.Log)
}
