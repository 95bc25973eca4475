package shim

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// GuardStdout keeps standard output for the protocol: what prints in this
// process goes to standard error.
func GuardStdout() (*os.File, error) {
	out := os.Stdout
	os.Stdout = os.Stderr
	return out, nil
}

// isRefused reports whether nobody listens on a socket.
func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }

// hungUp reports whether the other end of a pipe is closed; Windows tells only
// who writes to it.
func hungUp(*os.File) bool { return false }
