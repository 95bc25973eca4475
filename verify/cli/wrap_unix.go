//go:build unix

package cli

import (
	"os"
	"syscall"
)

// become replaces this program by another.
func become(path string, argv []string) error {
	return &os.PathError{Op: "running", Path: path, Err: syscall.Exec(path, argv, os.Environ())}
}
