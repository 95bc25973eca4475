package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/dashboard"
)

// dashboardFlags are the options of dashboard.
type dashboardFlags struct {
	listen string
	index  string
	token  string
	record bool
	reader LogReader
}

func dashboardCommand() *cobra.Command {
	var f dashboardFlags
	cmd := &cobra.Command{
		Use:   "dashboard [LOG]",
		Short: "Show a log in a browser, on this machine alone",
		Long: `dashboard serves the pages of Caddy's mcp_audit_dashboard for one log: figures
and charts, the calls as they happen, one call with its messages and what
protects its records, and what a verification finds. It prints the address.

It listens on a loopback address only, refuses pages of other sites, and changes
nothing but the index beside the log, which it brings up to date in the
background. Whoever can reach the loopback of this machine can read the log
through it: on a machine that others use too, give it a token.`,
		Example: `  mcp-audit dashboard
  mcp-audit dashboard /var/lib/mcp-audit/audit.jsonl --listen 127.0.0.1:0`,
		Args: cobra.MaximumNArgs(1),
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:9090", "loopback `address` to listen on; port 0: any that is free")
	flags.StringVar(&f.index, "index", "", "`file` of the index (default: the log's path and .index)")
	flags.StringVar(&f.token, "token-file", "", "`file` with a token of 32 bytes or more that readers log in with")
	flags.BoolVar(&f.record, "record", false, "append to the log who reads what; needs the log's keys")
	flags.StringVar(&f.reader.KeysFile, "keys", "", "key `file` (a JWK set) with the MAC keys, for verification")
	flags.StringArrayVar(&f.reader.Anchors, "anchor", nil, "`file` with a checkpoint that was kept elsewhere, or a folder of them; may be repeated")
	flags.StringArrayVar(&f.reader.VKeys, "witness", nil, "public key (`vkey`) of a witness whose cosignatures count; may be repeated")
	return cmd
}

func (f *dashboardFlags) run(cmd *cobra.Command, args []string) (err error) {
	if err := dashboard.Available(); err != nil {
		return fmt.Errorf("the dashboard reads the log by its index: %w", err)
	}
	path, err := logPath(args)
	if err != nil {
		return err
	}
	if f.reader.Path, err = filepath.Abs(path); err != nil {
		return usage("%s: %w", path, err)
	}
	if err := f.reader.Check(cmd.Context()); err != nil {
		return usage("%w; give the path of a log, or set MCP_AUDIT_DIR", err)
	}
	token, err := tokenOf(f.token)
	if err != nil {
		return err
	}
	place, remove, err := f.indexPlace(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	listener, err := listenLoopback(cmd.Context(), f.listen)
	if err != nil {
		return err
	}
	o := dashboard.Options{
		Name: filepath.Base(path), Path: f.reader.Path, IndexPath: place, Log: &f.reader, Token: token, Version: Version(),
		Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)),
	}
	if f.record {
		o.Actor = func(*http.Request) string { return actorName() }
		o.Record = func(ctx context.Context, a auditlog.Access) error {
			return recordAccess(ctx, f.reader.Path, f.reader.KeysFile, a.Action, a.Target)
		}
	}
	handler, err := dashboard.New(o)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	fmt.Fprintf(cmd.OutOrStdout(), "the dashboard of %s is at http://%s/\n", f.reader.Path, listener.Addr())
	return serveUntilDone(cmd.Context(), listener, handler)
}

// serveUntilDone serves until the context ends.
func serveUntilDone(ctx context.Context, listener net.Listener, handler *dashboard.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	// Streams end with the handler.
	err = errors.Join(err, handler.Close())
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if server.Shutdown(wait) != nil {
		err = errors.Join(err, server.Close())
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// tokenOf reads a file with a token, "": none.
func tokenOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", usage("reading the token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if err := dashboard.CheckToken(token); err != nil {
		return "", usage("%s: %w", path, err)
	}
	return token, nil
}

// listenLoopback refuses an address that others can reach.
func listenLoopback(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, usage("--listen %q is no address with a port; write 127.0.0.1:9090", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, usage("--listen %s can be reached from other machines; this command listens on loopback addresses only, Caddy's mcp_audit_dashboard serves others", address)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w; give another address with --listen, for example 127.0.0.1:0", err)
	}
	return listener, nil
}

// indexPlace is where the index lies: where it was told, beside the log, or
// where that cannot be, in a temporary folder, which remove removes.
func (f *dashboardFlags) indexPlace(cmd *cobra.Command) (path string, remove func() error, err error) {
	keep := func() error { return nil }
	if f.index != "" {
		return f.index, keep, nil
	}
	beside := f.reader.Path + index.Suffix
	x, err := index.Open(cmd.Context(), beside, f.reader.Path)
	if err == nil {
		return beside, keep, x.Close()
	}
	cmd.PrintErrf("mcp-audit: %v; using a temporary index\n", err)
	dir, err := os.MkdirTemp("", "mcp-audit-index-")
	return filepath.Join(dir, "log"+index.Suffix), func() error { return os.RemoveAll(dir) }, err
}
