package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a program that was started for a test.
type Process struct {
	Cmd  *exec.Cmd
	Out  *Output // its stdout, unless the test reads that itself
	Err  *Output // its stderr
	done chan struct{}
}

// Output collects what a program prints; safe for concurrent use.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Launch starts cmd and kills it, by its id, when the test ends.
func Launch(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, Out: new(Output), Err: new(Output), done: make(chan struct{})}
	cmd.Stderr = p.Err
	if cmd.Stdout == nil {
		cmd.Stdout = p.Out
	}
	// A grandchild that outlives the program must not hold the test back.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text := p.Err.String()
			if len(text) > 1<<16 {
				text = "…" + text[len(text)-1<<16:]
			}
			t.Logf("stderr of %s:\n%s", cmd.Path, text)
		}
	})
	return p
}

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	p.Cmd.Process.Kill()
	<-p.done
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the program has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal.
func (p *Process) Signal(t testing.TB, s os.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Exit waits for the end and returns the exit code, 128 plus the number for a
// signal.
func (p *Process) Exit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(Patience):
		// A Go program prints its goroutines on SIGABRT.
		p.Cmd.Process.Signal(syscall.SIGABRT)
		Within(t, Patience, "the end by SIGABRT", p.done)
		t.Fatalf("%s has not ended within %s", p.Cmd.Path, Patience)
	}
	if status, ok := p.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return p.Cmd.ProcessState.ExitCode()
}

// Eventually waits for a condition that no event announces, such as a file's
// content.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", Patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Within waits for a channel to be closed.
func Within(t testing.TB, d time.Duration, what string, event <-chan struct{}) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(d):
		t.Fatalf("not within %s: %s", d, what)
	}
}

// Run runs a program to its end and returns what it printed and its exit code.
func Run(t testing.TB, cmd *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !asExit(err, &exit) {
		t.Fatal(fmt.Errorf("%s: %w", cmd.Path, err))
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
