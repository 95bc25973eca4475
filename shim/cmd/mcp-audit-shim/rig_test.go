//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// patience bounds everything a test waits for.
const patience = 20 * time.Second

// roleVariable makes the test binary play the shim or a server.
const roleVariable = "SHIM_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		// Under nohup, shims would inherit that SIGHUP is ignored.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
		os.Exit(m.Run())
	case "shim":
		// The server that the shim starts is this binary again.
		_ = os.Setenv(roleVariable, "server")
		os.Exit(run())
	default:
		serve(os.Args[1:])
		os.Exit(0)
	}
}

// serve plays an MCP server on standard input and output.
func serve(args []string) {
	for _, arg := range args {
		switch {
		case strings.HasPrefix(arg, "exit="):
			code, _ := strconv.Atoi(arg[5:])
			os.Exit(code)
		case arg == "deaf":
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
			defer time.Sleep(time.Hour)
		case arg == "grandchild":
			c := exec.Command(os.Args[0], "deaf")
			c.Stdout = os.Stderr
			_ = c.Start()
			fmt.Fprintf(os.Stderr, "grandchild %d\n", c.Process.Pid)
		case arg == "daemon":
			// It leaves the server's process group and outlives the server.
			c := exec.Command(os.Args[0], "deaf")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			_ = c.Start()
			fmt.Fprintf(os.Stderr, "daemon %d\n", c.Process.Pid)
		case strings.HasPrefix(arg, "say="):
			fmt.Fprintln(os.Stderr, arg[4:])
		}
	}
	fmt.Fprintf(os.Stderr, "server %d\n", os.Getpid())
	out := bufio.NewWriter(os.Stdout)
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments struct{ Text string }
				Meta      struct {
					Token json.RawMessage `json:"progressToken"`
				} `json:"_meta"`
			}
		}
		if json.Unmarshal(line, &m) != nil {
			fmt.Fprintf(out, "not JSON: %s", line)
		}
		reply := func(result string) {
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
		}
		switch {
		case m.Method == "initialize":
			reply(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`)
		case m.Method == "tools/call" && m.Params.Name == "noise":
			fmt.Fprintln(out, "starting up ...")
			reply(`{"content":[]}`)
		case m.Method == "tools/call" && m.Params.Name == "ask":
			fmt.Fprintln(out, `{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?"}}`)
			_ = out.Flush()
			answer, _ := in.ReadString('\n')
			text, _ := json.Marshal(answer)
			reply(`{"content":[{"type":"text","text":` + string(text) + `}]}`)
		case m.Method == "tools/call" && m.Params.Name == "progress":
			for i := range 3 {
				fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`+"\n", m.Params.Meta.Token, i)
			}
			reply(`{"content":[]}`)
		case m.Method == "tools/call" && m.Params.Name == "flood":
			for i := range 20_000 {
				fmt.Fprintf(out, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%d}}`+"\n", i)
			}
			reply(`{"content":[]}`)
			_ = out.Flush()
			os.Exit(0)
		case m.Method == "tools/call" && m.Params.Name == "die":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			time.Sleep(time.Hour)
		case m.Method == "tools/call" && m.Params.Name == "slow":
			// Never answered.
		case m.Method == "tools/call" && m.Params.Name == "env":
			text, _ := json.Marshal(os.Getenv(m.Params.Arguments.Text))
			reply(`{"content":[{"type":"text","text":` + string(text) + `}]}`)
		case m.ID != nil && m.Method != "":
			reply(`{"content":[]}`)
		}
		_ = out.Flush()
	}
}

// session is one shim that a test talks to.
type session struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe *os.File // under out
	dir  string   // of the log
	home string

	mu     sync.Mutex
	stderr bytes.Buffer
	ended  chan struct{}
}

type options struct {
	dir   string   // "" is a new one
	env   []string // beside the usual
	flags []string
	raw   []string // the server's command, instead of the test's own
}

// launch starts a shim with a server that has the given arguments.
func launch(t *testing.T, o options, server ...string) *session {
	t.Helper()
	s := &session{t: t, dir: o.dir, home: t.TempDir(), ended: make(chan struct{})}
	if s.dir == "" {
		s.dir = filepath.Join(t.TempDir(), "audit")
	}
	command := append([]string{os.Args[0]}, server...)
	if o.raw != nil {
		command = o.raw
	}
	s.cmd = exec.Command(os.Args[0], append(append(o.flags, "--"), command...)...)
	s.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home, roleVariable + "=shim", "MCP_AUDIT_DIR=" + s.dir}, o.env...)
	s.cmd.WaitDelay = patience // for a process of the server that outlives its shim
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = w, lockedWriter{s}
	s.out, s.pipe = bufio.NewReaderSize(out, 1<<20), out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		<-s.ended
		_ = out.Close()
	})
	return s
}

type lockedWriter struct{ s *session }

func (w lockedWriter) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.stderr.Write(p)
}

func (s *session) errText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stderr.String()
}

// closeOut closes the client's end of the shim's output.
func (s *session) closeOut() { _ = s.pipe.Close() }

func (s *session) send(lines ...string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, strings.Join(lines, "\n")+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// next is the client's next line, "" at the end.
func (s *session) next() string {
	s.t.Helper()
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() {
		line, err := s.out.ReadString('\n')
		got <- read{line, err}
	}()
	select {
	case r := <-got:
		if r.err != nil && !errors.Is(r.err, io.EOF) {
			s.t.Fatal(r.err)
		}
		return strings.TrimSuffix(r.line, "\n")
	case <-time.After(patience):
		s.t.Fatalf("the client got nothing; standard error:\n%s", s.errText())
	}
	return ""
}

func (s *session) gets(want ...string) {
	s.t.Helper()
	for _, line := range want {
		if got := s.next(); got != line {
			s.t.Fatalf("the client got %.300q, want %.300q; standard error:\n%s", got, line, s.errText())
		}
	}
}

const initLine = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// initialized does the handshake.
func (s *session) initialized() {
	s.t.Helper()
	s.send(initLine)
	s.gets(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`)
	s.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func call(id, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{},"_meta":{"progressToken":"t%s"}}}`, id, tool, id)
}

func done(id string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, id)
}

// exit waits for the shim's end and returns its code.
func (s *session) exit() int {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		s.t.Fatalf("the shim does not end; standard error:\n%s", s.errText())
	}
	return -1
}

// pid finds a process id that the server wrote to standard error.
func (s *session) pid(who string) int {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if _, after, ok := strings.Cut(s.errText(), who+" "); ok {
			if text, _, whole := strings.Cut(after, "\n"); whole {
				n, err := strconv.Atoi(text)
				if err != nil {
					s.t.Fatal(err)
				}
				return n
			}
		}
		time.Sleep(2 * time.Millisecond) // another process writes it
	}
	s.t.Fatalf("%s did not say its process id", who)
	return 0
}

// isGone waits for the end of a process that is not the test's child.
func isGone(t *testing.T, pid int, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && strings.HasPrefix(state, "Z") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
		time.Sleep(2 * time.Millisecond) // nobody tells of it
	}
}

// record is one decoded record of the log.
type record map[string]any

func (r record) str(name string) string {
	s, _ := r[name].(string)
	return s
}

// records verifies a log and returns its operations and events.
func records(t *testing.T, dir string) []record {
	t.Helper()
	keys, err := auditlog.LoadKeyring(filepath.Join(dir, "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.jsonl")
	report, err := auditlog.Verify(context.Background(), []auditlog.Source{auditlog.FileSource(path)}, auditlog.VerifyOptions{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if report.Exit != 0 {
		text, _ := json.MarshalIndent(report, "", " ")
		t.Fatalf("the log does not verify:\n%s", text)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []record
	for line := range bytes.Lines(data) {
		var rec record
		if err := json.Unmarshal(line, &rec); err != nil {
			t.Fatal(err)
		}
		switch rec.str("kind") {
		case "intent", "outcome", "event":
			out = append(out, rec)
		}
	}
	return out
}

// outcome finds the outcome of the operation with the given method and id.
func outcome(t *testing.T, recs []record, method, id string) record {
	t.Helper()
	for _, intent := range recs {
		if intent.str("kind") != "intent" || intent.str("method") != method || intent.str("request_id") != id {
			continue
		}
		for _, rec := range recs {
			if rec.str("kind") == "outcome" && rec.str("audit_operation_id") == intent.str("audit_operation_id") {
				return rec
			}
		}
		t.Fatalf("%s %s has no outcome", method, id)
	}
	t.Fatalf("%s %s has no intent", method, id)
	return nil
}

// backdate makes a file look a minute old.
func backdate(t *testing.T, path string) {
	t.Helper()
	then := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
}
