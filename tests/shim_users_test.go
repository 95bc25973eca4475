package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// SHM-1: starting and stopping leaves nothing behind, neither here nor in the
// Caddy that shims share.
func TestManyStartsAndStopsLeaveNothingBehind(t *testing.T) {
	dir := harness.TempDir(t)
	run := filepath.Join(dir, "run")
	caddy := harness.StartCaddy(t, harness.Site{Dir: dir, Proxy: "dynamic mcp_shim {\nruntime_dir " + run + "\n}", Handler: "server_id managed\nrefusals off"})
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", caddy.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	ends := []func(s *harness.Shim){
		func(s *harness.Shim) { s.In.Close() },
		func(s *harness.Shim) { s.Signal(t, syscall.SIGTERM) },
		func(s *harness.Shim) { s.Signal(t, syscall.SIGINT) },
		func(s *harness.Shim) { s.Signal(t, syscall.SIGHUP) },
	}
	warm := 0
	for i := range 100 {
		options := []string{"--"}
		if i%2 == 0 {
			options = []string{"--caddy", caddy.URL, "--runtime-dir", run, "--"}
		}
		// The server has a child of its own, as one that npx starts has.
		shim := harness.StartShim(t, dir, append(options, append([]string{"sh", "-c", `"$@" & wait`, "sh"}, mock(t, dir)...)...)...)
		shim.Initialize(t)
		ends[i%len(ends)](shim)
		shim.Exit(t)
		if i == 19 {
			warm = descriptors()
		}
	}
	wantNoProcess(t, dir)
	if left, _ := filepath.Glob(filepath.Join(run, "*")); len(left) > 0 {
		t.Errorf("files are left: %q", left)
	}
	harness.Eventually(t, "Caddy's descriptors are what they were", func() bool { return descriptors() <= warm+2 })
	for _, p := range zombies(t) {
		t.Errorf("a zombie is left: %s", p)
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
	harness.VerifyClean(t, harness.ShimLog(dir))
}

// zombies are the children of this process that nobody waited for.
func zombies(t *testing.T) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if strings.Contains(text, "(tests-mock)") && fields[0] == "Z" {
			found = append(found, text)
		}
	}
	return found
}

// Another user of the machine can neither read the log or the keys, nor reach
// the child, nor use the audited route as somebody's shim.
func TestAnotherUserOfTheMachineIsKeptOut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("this test runs commands as another user, which takes root")
	}
	dir := harness.TempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil { // the folders in it must keep others out
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	caddy := harness.StartCaddy(t, harness.Site{Dir: dir, Proxy: "dynamic mcp_shim {\nruntime_dir " + run + "\n}", Handler: "server_id managed"})
	remote := harness.StartShim(t, dir, append([]string{"--caddy", caddy.URL, "--runtime-dir", run, "--"}, mock(t, dir)...)...)
	embedded := harness.StartShim(t, dir, append([]string{"--"}, mock(t, dir)...)...)
	for _, shim := range []*harness.Shim{remote, embedded} {
		shim.Initialize(t)
	}
	sockets, err := filepath.Glob(filepath.Join(run, "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("%q, %v", sockets, err)
	}
	const nobody = 65534
	as := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := as("cat", "/proc/self/status"); err != nil || !strings.Contains(out, "65534") {
		t.Fatalf("nothing runs as another user: %v: %s", err, out)
	}
	for _, file := range []string{
		caddy.Log, filepath.Join(filepath.Dir(caddy.Log), "keys.json"), harness.ShimLog(dir), filepath.Join(harness.AuditDir(dir), "keys.json"),
		fmt.Sprintf("/proc/%d/environ", embedded.Cmd.Process.Pid), fmt.Sprintf("/proc/%d/fd/0", embedded.Cmd.Process.Pid),
	} {
		if out, err := as("cat", file); err == nil || !strings.Contains(out, "ermission denied") {
			t.Errorf("another user reads %s: %v: %.200s", file, err, out)
		}
	}
	if out, err := as("ls", run); err == nil {
		t.Errorf("another user lists the sockets: %s", out)
	}
	node := `require('net').connect(process.argv[1]).on('error',e=>{console.log(e.code);process.exit(1)}).on('connect',()=>process.exit(0))`
	if out, err := as("node", "-e", node, sockets[0]); err == nil || !strings.Contains(out, "EACCES") {
		t.Errorf("another user connects to the socket of a shim: %v: %s", err, out)
	}
	// The port is open to all users; what is behind it is not.
	for _, capability := range []string{"", "Mcp-Shim " + strings.Repeat("A", 43)} {
		r := caddy.NewRequest(t, call("1", "echo", `{"m":"stranger"}`))
		if capability != "" {
			r.Header.Set("Authorization", capability)
		}
		if a := caddy.Do(t, r); a.Status/100 == 2 && !strings.Contains(a.Body, `"error"`) {
			t.Errorf("a stranger reaches a server: %d %s", a.Status, a.Body)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, caddy.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Mcp-Shim-Report", "1")
		r.Header.Set("Authorization", capability)
		if a := caddy.Do(t, r); a.Status/100 == 2 {
			t.Errorf("a stranger reports as a shim: %d %s", a.Status, a.Body)
		}
	}
	if strings.Contains(string(read(t, recordOf(dir))), "stranger") {
		t.Error("a stranger's call reached a server")
	}
	for _, shim := range []*harness.Shim{remote, embedded} {
		shim.In.Close()
		shim.Exit(t)
	}
}

// Two clients with three servers each, at once, write one log, and tail shows
// all six.
func TestTwoClientsWithThreeServersEachShareALog(t *testing.T) {
	dir := harness.TempDir(t)
	servers := []struct {
		name    string
		command []string
		call    string
	}{
		{"everything", harness.Find(t).Server("everything", "stdio"), call("1", "echo", `{"message":"hi"}`)},
		{"memory", harness.Find(t).Server("memory"), call("1", "read_graph", `{}`)},
		{"files", harness.Filesystem(t, dir), call("1", "list_allowed_directories", `{}`)},
	}
	var running []*harness.Shim
	for _, client := range []string{"desktop", "editor"} {
		for _, s := range servers {
			options := []string{"--client-id", client, "--server-id", s.name, "--"}
			running = append(running, harness.StartShim(t, dir, append(options, s.command...)...))
		}
	}
	for i, shim := range running {
		if answer := shim.Initialize(t); !strings.Contains(answer, `"result"`) {
			t.Fatal(answer)
		}
		shim.Send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		shim.Send(t, servers[i%3].call)
	}
	for _, shim := range running {
		for {
			if line := shim.Receive(t); strings.Contains(line, `"id":1,`) || strings.Contains(line, `"id":1}`) {
				if !strings.Contains(line, `"result"`) {
					t.Errorf("%s", line)
				}
				break
			}
		}
		shim.In.Close()
	}
	for _, shim := range running {
		shim.Exit(t)
	}
	harness.VerifyClean(t, harness.ShimLog(dir))
	stdout, stderr, code := harness.Run(t, harness.CLI(t, dir, "tail", "-n", "50", "--json", harness.ShimLog(dir)))
	if code != 0 {
		t.Fatal(stderr)
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(stdout) {
		var r harness.Record
		if err := json.Unmarshal([]byte(line), &r); err == nil && r.Method == "tools/call" && r.Kind == "outcome" && r.Outcome == "success" {
			seen[r.Client+" "+r.Server] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("tail shows %v", seen)
	}
}

// `mcp-audit wrap` is the shim under the name that users of another system know.
func TestWrapIsTheShim(t *testing.T) {
	dir := harness.TempDir(t)
	cmd := harness.CLI(t, dir, append([]string{"wrap", "--server-id", "wrapped", "--"}, mock(t, dir)...)...)
	cmd.Env = append(cmd.Env, "MCP_AUDIT_DIR="+harness.AuditDir(dir))
	shim := harness.StartLines(t, cmd)
	shim.Initialize(t)
	if answer := shim.Call(t, call("1", "echo", `{"m":"x"}`)); !strings.Contains(answer, `"result"`) {
		t.Errorf("%s", answer)
	}
	shim.In.Close()
	if code := shim.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, o := range harness.Operations(t, harness.ReadLog(t, harness.ShimLog(dir))) {
		if o.Intent.Server != "wrapped" {
			t.Errorf("%s", o.Intent.Line)
		}
	}
	code := harness.CLI(t, dir, "wrap", "--", "sh", "-c", "exit 7")
	code.Env = append(code.Env, "MCP_AUDIT_DIR="+harness.AuditDir(dir))
	if _, _, got := harness.Run(t, code); got != 7 {
		t.Errorf("the child's exit code 7 became %d", got)
	}
}

// The shim without a Caddy of its own is small, needs a running one, and says
// so.
func TestSmallShimWorksWithARunningCaddyAlone(t *testing.T) {
	small := filepath.Join(filepath.Dir(harness.Find(t).Shim), "mcp-audit-shim-small")
	info, err := os.Stat(small)
	if err != nil {
		t.Fatalf("%v; run `make shim-small`", err)
	}
	if info.Size() >= 12<<20 {
		t.Errorf("it has %d bytes", info.Size())
	}
	dir := harness.TempDir(t)
	start := func(args ...string) *harness.Shim {
		cmd := exec.Command(small, args...)
		cmd.Env, cmd.Dir = harness.Environment(dir, "MCP_AUDIT_DIR="+harness.AuditDir(dir)), dir
		return harness.StartLines(t, cmd)
	}
	refused := start(append([]string{"--"}, mock(t, dir)...)...)
	if answer := refused.Call(t, harness.Initialize); !strings.Contains(answer, "--caddy") || !strings.Contains(answer, `"error"`) {
		t.Errorf("%s", answer)
	}
	refused.Rest(t)
	if code := refused.Exit(t); code != 3 {
		t.Errorf("exit code %d", code)
	}
	caddy := harness.StartCaddy(t, harness.Site{Dir: dir, Proxy: "dynamic mcp_shim", Handler: "server_id managed"})
	shim := start(append([]string{"--caddy", caddy.URL, "--"}, mock(t, dir)...)...)
	shim.Initialize(t)
	if answer := shim.Call(t, call("1", "echo", `{"m":"x"}`)); !strings.Contains(answer, `"result"`) {
		t.Errorf("%s", answer)
	}
	shim.In.Close()
	shim.Exit(t)
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}
