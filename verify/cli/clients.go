package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/verify/clients"
)

func clientsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "clients",
		Short: "List the MCP servers that desktop clients start, and have them audited",
		Long: `clients reads the configurations of Claude Desktop, Claude Code, Cursor, VS
Code, Zed and Continue, those of the user and those of the project in the
current folder, and says which of their servers are started through
mcp-audit-shim. A remote server has no command; to audit it, put a Caddy with
mcp_audit in front of it and give the client that address.`,
		Example: `  mcp-audit clients
  mcp-audit clients wrap filesystem --dry-run
  mcp-audit clients unwrap filesystem --client cursor`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listClients(cmd, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object for each server")
	cmd.AddCommand(editClients(true), editClients(false))
	return cmd
}

func listClients(cmd *cobra.Command, asJSON bool) error {
	place, err := clients.Here()
	if err != nil {
		return err
	}
	all, errs := clients.List(place)
	out := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	if !asJSON && len(all) > 0 {
		fmt.Fprintln(out, "CLIENT\tSERVER\tSTATE\tCOMMAND\tFILE")
	}
	for _, s := range all {
		what := s.URL
		if what == "" {
			what = baseOf(s.Command)
		}
		if asJSON {
			line, err := json.Marshal(map[string]any{"client": s.Client.ID, "server": s.Name, "state": s.State(), "command": s.Command, "url": withoutQuery(s.URL), "file": s.File})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", line)
			continue
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", s.Client.Name, printable(s.Name), s.State(), printable(withoutQuery(what)), s.File)
	}
	err = out.Flush()
	if len(all) == 0 && len(errs) == 0 {
		cmd.PrintErrln("mcp-audit: no known client has a server configured")
	}
	return errors.Join(append([]error{err}, errs...)...)
}

// withoutQuery takes off what may be a credential.
func withoutQuery(url string) string {
	url, _, _ = strings.Cut(url, "?")
	if scheme, rest, ok := strings.Cut(url, "://"); ok {
		if host, path, _ := strings.Cut(rest, "/"); strings.Contains(host, "@") {
			return scheme + "://" + host[strings.LastIndexByte(host, '@')+1:] + "/" + path
		}
	}
	return url
}

func baseOf(command string) string { return command[strings.LastIndexAny(command, `/\`)+1:] }

// clientEdit is the flags of wrap and unwrap.
type clientEdit struct {
	client, file, shim string
	caddy              string
	dryRun             bool
}

func editClients(wrap bool) *cobra.Command {
	var e clientEdit
	cmd := &cobra.Command{
		Use:   "unwrap SERVER",
		Short: "Have a client start a server itself again",
		Long: `unwrap takes mcp-audit-shim out of a server's command in a client's
configuration. All else in the file stays as it is, comments too, and the file
as it was stays beside it.`,
		Example: `  mcp-audit clients unwrap filesystem
  mcp-audit clients unwrap filesystem --client cursor --dry-run`,
		Args: cobra.ExactArgs(1),
	}
	if wrap {
		cmd.Use, cmd.Short = "wrap SERVER", "Have a server audited: put mcp-audit-shim in front of its command"
		cmd.Long = `wrap puts mcp-audit-shim in front of a server's command in a client's
configuration. All else in the file stays as it is, comments too, and the file
as it was stays beside it. The client has to be started again.`
		cmd.Example = `  mcp-audit clients wrap filesystem --dry-run
  mcp-audit clients wrap github --client claude-desktop --caddy http://127.0.0.1:4422/github`
		cmd.Flags().StringVar(&e.shim, "shim", "", "`path` of mcp-audit-shim (default: beside this program, or in PATH)")
		cmd.Flags().StringVar(&e.caddy, "caddy", "", "audit in a running Caddy: `address` of its route")
	}
	cmd.Flags().StringVar(&e.client, "client", "", "`client` that is meant, if several have a server of this name: claude-desktop, claude-code, cursor, vscode, zed, continue")
	cmd.Flags().StringVar(&e.file, "file", "", "configuration `file` that is meant, if several have it")
	cmd.Flags().BoolVar(&e.dryRun, "dry-run", false, "print what would change, and change nothing")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return e.run(cmd, args[0], wrap) }
	return cmd
}

func (e *clientEdit) run(cmd *cobra.Command, name string, wrap bool) error {
	server, err := e.find(name)
	if err != nil {
		return err
	}
	before, err := os.ReadFile(server.File)
	if err != nil {
		return err
	}
	var after []byte
	if wrap {
		if e.shim == "" && server.State() == clients.NotAudited {
			if e.shim, err = findShim(); err != nil {
				return err
			}
		}
		if e.shim, err = filepath.Abs(e.shim); err != nil {
			return err
		}
		how := clients.Wrap{Shim: e.shim}
		if e.caddy != "" {
			how.Options = []string{"--caddy", e.caddy}
		}
		after, err = server.Wrap(before, how)
	} else {
		after, err = server.Unwrap(before)
	}
	if errors.Is(err, clients.ErrState) {
		return usage("%w", err)
	}
	if err != nil {
		return err
	}
	if e.dryRun {
		return difflib.WriteUnifiedDiff(cmd.OutOrStdout(), difflib.UnifiedDiff{
			A: difflib.SplitLines(string(before)), B: difflib.SplitLines(string(after)),
			FromFile: server.File, ToFile: server.File, Context: 3,
		})
	}
	backup, err := clients.Replace(server.File, before, after, time.Now().UTC().Format("20060102T150405.000000000Z"))
	if err != nil {
		return err
	}
	state := "is not audited any more"
	if wrap {
		state = "is audited"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s of %s %s once the client is started again; the file as it was: %s\n", printable(server.Name), server.Client.Name, state, backup)
	return err
}

// find is the one server that is meant.
func (e *clientEdit) find(name string) (*clients.Server, error) {
	place, err := clients.Here()
	if err != nil {
		return nil, err
	}
	known := clients.Known(place)
	if e.client != "" && !slices.ContainsFunc(known, func(c clients.Client) bool { return c.ID == e.client }) {
		var ids []string
		for _, c := range known {
			ids = append(ids, c.ID)
		}
		return nil, usage("there is no client %q; --client takes %s", e.client, strings.Join(ids, ", "))
	}
	all, errs := clients.List(place)
	var found []clients.Server
	for _, s := range all {
		if s.Name == name && (e.client == "" || s.Client.ID == e.client) && (e.file == "" || sameFile(s.File, e.file)) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return nil, errors.Join(append([]error{usage("no client that was looked at has a server %q; `mcp-audit clients` lists them", name)}, errs...)...)
	case 1:
		return &found[0], nil
	}
	var where []string
	for _, s := range found {
		where = append(where, fmt.Sprintf("%s in %s", s.Client.ID, s.File))
	}
	return nil, usage("several have a server %q: %s; name one with --client or --file", name, strings.Join(where, ", "))
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
