package shim

import "syscall"

// dieWithParent has the kernel kill the child when the shim dies without being
// able to: a SIGKILL, the OOM killer. What the child started ends by the end
// of its input.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
