package tests

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// mock is the command line of the stdio upstream; it records what it receives
// in dir, and its command line can be found by that path.
func mock(t *testing.T, dir string, args ...string) []string {
	return append([]string{harness.Find(t).Mock, "-record", recordOf(dir)}, args...)
}

func recordOf(dir string) string { return filepath.Join(dir, "received") }

// processes counts the living processes whose command line has the marker.
func processes(t *testing.T, marker string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range files {
		// A process that ends meanwhile has no command line.
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), marker) && strings.Contains(string(line), "tests-mock\x00-record") {
			n++
		}
	}
	return n
}

func wantNoProcess(t *testing.T, dir string) {
	t.Helper()
	harness.Eventually(t, "the child has ended", func() bool { return processes(t, recordOf(dir)) == 0 })
}

// setUp is one of the two ways to run a shim: it starts one in front of a child
// and tells where its log is once that is at rest.
type setUp struct {
	name  string
	start func(t *testing.T, dir string, child []string, options ...string) (shim *harness.Shim, log func() string)
}

// setUps are Caddy embedded in the shim and a Caddy that runs already.
func setUps() []setUp {
	embedded := func(t *testing.T, dir string, child []string, options ...string) (*harness.Shim, func() string) {
		shim := harness.StartShim(t, dir, append(append(options, "--"), child...)...)
		return shim, func() string { return harness.ShimLog(dir) }
	}
	managed := func(t *testing.T, dir string, child []string, options ...string) (*harness.Shim, func() string) {
		caddy := harness.StartCaddy(t, harness.Site{
			Dir:     dir,
			Proxy:   "dynamic mcp_shim",
			Handler: "server_id managed",
		})
		options = append([]string{"--caddy", caddy.URL}, options...)
		shim := harness.StartShim(t, dir, append(append(options, "--"), child...)...)
		return shim, func() string {
			caddy.Stop(t)
			return caddy.Log
		}
	}
	return []setUp{{"embedded", embedded}, {"managed", managed}}
}

func TestShimCarriesASessionInBothSetUps(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			dir := harness.TempDir(t)
			shim, log := s.start(t, dir, mock(t, dir))
			if answer := shim.Initialize(t); !strings.Contains(answer, `"id":"init"`) || !strings.Contains(answer, `"serverInfo"`) {
				t.Fatalf("initialize: %s", answer)
			}
			// Bytes in are bytes out, both ways.
			request := `{"jsonrpc":"2.0", "id":9007199254740993 ,"method":"tools/call","params":{"name":"echo","arguments":{"m":"\u00e9","n":-0}}}`
			answer := shim.Call(t, request)
			if want := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[{"type":"text","text":"é"}]}}`; answer != want {
				t.Errorf("answer %s, want %s", answer, want)
			}
			if got := string(read(t, recordOf(dir))); !strings.Contains(got, request+"\n") {
				t.Errorf("the child received\n%s", got)
			}
			first := shim.Call(t, call(`"p"`, "echo", `{"m":"x","sse":true}`))
			second := shim.Receive(t)
			if !strings.Contains(first, "notifications/progress") || !strings.Contains(second, `"id":"p"`) {
				t.Errorf("order changed: %s, then %s", first, second)
			}
			shim.In.Close()
			if rest := shim.Rest(t); len(rest) > 0 {
				t.Errorf("further output: %q", rest)
			}
			if code := shim.Exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			wantNoProcess(t, dir)

			path := log()
			var seen []string
			for _, o := range harness.Operations(t, harness.ReadLog(t, path)) {
				seen = append(seen, o.Intent.Method+" "+o.Intent.Tool+" "+o.Outcome.Outcome)
			}
			if got := strings.Join(seen, ", "); got != "initialize  success, tools/call echo success, tools/call echo success" {
				t.Errorf("the log has %s", got)
			}
			harness.VerifyClean(t, path)
			if s.name == "embedded" {
				checkModes(t, filepath.Dir(path))
			}
		})
	}
}

func TestShimRefusesWhatCouldBeReadInTwoWays(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			dir := harness.TempDir(t)
			shim, log := s.start(t, dir, mock(t, dir))
			shim.Initialize(t)
			answer := shim.Call(t, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","Name":"delete_file"}}`)
			if !strings.Contains(answer, `"error"`) {
				t.Errorf("a case variant: %s", answer)
			}
			if answer := shim.Call(t, call("8", "echo", `{"m":"then"}`)); !strings.Contains(answer, "then") {
				t.Errorf("the next call: %s", answer)
			}
			shim.In.Close()
			shim.Exit(t)
			if got := string(read(t, recordOf(dir))); strings.Contains(got, "delete_file") {
				t.Errorf("it reached the child: %s", got)
			}
			path := log()
			refused := harness.Select(harness.ReadLog(t, path), func(r harness.Record) bool { return r.Kind == "event" && r.Outcome == "denied" })
			if len(refused) != 1 {
				t.Errorf("%d records of the refusal", len(refused))
			}
			harness.VerifyClean(t, path)
		})
	}
}

// A batch is one only in the revision that was agreed on.
func TestShimCarriesABatchWhereThereAreBatches(t *testing.T) {
	const batch = `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"m":"one"}}},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"m":"two"}}}]`
	for _, c := range []struct {
		revision, answer string
		outcomes         map[string]int
	}{
		{"2025-03-26", `[{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"one"}]}},{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"two"}]}}]`,
			map[string]int{"success": 2}},
		{"2025-11-25", `"code":-32600`, map[string]int{"denied": 2}},
	} {
		for _, s := range setUps() {
			t.Run(c.revision+", "+s.name, func(t *testing.T) {
				dir := harness.TempDir(t)
				shim, log := s.start(t, dir, mock(t, dir))
				shim.Call(t, `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"`+c.revision+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
				shim.Send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
				if answer := shim.Call(t, batch); !strings.Contains(answer, c.answer) {
					t.Errorf("answer %s", answer)
				}
				shim.In.Close()
				shim.Exit(t)
				reached := strings.Contains(string(read(t, recordOf(dir))), batch+"\n")
				if allowed := c.outcomes["success"] > 0; reached != allowed {
					t.Errorf("the child received it: %v", reached)
				}
				path := log()
				outcomes := make(map[string]int)
				for _, r := range harness.ReadLog(t, path) {
					if r.Tool == "echo" && r.Outcome != "" {
						outcomes[r.Outcome]++
					}
				}
				if fmt.Sprint(outcomes) != fmt.Sprint(c.outcomes) {
					t.Errorf("outcomes %v, want %v", outcomes, c.outcomes)
				}
				harness.VerifyClean(t, path)
			})
		}
	}
}

func TestEveryLineBeforeTheChildEndsIsDelivered(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			const lines = 20_000
			dir := harness.TempDir(t)
			shim, log := s.start(t, dir, mock(t, dir))
			shim.Initialize(t)
			shim.Send(t, call("7", "burst", fmt.Sprintf(`{"n":%d}`, lines)))
			output := shim.Rest(t)
			if len(output) != lines+1 {
				t.Fatalf("%d lines arrived, %d were sent", len(output), lines+1)
			}
			for i, line := range output[:lines] {
				if !strings.Contains(line, fmt.Sprintf(`"line %d"`, i)) {
					t.Fatalf("line %d is %s", i, line)
				}
			}
			if !strings.Contains(output[lines], `"id":7`) {
				t.Errorf("the last line is %s", output[lines])
			}
			if code := shim.Exit(t); code != 0 {
				t.Errorf("exit code %d, the child's was 0", code)
			}
			path := log()
			harness.Operations(t, harness.ReadLog(t, path))
			harness.VerifyClean(t, path)
		})
	}
}

func TestChildsEndIsTheShimsEnd(t *testing.T) {
	cases := []struct {
		name, request string
		code          func(int) bool
	}{
		{"exit code", call("7", "exit", `{"code":3}`), func(code int) bool { return code == 3 }},
		{"signal", call("7", "die", fmt.Sprintf(`{"signal":%d}`, syscall.SIGKILL)), func(code int) bool { return code != 0 }},
	}
	for _, s := range setUps() {
		for _, c := range cases {
			t.Run(s.name+" "+c.name, func(t *testing.T) {
				dir := harness.TempDir(t)
				shim, log := s.start(t, dir, mock(t, dir))
				shim.Initialize(t)
				answer := shim.Call(t, c.request)
				if !strings.Contains(answer, `"id":7`) || !strings.Contains(answer, `"error"`) {
					t.Errorf("the open request is answered by %s", answer)
				}
				shim.Rest(t)
				if code := shim.Exit(t); !c.code(code) {
					t.Errorf("exit code %d", code)
				}
				path := log()
				operations := harness.Operations(t, harness.ReadLog(t, path))
				if last := operations[len(operations)-1]; last.Outcome.Outcome == "success" {
					t.Errorf("the log says success: %s", last.Outcome.Line)
				}
				harness.VerifyClean(t, path)
			})
		}
	}
}

func TestChildThatCannotStartIsAnErrorForTheClient(t *testing.T) {
	for _, s := range setUps() {
		t.Run(s.name, func(t *testing.T) {
			shim, _ := s.start(t, harness.TempDir(t), []string{"/no/such/server"})
			answer := shim.Call(t, harness.Initialize)
			if !strings.Contains(answer, `"id":"init"`) || !strings.Contains(answer, `"error"`) || !strings.Contains(answer, "/no/such/server") {
				t.Errorf("initialize is answered by %s", answer)
			}
			shim.Rest(t)
			if code := shim.Exit(t); code == 0 {
				t.Error("exit code 0")
			}
		})
	}
}

// A desktop client that is killed closes nothing in an orderly way.
func TestKilledClientLeavesNoChild(t *testing.T) {
	for _, stubborn := range []bool{false, true} {
		t.Run(fmt.Sprintf("stubborn child %v", stubborn), func(t *testing.T) {
			dir := harness.TempDir(t)
			child := mock(t, dir)
			if stubborn {
				child = mock(t, dir, "-stubborn")
			}
			plan, err := json.Marshal(map[string]any{
				"target": shimTarget(t, dir, child...),
				"steps":  []harness.Step{{Call: "hold", Arguments: map[string]any{"key": "for ever"}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("node", filepath.Join(harness.Find(t).NPM, "client-v1.mjs"), string(plan))
			cmd.Env = harness.Environment(dir, "MCP_AUDIT_DIR="+harness.AuditDir(dir))
			client := harness.StartLines(t, cmd)
			harness.Eventually(t, "the call reaches the child", func() bool {
				data, err := os.ReadFile(recordOf(dir))
				return err == nil && strings.Contains(string(data), "for ever")
			})
			client.Kill()
			start := time.Now()
			wantNoProcess(t, dir)
			if took := time.Since(start); took > 6*time.Second {
				t.Errorf("the child lived on for %s", took)
			}
			log := harness.ShimLog(dir)
			harness.Operations(t, harness.Closed(t, log))
			harness.VerifyClean(t, log)
		})
	}
}

func TestSignalsEndShimAndChild(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			dir := harness.TempDir(t)
			shim := harness.StartShim(t, dir, append([]string{"--"}, mock(t, dir)...)...)
			shim.Initialize(t)
			shim.Signal(t, signal)
			shim.Exit(t)
			wantNoProcess(t, dir)
			harness.Operations(t, harness.ReadLog(t, harness.ShimLog(dir)))
			harness.VerifyClean(t, harness.ShimLog(dir))
		})
	}
}

func TestShimsOfAUserShareOneLog(t *testing.T) {
	dir := harness.TempDir(t)
	var running []*harness.Shim
	for i := range 4 {
		shim := harness.StartShim(t, dir, append([]string{"--server-id", fmt.Sprintf("server-%d", i), "--"}, mock(t, dir)...)...)
		running = append(running, shim)
	}
	for round := range 25 {
		for _, shim := range running {
			shim.Send(t, call(fmt.Sprint(round), "echo", `{"m":"x"}`))
		}
	}
	for _, shim := range running {
		for range 25 {
			if line := shim.Receive(t); !strings.Contains(line, `"result"`) {
				t.Errorf("answer %s", line)
			}
		}
		shim.In.Close()
	}
	for _, shim := range running {
		shim.Exit(t)
	}
	records := harness.ReadLog(t, harness.ShimLog(dir))
	harness.CheckChain(t, records)
	servers := make(map[string]int)
	for _, o := range harness.Operations(t, records) {
		servers[o.Intent.Server]++
	}
	for i := range 4 {
		if n := servers[fmt.Sprintf("server-%d", i)]; n != 25 {
			t.Errorf("server-%d has %d operations, want 25", i, n)
		}
	}
	harness.VerifyClean(t, harness.ShimLog(dir))
}

// Desktop clients hide stderr, so the remedy is in the first answer.
func TestShimTellsTheRemedyWhenItsLogRefuses(t *testing.T) {
	dir := harness.TempDir(t)
	shim := harness.StartShim(t, dir, append([]string{"--"}, mock(t, dir)...)...)
	shim.Initialize(t)
	shim.In.Close()
	shim.Exit(t)
	cutLines(t, harness.ShimLog(dir), 2)
	reached := len(read(t, recordOf(dir)))

	refused := harness.StartShim(t, dir, append([]string{"--"}, mock(t, dir)...)...)
	answer := refused.Call(t, harness.Initialize)
	for _, part := range []string{`"id":"init"`, `"error"`, "--accept-chain-break"} {
		if !strings.Contains(answer, part) {
			t.Errorf("the answer lacks %s: %s", part, answer)
		}
	}
	refused.Rest(t)
	if code := refused.Exit(t); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	if len(read(t, recordOf(dir))) != reached {
		t.Error("something reached the child")
	}

	again := harness.StartShim(t, dir, append([]string{"--accept-chain-break", "tried it out", "--"}, mock(t, dir)...)...)
	if answer := again.Initialize(t); !strings.Contains(answer, `"result"`) {
		t.Errorf("after the remedy: %s", answer)
	}
	again.In.Close()
	again.Exit(t)
	if report := harness.VerifyLog(t, harness.ShimLog(dir)); report.Exit != 0 || !report.Has("chain_break") {
		t.Errorf("verify: %s", report)
	}
}

// The child sees the client's environment and arguments as they are, and no
// secret of the product.
func TestChildGetsItsArgumentsAndEnvironment(t *testing.T) {
	dir := harness.TempDir(t)
	script := `printf '%s\n' "$MARK" "${MCP_AUDIT_SIGNING_SECRET-none}" "$@" >"$OUT"; exec cat >/dev/null`
	arguments := []string{"a b", `"quoted"`, "$(id)", "&calc", "%PATH%", ""}
	cmd := harness.ShimCommand(t, dir, append([]string{"--", "sh", "-c", script, "sh"}, arguments...)...)
	out := filepath.Join(dir, "out")
	cmd.Env = append(cmd.Env, "MARK=seen", "OUT="+out, "MCP_AUDIT_SIGNING_SECRET=correct-horse-battery-staple")
	shim := harness.StartLines(t, cmd)
	want := strings.Join(append([]string{"seen", "none"}, arguments...), "\n") + "\n"
	harness.Eventually(t, "the child prints its arguments", func() bool {
		data, err := os.ReadFile(out)
		return err == nil && len(data) >= len(want)
	})
	if got := string(read(t, out)); got != want {
		t.Errorf("the child got %q, want %q", got, want)
	}
	shim.In.Close()
	shim.Exit(t)
}

// A denied element of a batch has its error in the one array that answers the
// batch, and the others run.
func TestDeniedElementOfABatchIsAnsweredAmongTheOthers(t *testing.T) {
	const policy = "policy {\n\trule NO deny {\n\t\ttool delete_file\n\t}\n}"
	batch := "[" + call("1", "echo", `{"m":"one"}`) + "," + call("2", "delete_file", `{"path":"/x"}`) + "," + call("3", "echo", `{"m":"three"}`) + "]"
	for _, mode := range []string{"embedded", "managed"} {
		t.Run(mode, func(t *testing.T) {
			dir := harness.TempDir(t)
			var options []string
			log := harness.ShimLog(dir)
			stop := func() {}
			if mode == "embedded" {
				file := filepath.Join(dir, "Caddyfile")
				write(t, file, []byte("http://127.0.0.1:1 {\n\tmcp_audit {\n"+policy+"\n\t}\n}\n"))
				options = []string{"--config", file, "--"}
			} else {
				caddy := harness.StartCaddy(t, harness.Site{Dir: dir, Proxy: "dynamic mcp_shim", Handler: "server_id managed\n" + policy})
				options, log = []string{"--caddy", caddy.URL, "--"}, caddy.Log
				stop = func() { caddy.Stop(t) }
			}
			shim := harness.StartShim(t, dir, append(options, mock(t, dir)...)...)
			shim.Call(t, `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			shim.Send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			answer := shim.Call(t, batch)
			var elements []struct {
				ID    int
				Error *struct{ Code int }
			}
			if err := json.Unmarshal([]byte(answer), &elements); err != nil || len(elements) != 3 {
				t.Fatalf("%v: %s", err, answer)
			}
			for _, e := range elements {
				if denied := e.Error != nil && e.Error.Code == -32030; denied != (e.ID == 2) {
					t.Errorf("%s", answer)
				}
			}
			shim.In.Close()
			if rest := shim.Rest(t); len(rest) > 0 {
				t.Errorf("more lines: %q", rest)
			}
			shim.Exit(t)
			if strings.Contains(string(read(t, recordOf(dir))), "delete_file") {
				t.Error("the denied element reached the server")
			}
			stop()
			harness.VerifyClean(t, log)
		})
	}
}

// Requests of one client that are answered out of order keep their ids apart.
func TestManyRequestsInFlightThroughTheShim(t *testing.T) {
	dir := harness.TempDir(t)
	shim := harness.StartShim(t, dir, append([]string{"--"}, mock(t, dir)...)...)
	shim.Initialize(t)
	const n = 64
	want := make(map[string]bool)
	for i := range n {
		// 1 and "1" are two requests.
		for _, id := range []string{fmt.Sprint(i), fmt.Sprintf("%q", fmt.Sprint(i))} {
			shim.Send(t, call(id, "slow", fmt.Sprintf(`{"s":%g}`, float64((n-i)%8)/100)))
			want[fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}`, id)] = true
		}
	}
	for range 2 * n {
		line := shim.Receive(t)
		if !want[line] {
			t.Errorf("unexpected line %s", line)
		}
		delete(want, line)
	}
	shim.In.Close()
	shim.Exit(t)
	harness.Operations(t, harness.ReadLog(t, harness.ShimLog(dir)))
	harness.VerifyClean(t, harness.ShimLog(dir))
}
