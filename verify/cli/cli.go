// Package cli has the commands of the mcp-audit program: verify, tail, show,
// export, index, keygen, pubkey, checkpoint, rotate-key, erase, recover, import,
// prove, verify-proof, witness, mcp, dashboard, policy, redact and pins. `caddy mcp-audit` offers the same
// ones. The package does not depend on Caddy.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/verify/release"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// ExitError is the error of a command that ends with a certain exit code. Err
// is nil if all that is to be said was printed.
type ExitError struct {
	Code int
	Err  error
}

// Error is the cause's text.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// exitFailed is the exit code of a command that could not do its work.
const exitFailed = 1

// usage is a mistake on the command line.
func usage(format string, args ...any) error {
	return &ExitError{Code: auditlog.ExitUnreadable, Err: fmt.Errorf(format, args...)}
}

// ExitCode is the exit code that an error of a command stands for; 0 for nil.
func ExitCode(err error) int {
	var exit *ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	}
	return exitFailed
}

// Commands returns the commands, to be added to a parent. Their errors may be
// an ExitError; see Hosted for a parent that does not know it.
func Commands() []*cobra.Command {
	commands := []*cobra.Command{
		verifyCommand(), tailCommand(), showCommand(), exportCommand(), shipCommand(), wrapCommand(), clientsCommand(), indexCommand(),
		keygenCommand(), pubkeyCommand(), checkpointCommand(), rotateKeyCommand(), eraseCommand(), recoverCommand(), importCommand(),
		proveCommand(), verifyProofCommand(), witnessCommand(), mcpCommand(), dashboardCommand(), redactCommand(), policyCommand(), pinsCommand(),
	}
	for _, c := range withSub(commands) {
		c.SilenceUsage, c.SilenceErrors = true, true
		c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
			return usage("%w; see `%s --help`", err, cmd.CommandPath())
		})
		if args := c.Args; args != nil {
			c.Args = func(cmd *cobra.Command, list []string) error {
				if err := args(cmd, list); err != nil {
					return usage("%w; see `%s --help`", err, cmd.CommandPath())
				}
				return nil
			}
		}
	}
	return commands
}

// withSub is the commands and their subcommands.
func withSub(commands []*cobra.Command) (all []*cobra.Command) {
	for _, c := range commands {
		all = append(append(all, c), withSub(c.Commands())...)
	}
	return all
}

// Hosted returns the commands for a program whose main function does not know
// ExitError: a command that fails prints why and ends the process with its
// exit code.
func Hosted() []*cobra.Command {
	commands := Commands()
	for _, c := range withSub(commands) {
		run := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			if err != nil {
				complain(cmd, err)
				os.Exit(ExitCode(err))
			}
			return nil
		}
	}
	return commands
}

// New returns the root command of the mcp-audit program.
func New() *cobra.Command {
	root := &cobra.Command{
		Use:   "mcp-audit",
		Short: "Reads, follows and verifies audit logs of MCP traffic",
		Long: `mcp-audit reads, follows and verifies the signed logs that mcp-audit-shim and
Caddy's mcp_audit handler write.

A log is a JSONL file or a SQLite database; its content says which. Without a
path, commands use audit.jsonl (or audit.db) in the folder that the environment
variable MCP_AUDIT_DIR names, else in ~/.mcp-audit.`,
		Example: `  mcp-audit tail
  mcp-audit verify
  mcp-audit show 12`,
		Version:       Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("unknown command %q; see `%s --help`", args[0], cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate(release.Text("mcp-audit") + "\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%w; see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(Commands()...)
	return root
}

// Run runs the program with its arguments, without its name, prints an error
// to standard error and returns the exit code.
func Run(ctx context.Context, args []string) int {
	root := New()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	complain(cmd, err)
	return ExitCode(err)
}

func complain(cmd *cobra.Command, err error) {
	var exit *ExitError
	if err == nil || errors.As(err, &exit) && exit.Err == nil {
		return
	}
	cmd.PrintErrf("mcp-audit: %v\n", err)
}
