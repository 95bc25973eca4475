//go:build unix

package shim

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// GuardStdout keeps standard output for the protocol: it returns a private
// duplicate and makes the well-known descriptor a second standard error, so
// that nothing that prints can reach the client.
func GuardStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("standard output cannot be used: %w", err)
	}
	if err := unix.Dup2(2, 1); err != nil {
		return nil, fmt.Errorf("standard error cannot be used: %w", err)
	}
	os.Stdout = os.Stderr
	return os.NewFile(uintptr(fd), "client"), nil
}

// isRefused reports whether nobody listens on a socket.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// hungUp reports whether the other end of a pipe or socket is closed.
func hungUp(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err == nil && gone
}
