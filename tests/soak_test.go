package tests

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// soakLength is how long the soak lasts: 20 s, or what MCP_AUDIT_SOAK says.
func soakLength(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("MCP_AUDIT_SOAK")
	if text == "" {
		return 20 * time.Second
	}
	length, err := time.ParseDuration(text)
	if err != nil || length < 10*time.Second || length > 24*time.Hour {
		t.Fatalf("MCP_AUDIT_SOAK is %q, want a time from 10s to 24h", text)
	}
	return length
}

// restarting is a server that is killed, with its connections, and comes back.
type restarting struct {
	t       *testing.T
	address string
	mu      sync.Mutex
	server  *http.Server
}

func (r *restarting) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	var listener net.Listener
	for range 100 {
		var err error
		if listener, err = net.Listen("tcp", r.address); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if listener == nil {
		r.t.Errorf("%s cannot be listened on again", r.address)
		return
	}
	r.server = &http.Server{Handler: http.HandlerFunc(mixtureServer), ReadHeaderTimeout: 10 * time.Second}
	go r.server.Serve(listener)
}

func (r *restarting) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.server.Close()
}

// soakStep sends one request of a mixture that bears a server which comes and
// goes, and reports whether Caddy answered it: then the log must have it.
func soakStep(ctx context.Context, t *testing.T, caddy *harness.Caddy, client *http.Client, random *rand.Rand, id int) bool {
	tool := []string{"echo", "echo", "events", "delete_file", "slow"}[random.IntN(5)]
	body := call(strconv.Itoa(id), tool, `{"password":"p","text":"`+strings.Repeat("x", random.IntN(4096))+`"}`)
	switch random.IntN(20) {
	case 0:
		body = body[1:] // malformed
	case 1:
		body = strings.Replace(body, `"p"`, `"`+strings.Repeat("p", 70<<10)+`"`, 1) // oversized
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	resp, err := client.Do(caddy.NewRequest(t, body).WithContext(ctx))
	if err != nil {
		// A reload closes connections that a client has just taken up again.
		return false
	}
	defer resp.Body.Close()
	switch {
	case tool == "slow" && resp.Header.Get("Content-Type") == "text/event-stream":
		buffer := make([]byte, 1)
		for range 1 + random.IntN(20) { // a slow reader that leaves
			if _, err := resp.Body.Read(buffer); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	default:
		// A server that is killed breaks its answer off.
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	return true
}

// A mixed load with rotation, reloads, rotated keys, servers that are killed,
// readers that are slow and clients that leave: no operation is lost, memory and
// descriptors stay flat, and the log verifies. `make soak` runs it for long.
func TestSoak(t *testing.T) {
	length := soakLength(t)
	upstream := &restarting{t: t, address: harness.FreeAddress(t)}
	upstream.start()
	t.Cleanup(upstream.kill)
	const handler = "refusals off\nmax_body 64KiB\npolicy {\nrule KEEP deny {\nmethod tools/call\ntool delete_file\n}\n}"
	caddy := harness.StartCaddy(t, harness.Site{
		Upstream: upstream.address, Handler: handler,
		Output: "rotate_size 32MiB\ncompress\nkeep_files 10000",
		Proxy:  "transport http {\nkeepalive off\n}",
	})
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var sent, unanswered, reloads atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(20261201, uint64(i)))
		client := &http.Client{Transport: &http.Transport{}}
		wg.Go(func() {
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				if soakStep(t.Context(), t, caddy, client, random, n) {
					sent.Add(1)
				} else {
					unanswered.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(length/60, 500*time.Millisecond)):
			}
			switch n % 3 {
			case 0:
				upstream.kill()
				time.Sleep(100 * time.Millisecond)
				upstream.start()
			case 1:
				reloads.Add(1)
				option := []string{"", "\nexplain"}[n/3%2]
				if refusal := caddy.Reload(t, func(s *harness.Site) { s.Handler = handler + option }); refusal != "" {
					t.Errorf("reload: %s", refusal)
				}
			case 2:
				if _, stderr, code := harness.Run(t, harness.CLI(t, caddy.Dir, "rotate-key", caddy.Log)); code != 0 {
					t.Errorf("rotate-key: %s", stderr)
				}
			}
		}
	})
	// Memory is compared after a third and at the end: caches are full by then.
	memory := func() int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", caddy.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		pages, err := strconv.Atoi(strings.Fields(string(text))[1])
		if err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize() >> 20
	}
	time.Sleep(length / 3)
	early := memory()
	wg.Wait()
	late := memory()
	if late > early+early/4+32 {
		t.Errorf("memory grew from %d to %d MiB", early, late)
	}
	idle := state{}
	harness.Eventually(t, "what the clients left is gone", func() bool {
		idle = processState(t, caddy)
		return idle.descriptors < 60 && idle.goroutines < 200
	})
	caddy.Stop(t)
	folder := filepath.Dir(caddy.Log)
	report := harness.Verify(t, folder, "--keys", filepath.Join(folder, "keys.json"), "--strict")
	if report.Exit != 0 {
		t.Errorf("verify: %v", report)
	}
	operations, unclosed := soakRows(t, caddy, folder)
	if n := int64(operations); n < sent.Load() || n > sent.Load()+unanswered.Load() || unclosed != 0 {
		t.Errorf("%d requests were answered and %d not, the log has %d operations and %d open ones", sent.Load(), unanswered.Load(), operations, unclosed)
	}
	if unanswered.Load() > 8*reloads.Load() {
		t.Errorf("%d requests got no answer in %d reloads", unanswered.Load(), reloads.Load())
	}
	t.Logf("%d requests in %s, %d records; memory %d MiB after a third, %d at the end; %d descriptors and %d goroutines idle",
		sent.Load(), length, report.Records, early, late, idle.descriptors, idle.goroutines)
}

// soakRows counts the closed and the open calls of an export, which it does not
// hold in memory.
func soakRows(t *testing.T, caddy *harness.Caddy, folder string) (operations, open int) {
	t.Helper()
	cmd := harness.CLI(t, caddy.Dir, "export", "--format", "csv", "--no-payloads", folder)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rows := csv.NewReader(out)
	rows.ReuseRecord = true
	header, err := rows.Read()
	if err != nil {
		t.Fatal(err, &stderr)
	}
	columns := make(map[string]int)
	for i, name := range header {
		columns[name] = i
	}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch kind := row[columns["kind"]]; {
		case kind == "open":
			open++
		case kind == "operation", kind == "event" && row[columns["outcome"]] == "denied":
			operations++
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, &stderr)
	}
	return operations, open
}
