//go:build !unix

package cli

import (
	"errors"
	"os"
	"os/exec"
)

// become runs another program and ends as it does.
func become(path string, argv []string) error {
	cmd := &exec.Cmd{Path: path, Args: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	err := cmd.Run()
	if exited := new(exec.ExitError); errors.As(err, &exited) {
		os.Exit(exited.ExitCode())
	}
	return err
}
