package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
)

// indexed is a log with its index, up to date.
type indexed struct {
	*index.Index
	log       logFiles
	report    *index.Report
	temporary string // folder to be removed; "" if the index stays
}

// indexFlags are the flags of the commands that use an index.
type indexFlags struct {
	path    string
	rebuild bool
}

func (f *indexFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.path, "index", "", "`file` of the index (default: the log's path and .index)")
	cmd.Flags().BoolVar(&f.rebuild, "rebuild", false, "make the index anew from the log")
}

func indexCommand() *cobra.Command {
	var flags indexFlags
	cmd := &cobra.Command{
		Use:   "index [PATH… | FOLDER]",
		Short: "Bring the index of a log up to date, or make it anew",
		Long: `index brings <log>.index up to date: a SQLite file that says where each record
lies and what can be asked for. It has no payloads, it can be deleted at any
time, and it is no evidence. Export and search update it themselves, so that
this command is needed only to do the work beforehand, or with --rebuild.

The log is read without any lock: writers are not delayed.`,
		Example: `  mcp-audit index
  mcp-audit index --rebuild /var/lib/mcp-audit/audit.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			log, err := oneLog(args)
			if err != nil {
				return err
			}
			x, err := openIndex(cmd, log, &flags, false)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, x.close()) }()
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d records, %d of them new\n", x.Path(), x.report.Records, x.report.Added)
			return err
		},
	}
	flags.add(cmd)
	return cmd
}

// oneLog resolves the arguments of a command that takes one log.
func oneLog(args []string) (logFiles, error) {
	logs, err := logsOf(args)
	if err != nil {
		return logFiles{}, err
	}
	if len(logs) > 1 {
		return logFiles{}, usage("there are %d logs in the folder, %s and %s among them; give the path of one", len(logs), logs[0].name, logs[1].name)
	}
	return logs[0], nil
}

// openIndex opens the index of a log and brings it up to date. Where it cannot
// lie beside the log, and the command allows it, a temporary one is made.
func openIndex(cmd *cobra.Command, log logFiles, flags *indexFlags, temporary bool) (*indexed, error) {
	x := &indexed{log: log}
	path := cmp.Or(flags.path, log.name+index.Suffix)
	if flags.rebuild {
		if err := removable(path); err != nil {
			return nil, err
		}
		if err := index.Remove(path); err != nil {
			return nil, err
		}
	}
	var err error
	x.Index, err = index.Open(cmd.Context(), path, log.active())
	if err != nil && flags.path == "" && temporary && !errors.Is(err, index.ErrNoCGO) {
		cmd.PrintErrf("mcp-audit: %v; using a temporary index\n", err)
		if x.temporary, err = os.MkdirTemp("", "mcp-audit-index-"); err == nil {
			x.Index, err = index.Open(cmd.Context(), filepath.Join(x.temporary, "log"+index.Suffix), log.active())
		}
	}
	if err != nil {
		return nil, errors.Join(err, x.remove())
	}
	if x.report, err = x.Update(cmd.Context(), log.files); err != nil {
		return nil, errors.Join(err, x.close())
	}
	for _, note := range append(x.Notes(), x.report.Notes...) {
		cmd.PrintErrf("mcp-audit: note: %s\n", note)
	}
	return x, nil
}

// removable refuses to remove what is no database: a slip on the command line
// must not cost a log.
func removable(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ours, err := index.Is(context.Background(), path)
	if err != nil {
		return err
	}
	if !ours && filepath.Ext(path) != index.Suffix {
		return usage("%s is no index, so that it is not removed; give another place with --index", path)
	}
	return nil
}

// close closes the index and removes a temporary one.
func (x *indexed) close() error { return errors.Join(x.Close(), x.remove()) }

func (x *indexed) remove() error {
	if x.temporary == "" {
		return nil
	}
	return os.RemoveAll(x.temporary)
}
