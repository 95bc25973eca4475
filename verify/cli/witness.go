package cli

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/witness"
)

// witnessFlags are the options of witness.
type witnessFlags struct {
	listen, key, name, state string
	logs                     []string
	print                    bool
}

func witnessCommand() *cobra.Command {
	f := witnessFlags{}
	cmd := &cobra.Command{
		Use:   "witness --log VKEY…",
		Short: "Cosign the checkpoints of other installations' logs",
		Long: `witness is a witness of transparency logs (C2SP tlog-witness). It signs a
checkpoint of a log only if that continues all the log's checkpoints that it
signed before, so a log that it witnesses can neither be rewritten nor shown in
two versions. Run it on another machine, under another administrator, than the
logs that it serves: two installations can witness each other.

The key file is made on first use. Give --print-vkey to whoever runs the logs,
for ` + "`anchor witness URL VKEY`" + ` and for policies. Keep the state folder: without
it the witness does not know what it has signed.

It listens on this machine alone unless --listen says otherwise. Put a server
with TLS in front of it, for example Caddy's reverse_proxy.`,
		Example: `  mcp-audit witness --name witness.example/w1 --print-vkey
  mcp-audit witness --name witness.example/w1 --log "$(cat gateway.vkey)"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "127.0.0.1:4431", "`address` to listen on")
	flags.StringVar(&f.key, "key", "", "key `file` with the Ed25519 key (default: witness.json in the default folder), made if there is none")
	flags.StringVar(&f.name, "name", "", "`name` of the witness (default: the one in the key file, else the host's name)")
	flags.StringVar(&f.state, "state", "", "`folder` for the newest checkpoint of each log (default: witness beside the key file)")
	flags.StringArrayVar(&f.logs, "log", nil, "public key (`vkey`) of a log to witness, or @FILE with one a line; may be repeated")
	flags.BoolVar(&f.print, "print-vkey", false, "print the witness's public key and end")
	return cmd
}

func (f *witnessFlags) run(cmd *cobra.Command) error {
	if f.key == "" {
		dir, err := defaultDir()
		if err != nil {
			return err
		}
		f.key = filepath.Join(dir, "witness.json")
	}
	if f.state == "" {
		f.state = filepath.Join(filepath.Dir(f.key), "witness")
	}
	name, key, err := f.signer()
	if err != nil {
		return err
	}
	if f.print {
		vkey, err := auditlog.CosignerVKey(name, key.Public().(ed25519.PublicKey))
		if err != nil {
			return usage("%w", err)
		}
		fmt.Fprintln(cmd.OutOrStdout(), vkey)
		return nil
	}
	logs, err := f.vkeys()
	if err != nil {
		return err
	}
	cfg := witness.Config{Name: name, Key: key, Logs: logs, Dir: f.state, Logger: stderrLogger(cmd)}
	w, err := witness.New(cfg)
	if err != nil {
		return usage("%w", err)
	}
	err = f.serve(cmd, w, len(logs))
	return errors.Join(err, w.Close())
}

// signer finds the key, making it on first use, and the witness's name.
func (f *witnessFlags) signer() (string, ed25519.PrivateKey, error) {
	made := f.name
	if made == "" {
		host, err := os.Hostname()
		if err != nil || host == "" {
			return "", nil, usage("this machine has no name; give one with --name")
		}
		made = host + "/witness"
	}
	keys, err := auditlog.LoadOrCreateKeyring(f.key, auditlog.DefaultKeyID, made)
	if err != nil {
		return "", nil, fmt.Errorf("reading the witness's key: %w", err)
	}
	name := f.name
	if name == "" {
		name = keys.Name()
	}
	if name == "" {
		return "", nil, usage("the key file %s names no witness; give its name with --name", f.key)
	}
	for _, k := range keys.PublicKeys() {
		if private, ok := keys.SigningKey(k.KeyID); ok {
			return name, private, nil
		}
	}
	return "", nil, fmt.Errorf("the key file %s has no private Ed25519 key; make one with `mcp-audit keygen --out FILE`", f.key)
}

// vkeys lists the logs' keys.
func (f *witnessFlags) vkeys() (list []string, err error) {
	for _, text := range f.logs {
		path, isFile := strings.CutPrefix(text, "@")
		if !isFile {
			list = append(list, strings.TrimSpace(text))
			continue
		}
		data, err := readBounded(path, maxProofFile)
		if err != nil {
			return nil, usage("reading the logs' keys: %w", err)
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
				list = append(list, line)
			}
		}
	}
	return list, nil
}

// How long the witness waits for a request and for its end.
const (
	witnessRequestTime  = 15 * time.Second
	witnessShutdownTime = 5 * time.Second
)

func (f *witnessFlags) serve(cmd *cobra.Command, w *witness.Witness, logs int) error {
	listener, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", f.listen)
	if err != nil {
		return usage("listening: %w", err)
	}
	server := &http.Server{
		Handler: w, ReadHeaderTimeout: witnessRequestTime, ReadTimeout: witnessRequestTime, WriteTimeout: witnessRequestTime,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}
	fmt.Fprintf(cmd.OutOrStdout(), "witness %s\nlistening on http://%s for %d logs\n", w.VKey(), listener.Addr(), logs)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return err
	case <-cmd.Context().Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), witnessShutdownTime)
	defer cancel()
	return server.Shutdown(ctx)
}

// stderrLogger prints diagnostics as text on the command's standard error.
func stderrLogger(cmd *cobra.Command) *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.AddSync(cmd.ErrOrStderr()), zap.InfoLevel))
}
