//go:build unix

package shim_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
)

// childVariable makes the test binary play a child instead of running tests.
const childVariable = "SHIM_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childVariable); role != "" {
		playChild(role)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// playChild is the child's side of the tests of this file.
func playChild(role string) {
	name, arg, _ := strings.Cut(role, ":")
	switch name {
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	case "signal":
		n, _ := strconv.Atoi(arg)
		_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
		time.Sleep(time.Hour)
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "env":
		for _, entry := range os.Environ() {
			fmt.Println(entry)
		}
	case "args":
		for _, a := range os.Args[1:] {
			fmt.Printf("%q\n", a)
		}
	case "stderr":
		fmt.Fprint(os.Stderr, "to stderr")
	case "deaf":
		// Ignores the end of its input and every polite signal.
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println(os.Getpid())
		time.Sleep(time.Hour)
	case "term":
		got := make(chan os.Signal, 1)
		signal.Notify(got, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
		fmt.Println("ready")
		fmt.Println(<-got)
		os.Exit(7)
	case "family":
		// A grandchild in the same group that ignores everything polite.
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"=deaf")
		cmd.Stdout = os.Stdout
		err := cmd.Start()
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if arg == "stay" {
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
	}
}

func start(t *testing.T, role string, args ...string) *shim.Process {
	t.Helper()
	argv := append([]string{os.Args[0]}, args...)
	p, err := shim.StartProcess(argv, append(shim.ChildEnv(os.Environ(), nil, nil), childVariable+"="+role, "GORACE=atexit_sleep_ms=0"), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func ended(t *testing.T, p *shim.Process) shim.Status {
	t.Helper()
	return within(t, "the end of the child", func() shim.Status {
		<-p.Exited()
		return p.Status()
	})
}

func readLine(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	return within(t, "a line of the child", func() string {
		line, err := r.ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(line)
	})
}

// gone waits until a process does not exist any more.
func gone(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatalf("%q is no process id", pid)
	}
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if alive := syscall.Kill(n, 0); errors.Is(alive, syscall.ESRCH) || zombie(n) {
			return
		}
		time.Sleep(5 * time.Millisecond) // nobody tells of the end of a process that is not ours
	}
	t.Fatalf("process %d is still there", n)
}

// zombie reports whether a process has ended and is only not yet collected by
// whoever inherited it.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

func TestStatusComesThrough(t *testing.T) {
	for role, want := range map[string]shim.Status{
		"exit:0":    {Code: 0},
		"exit:3":    {Code: 3},
		"signal:9":  {Code: 137, Signal: "SIGKILL"},
		"signal:11": {Code: 139, Signal: "SIGSEGV"},
	} {
		if role == "signal:11" {
			// The runtime of the test's child would dump its goroutines.
			want, role = shim.Status{Code: 143, Signal: "SIGTERM"}, "signal:15"
		}
		if got := ended(t, start(t, role)); got != want {
			t.Errorf("%s: %+v, want %+v", role, got, want)
		}
	}
}

func TestCommandThatCannotStartSaysWhy(t *testing.T) {
	plain := t.TempDir() + "/plain"
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	notAProgram := t.TempDir() + "/odd"
	if err := os.WriteFile(notAProgram, []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	for command, code := range map[string]int{
		"no-such-command-anywhere": shim.ExitNotFound,
		"/no/such/file":            shim.ExitNotFound,
		plain:                      shim.ExitNotExecutable,
		notAProgram:                shim.ExitNotExecutable,
	} {
		_, err := shim.StartProcess([]string{command}, nil, os.Stderr)
		var start *shim.StartError
		if !errors.As(err, &start) || start.Code != code || !strings.Contains(err.Error(), command) {
			t.Errorf("%s: %v", command, err)
		}
	}
}

func TestArgumentsAndEnvironmentPassAsTheyAre(t *testing.T) {
	args := []string{"a b", `"q"`, "$(id)", "%PATH%", "&calc", "", "ü\n"}
	p := start(t, "args", args...)
	out := bufio.NewReader(p.Stdout)
	for _, a := range args {
		if got := readLine(t, out); got != strconv.Quote(a) {
			t.Errorf("argument %q arrived as %s", a, got)
		}
	}
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "s1")
	t.Setenv("AUDIT_SECRET", "s2")
	t.Setenv("MCP_AUDIT_STATIC_BEARER_TOKEN", "s3")
	t.Setenv("GITHUB_TOKEN", "the client's own")
	text, err := io.ReadAll(start(t, "env").Stdout)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "GITHUB_TOKEN=the client's own\n") || !strings.Contains(string(text), "PATH=") {
		t.Error("the client's environment did not arrive")
	}
	if strings.Contains(string(text), "MCP_AUDIT_S") || strings.Contains(string(text), "AUDIT_SECRET") {
		t.Error("a secret of the product is in the child's environment")
	}
}

func TestStandardErrorIsTheSameFile(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := shim.StartProcess([]string{os.Args[0]}, append(os.Environ(), childVariable+"=stderr"), w)
	if err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	text, _ := io.ReadAll(r)
	if string(text) != "to stderr" {
		t.Errorf("%q", text)
	}
	ended(t, p)
}

func TestStopClosesInputFirst(t *testing.T) {
	p := start(t, "cat")
	fmt.Fprintln(p.Stdin, "ready")
	readLine(t, bufio.NewReader(p.Stdout))
	p.Stop(syscall.SIGTERM, shim.StdinPause, nil)
	if got := ended(t, p); got != (shim.Status{}) {
		t.Errorf("a child that ends with its input was not left to: %+v", got)
	}
}

func TestStopPassesTheSignalOn(t *testing.T) {
	p := start(t, "term")
	out := bufio.NewReader(p.Stdout)
	if got := readLine(t, out); got != "ready" {
		t.Fatal(got)
	}
	p.Stop(syscall.SIGINT, shim.SignalledPause, nil)
	if got := readLine(t, out); got != "interrupt" {
		t.Errorf("the child got %q", got)
	}
	if got := ended(t, p); got.Code != 7 {
		t.Errorf("%+v", got)
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	p := start(t, "deaf")
	pid := readLine(t, bufio.NewReader(p.Stdout))
	begin := time.Now()
	p.Stop(syscall.SIGTERM, shim.StdinPause, nil)
	if got := ended(t, p); got.Signal != "SIGKILL" {
		t.Errorf("%+v", got)
	}
	if took := time.Since(begin); took > 1500*time.Millisecond {
		t.Errorf("it took %s", took)
	}
	gone(t, pid)
}

func TestStopEndsGrandchildren(t *testing.T) {
	for _, how := range []string{"stay", "leave"} {
		p := start(t, "family:"+how)
		out := bufio.NewReader(p.Stdout)
		grandchild := readLine(t, out)
		p.Stop(syscall.SIGTERM, shim.StdinPause, nil)
		ended(t, p)
		gone(t, grandchild)
	}
}

func TestStartingAndStoppingLeavesNothingBehind(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 30 {
		p, err := shim.StartProcess([]string{"true"}, os.Environ(), os.Stderr)
		if err != nil {
			t.Fatal(err)
		}
		ended(t, p)
		p.Stop(syscall.SIGTERM, shim.StdinPause, nil)
		_ = p.Stdout.Close()
	}
	if after := count(); after > before+2 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
