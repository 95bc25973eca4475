package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
)

// shimName is the program that audits servers on standard input and output.
const shimName = "mcp-audit-shim"

func wrapCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wrap [OPTION…] -- COMMAND [ARGUMENT…]",
		Short: "Audit an MCP server on standard input and output: run mcp-audit-shim",
		Long: `wrap runs the program mcp-audit-shim, which lies beside this one or in PATH,
with the same arguments. It is for those who know the command by this name; a
client's configuration may as well name mcp-audit-shim itself, whose --help has
the options.`,
		Example:            `  mcp-audit wrap -- npx -y @modelcontextprotocol/server-filesystem /home/me/notes`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "--help" || args[0] == "-h" {
				return cmd.Help()
			}
			path, err := findShim()
			if err != nil {
				return err
			}
			return become(path, append([]string{shimName}, args...))
		},
	}
}

// findShim is the shim beside this program, else in PATH.
func findShim() (string, error) {
	name := shimName
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return "", fmt.Errorf("%s is neither beside mcp-audit nor in PATH; install it from the same release", name)
	}
	return path, err
}
