package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// writerConfig is what the commands that append to a log open it with.
func writerConfig(path, keysFile, actor string) (auditlog.Config, error) {
	cfg := auditlog.Config{
		Secret:  secretFromEnvironment(),
		Version: Version(), Actor: actor,
		CheckpointEvery: -1, CheckpointAfter: -1,
	}
	if keysFile == "" {
		keysFile = keysBeside(path)
	}
	var err error
	if cfg.Keys, err = auditlog.LoadKeyring(keysFile); err != nil {
		return cfg, fmt.Errorf("reading the keys of %s: %w; give the key file with --keys", path, err)
	}
	cfg.Store, err = storeOf(path)
	return cfg, err
}

func checkpointCommand() *cobra.Command {
	var output, keysFile, origin string
	cmd := &cobra.Command{
		Use:   "checkpoint [PATH | FOLDER]",
		Short: "Sign a checkpoint of a log and print it",
		Long: `checkpoint appends a signed checkpoint to a log, beside whoever writes to it,
and prints it: a note of a few lines that states how many records there are and
the hash over all of them. Kept where the log's writer cannot change it, it is
an anchor: ` + "`mcp-audit verify --anchor`" + ` then finds any change to those records,
and any cut.

A writer also keeps its newest checkpoint in LOG.checkpoint.

For a log of another system nothing is appended: the checkpoint is over its
lines as they are.`,
		Example: `  mcp-audit checkpoint --output /mnt/worm/audit.checkpoint
  mcp-audit checkpoint /var/lib/mcp-audit/audit.jsonl | ssh vault 'cat >> checkpoints'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := logPath(args)
			if err != nil {
				return err
			}
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("there is no log to sign: %w", err)
			}
			signed, err := signAny(cmd, path, keysFile, origin)
			if err != nil {
				return err
			}
			if output == "" || output == "-" {
				_, err = cmd.OutOrStdout().Write(signed)
				return err
			}
			return writeFile(output, signed)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&origin, "origin", "", "`name` that a checkpoint over a log of another system carries (default: legacy/ and the file's name)")
	flags.StringVar(&output, "output", "", "`file` for the checkpoint, replaced if it exists (default: standard output)")
	flags.StringVar(&keysFile, "keys", "", "key `file` of the log (default: keys.json beside it)")
	return cmd
}

// signAny signs a checkpoint of a log, whichever system's it is.
func signAny(cmd *cobra.Command, path, keysFile, origin string) ([]byte, error) {
	other, err := foreign(cmd.Context(), logFiles{name: path, files: []string{path}})
	switch {
	case err != nil:
		return nil, err
	case other != nil:
		return signForeign(cmd, other, keysFile, origin)
	case origin != "":
		return nil, usage("--origin is for logs of other systems; %s names its own", path)
	}
	return signCheckpoint(cmd, path, keysFile)
}

func signCheckpoint(cmd *cobra.Command, path, keysFile string) (signed []byte, err error) {
	cfg, err := writerConfig(path, keysFile, "mcp-audit checkpoint")
	if err != nil {
		return nil, err
	}
	log, err := auditlog.Open(cmd.Context(), cfg)
	if err != nil {
		return nil, refused(err)
	}
	signed, err = log.Checkpoint(cmd.Context())
	return signed, errors.Join(err, log.Close(cmd.Context()))
}

// refused gives a log that may not be continued the exit code of a log that
// cannot be judged.
func refused(err error) error {
	var r *auditlog.RefusedError
	if errors.As(err, &r) {
		return &ExitError{Code: auditlog.ExitIncomplete, Err: err}
	}
	return err
}

// writeFile replaces a file as a whole, so that no reader sees half of it.
func writeFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func recoverCommand() *cobra.Command {
	var reason, keysFile string
	cmd := &cobra.Command{
		Use:   "recover LOG --accept-chain-break REASON",
		Short: "Go on with a log that refuses to start because it was damaged or cut",
		Long: `A log that is shorter than, or different from, what its writer last saw is not
continued: whoever did that would otherwise be covered up by what follows.

recover keeps what is there as a closed file and begins a new chain beside it.
Its first record, chain_break, says what was expected, what was found, who went
on and why; verify shows it for ever. Keep a copy of the folder first.`,
		Example: `  mcp-audit recover ~/.mcp-audit/audit.jsonl --accept-chain-break "restored from last night's backup"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if reason == "" {
				return usage("--accept-chain-break needs the reason in a few words: it is recorded")
			}
			path, err := logPath(args)
			if err != nil {
				return err
			}
			cfg, err := writerConfig(path, keysFile, "mcp-audit recover")
			if err != nil {
				return err
			}
			if err := auditlog.Recover(cmd.Context(), cfg, reason, operator()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s begins a new chain; what was there is kept beside it\n", path)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&reason, "accept-chain-break", "", "why the chain may be broken; recorded as `reason`")
	flags.StringVar(&keysFile, "keys", "", "key `file` of the log (default: keys.json beside it)")
	return cmd
}

// operator names who runs the command: user and host.
func operator() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}
