package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Exit codes of the shim that are not the child's.
const (
	// ExitUsage: the command line is wrong.
	ExitUsage = 2
	// ExitRefused: the audit log refused to open, or the audit cannot be
	// set up.
	ExitRefused = 3
	// ExitNotExecutable and ExitNotFound: the command could not be started,
	// as shells report it.
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Status is how a child ended.
type Status struct {
	Code   int    // exit code; 128+n if signal n killed it
	Signal string // its name, for example "SIGKILL", or ""
}

// Reason is a sentence about the end.
func (s Status) Reason() string {
	if s.Signal != "" {
		return "the server process was killed by " + s.Signal
	}
	return "the server process exited with code " + strconv.Itoa(s.Code)
}

// Process is the child: an MCP server and whatever it starts, in a process
// group of its own. It is safe for concurrent use.
type Process struct {
	// Stdin is the child's input. Closing it asks the child to end.
	Stdin *os.File
	// Stdout is the child's output.
	Stdout *os.File
	// Path is the program that was started.
	Path string

	cmd     *exec.Cmd
	group   group
	exited  chan struct{}
	status  Status
	closing sync.Once

	adopting atomic.Bool
}

// StartError says why a child could not be started.
type StartError struct {
	Command string
	Code    int // ExitNotFound or ExitNotExecutable
	Err     error
}

// Error names the command, the reason and the remedy.
func (e *StartError) Error() string {
	if e.Code == ExitNotFound {
		return fmt.Sprintf("the server command %q was not found: install it, or give its full path after --", e.Command)
	}
	return fmt.Sprintf("the server command %q could not be started: %v", e.Command, e.Err)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// StartProcess starts a command without a shell. Its arguments and its
// environment are passed as they are, its standard error is stderr itself. A
// name without a slash is looked up in PATH; one with a slash is relative to
// the working directory.
func StartProcess(argv, env []string, stderr *os.File) (*Process, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, startError(argv[0], err)
	}
	if runtime.GOOS == "windows" {
		if err := checkBatch(path, argv[1:]); err != nil {
			return nil, startError(argv[0], err)
		}
	}
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, startError(argv[0], err)
	}
	stdout, childOut, err := os.Pipe()
	if err != nil {
		_ = childIn.Close()
		_ = stdin.Close()
		return nil, startError(argv[0], err)
	}
	p := &Process{
		Stdin: stdin, Stdout: stdout, Path: path, exited: make(chan struct{}),
		cmd: &exec.Cmd{Path: path, Args: argv, Env: env, Stdin: childIn, Stdout: childOut, Stderr: stderr},
	}
	started := make(chan error)
	go p.live(started)
	err = <-started
	_ = childIn.Close()
	_ = childOut.Close()
	if err != nil {
		_ = stdin.Close()
		_ = stdout.Close()
		return nil, startError(argv[0], err)
	}
	return p, nil
}

func startError(command string, err error) error {
	e := &StartError{Command: command, Code: ExitNotExecutable, Err: err}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		e.Code = ExitNotFound
	}
	return e
}

// live starts the child and waits for its end, on one OS thread: Linux ties
// the signal a child gets at its parent's death to the thread that started it,
// and the runtime may end any other.
func (p *Process) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.group.prepare(p.cmd)
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	if err := p.group.adopt(p.cmd.Process); err != nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		started <- err
		return
	}
	started <- nil
	// The error says what the state says better.
	_ = p.cmd.Wait()
	p.status = statusOf(p.cmd.ProcessState)
	close(p.exited)
}

// Exited is closed when the child itself has ended. Processes that it started
// may live on; Kill ends them.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status is how the child ended. It is valid once Exited is closed.
func (p *Process) Status() Status { return p.status }

// CloseStdin tells the child that nothing more will come.
func (p *Process) CloseStdin() { p.closing.Do(func() { _ = p.Stdin.Close() }) }

// Signal sends a signal to every process of the child's group.
func (p *Process) Signal(sig syscall.Signal) { p.group.signal(sig) }

// Kill ends every process of the child's group at once, and those that have
// left it if they were adopted.
func (p *Process) Kill() {
	p.group.kill()
	if p.adopting.Load() {
		killOrphans(p.cmd.Process.Pid)
	}
}

// Adopt makes this process the parent of what the child leaves behind, on Linux,
// until the returned function is called. There may be no other child that is in
// a process group of its own.
func (p *Process) Adopt() (stop func()) {
	release := inherit(p.cmd.Process.Pid)
	p.adopting.Store(true)
	return func() {
		p.adopting.Store(false)
		release()
	}
}

// Pauses of the child's end.
const (
	// StdinPause is how long a child may take to end by the end of its input.
	StdinPause = 500 * time.Millisecond
	// SignalledPause is the same if the client has sent a signal, which the
	// child would have got at once without the shim.
	SignalledPause = 100 * time.Millisecond

	termPause = 300 * time.Millisecond
	killPause = 500 * time.Millisecond
)

// Stop ends the child in the order that servers know: its input ends, after a
// pause it is signalled, then it is killed, together with all it started.
// hurry, when closed, skips to the kill. It returns when the child is gone.
func (p *Process) Stop(sig syscall.Signal, pause time.Duration, hurry <-chan struct{}) {
	p.CloseStdin()
	if !p.gone(pause, hurry) {
		p.Signal(sig)
		p.gone(termPause, hurry)
	}
	p.Kill()
	p.gone(killPause, nil)
}

func (p *Process) gone(within time.Duration, hurry <-chan struct{}) bool {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
	case <-hurry:
	}
	return false
}
