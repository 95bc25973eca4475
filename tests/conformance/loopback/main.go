//go:build linux

// Command loopback brings up the loopback interface of the network namespace
// that it runs in, and becomes the command that it is given. A new namespace has
// that interface down, and the tool that usually raises it is not on every
// machine.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"unsafe"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(2)
	}
}

func run(command []string) error {
	if len(command) == 0 {
		return fmt.Errorf("no command")
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	if err := up("lo"); err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	return syscall.Exec(program, command, os.Environ())
}

// up sets the flags of an interface as SIOCSIFFLAGS takes them: struct ifreq is
// the name in 16 bytes, then a union of 24 that begins with the flags.
func up(name string) error {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:15], name)
	request.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}
