package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

// pinFlags say which pins are meant.
type pinFlags struct {
	log, file, keys string
	unrecorded      bool
}

func pinsCommand() *cobra.Command {
	f := new(pinFlags)
	cmd := &cobra.Command{
		Use:   "pins",
		Short: "Show and decide about tools whose definition was changed",
		Long: `pins shows the definitions of tools that pin_tools has pinned, and what a server
would have in their place. A tool whose definition was changed, or which took
over another's under a new name, is hidden and refused until it is approved.

A running Caddy sees a decision with its next call. Each one is recorded in the
log, with who made it.`,
		Example: `  mcp-audit pins list
  mcp-audit pins diff files write_file
  mcp-audit pins approve files write_file`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVar(&f.log, "log", "", "the log (default: that of the default folder)")
	cmd.PersistentFlags().StringVar(&f.file, "file", "", "the pin `file` (default: pins.json beside the log)")
	cmd.AddCommand(f.list(), f.diff(), f.settle("approve", "Pin the definition that waits, and let the tool be used", "tool approved", (*pins.Store).Approve),
		f.settle("reject", "Turn down the definition that waits; the tool stays hidden until its server goes back", "tool rejected", (*pins.Store).Reject))
	return cmd
}

func (f *pinFlags) open() (store *pins.Store, log string, err error) {
	args := []string{f.log}
	if f.log == "" {
		args = nil
	}
	if log, err = logPath(args); err != nil {
		return nil, "", err
	}
	path := cmp.Or(f.file, filepath.Join(filepath.Dir(log), "pins.json"))
	if _, err := os.Stat(path); err != nil {
		return nil, "", fmt.Errorf("there are no pins: %w; pin_tools makes them with the first list of tools, or name the file with --file", err)
	}
	store, err = pins.Open(path)
	return store, log, err
}

func (f *pinFlags) list() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the pinned tools, and what waits for an approval",
		Long: `list prints a line for each tool: its server, its name, whether it is pinned,
changed, renamed, rejected or gone, and since when.`,
		Example: `  mcp-audit pins list
  mcp-audit pins list --file /var/lib/mcp-audit/pins.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, _, err := f.open()
			if err != nil {
				return err
			}
			all, err := store.List()
			if err != nil {
				return err
			}
			for _, e := range all {
				if err := printPin(cmd.OutOrStdout(), &e); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func printPin(w io.Writer, e *pins.Entry) error {
	state, since := "pinned", e.Pinned
	switch {
	case e.Rejected != "" && e.Pending != nil:
		state, since = "rejected", e.Pending
	case e.Pending != nil:
		state, since = e.Why, e.Pending
	case e.Gone:
		state = "gone"
	}
	if e.From != "" {
		state += " from " + printable(e.From)
	}
	_, err := fmt.Fprintf(w, "%s  %s  %s since %s  %s\n", printable(e.Server), printable(e.Tool), state, since.Since.Format("2006-01-02T15:04:05Z"), since.Digest)
	return err
}

// findPin is the pin of a server's tool.
func findPin(store *pins.Store, server, tool string) (*pins.Entry, error) {
	all, err := store.List()
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Server == server && all[i].Tool == tool {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("tool %q of server %q is not pinned; `mcp-audit pins list` names those that are", tool, server)
}

func (f *pinFlags) diff() *cobra.Command {
	return &cobra.Command{
		Use:   "diff SERVER TOOL",
		Short: "Show what a server changed in a tool's definition",
		Long: `diff prints each place where the definition that waits differs from the pinned
one: what was there with a minus, what would be there with a plus.`,
		Example: `  mcp-audit pins diff files write_file`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, _, err := f.open()
			if err != nil {
				return err
			}
			e, err := findPin(store, args[0], args[1])
			if err != nil {
				return err
			}
			if e.Pending == nil {
				return fmt.Errorf("tool %q of server %q: %w", args[1], args[0], pins.ErrNothingPending)
			}
			old := e.Pinned
			if e.From != "" {
				from, err := findPin(store, e.Server, e.From)
				if err != nil {
					return err
				}
				old = from.Pinned
			}
			if old == nil {
				old = new(pins.Definition)
			}
			for _, d := range pins.Diff(old.Tool, e.Pending.Tool) {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n", printable(d.Path))
				if d.Old != nil {
					fmt.Fprintf(cmd.OutOrStdout(), "  - %s\n", printable(string(d.Old)))
				}
				if d.New != nil {
					fmt.Fprintf(cmd.OutOrStdout(), "  + %s\n", printable(string(d.New)))
				}
			}
			return nil
		},
	}
}

func (f *pinFlags) settle(name, short, reason string, how func(*pins.Store, string, string) (pins.Entry, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " SERVER TOOL",
		Short: short,
		Long: `A record in the log says first who decided what; if the log cannot be written,
nothing is decided. A running Caddy goes by the decision with its next call.`,
		Example: "  mcp-audit pins " + name + " files write_file",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, log, err := f.open()
			if err != nil {
				return err
			}
			e, err := findPin(store, args[0], args[1])
			if err != nil {
				return err
			}
			if e.Pending == nil {
				return fmt.Errorf("tool %q of server %q: %w", args[1], args[0], pins.ErrNothingPending)
			}
			if !f.unrecorded {
				if err := f.record(cmd, log, reason, e); err != nil {
					return err
				}
			}
			if _, err := how(store, args[0], args[1]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s of %s\n", reason, printable(args[1]), printable(args[0]))
			return err
		},
	}
	cmd.Flags().StringVar(&f.keys, "keys", "", "key `file` of the log (default: keys.json beside it)")
	cmd.Flags().BoolVar(&f.unrecorded, "unrecorded", false, "decide without a record, where the log is not on this machine")
	return cmd
}

// record writes who decided.
func (f *pinFlags) record(cmd *cobra.Command, path, reason string, e *pins.Entry) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("the decision cannot be recorded: %w; name the log with --log, or give --unrecorded", err)
	}
	cfg, err := writerConfig(path, f.keys, "mcp-audit pins")
	if err != nil {
		return err
	}
	log, err := auditlog.Open(cmd.Context(), cfg)
	if err != nil {
		return refused(err)
	}
	_, err = log.Event(cmd.Context(), auditlog.Event{Message: auditlog.Message{
		OperationID: auditlog.NewOperationID(), Direction: auditlog.ServerToClient, Method: "tools/list", ServerID: e.Server, MCPName: e.Tool, ToolName: e.Tool,
		Reason: fmt.Sprintf("%s by %s, definition %s", reason, operator(), e.Pending.Digest),
	}})
	return errors.Join(err, log.Close(cmd.Context()))
}
