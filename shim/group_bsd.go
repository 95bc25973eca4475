//go:build unix && !linux

package shim

import "syscall"

// dieWithParent does nothing: only Linux offers it. A child whose parent is
// gone sees the end of its input.
func dieWithParent(*syscall.SysProcAttr) {}
