//go:build unix

package shim

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// group is the child's process group.
type group struct{ pgid int }

func (g *group) prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

func (g *group) adopt(p *os.Process) error {
	g.pgid = p.Pid
	return nil
}

// signal reaches every process of the group. A group without members is no
// error: all are gone.
func (g *group) signal(sig syscall.Signal) {
	_ = syscall.Kill(-g.pgid, sig)
}

func (g *group) kill() { g.signal(syscall.SIGKILL) }

// statusOf translates the state of an ended process as shells do.
func statusOf(state *os.ProcessState) Status {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal())}
	}
	return Status{Code: state.ExitCode()}
}
