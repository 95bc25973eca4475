package cli

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

func importCommand() *cobra.Command {
	var output, name string
	var flags verifyFlags
	cmd := &cobra.Command{
		Use:   "import FILE… [--output LOG]",
		Short: "Start a log that names the log of another system it follows",
		Long: `import verifies a log of another system (P4ST4S/mcp-audit, mcp-audit-gateway)
and starts a new log whose first record names it: the hash of its bytes, the
number of its records and what verification said of the worst of them. From then
on the old log cannot be changed without that being seen. The old files stay
where they are, and keep them: nothing is copied.

A log with faults is imported, too; the record says so.`,
		Example: `  mcp-audit import /var/log/old/audit.jsonl --output /var/lib/mcp-audit/audit.jsonl`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.maxLine = auditlog.MaxLine
			return importLog(cmd, args, &flags, output, name)
		},
	}
	f := cmd.Flags()
	f.StringVar(&output, "output", "", "the new `log` (default: audit.jsonl in the default folder)")
	f.StringVar(&name, "name", "", "`name` of the new log, part of its origin (default: mcp-audit/ and the host name)")
	f.StringVar(&flags.keys, "keys", "", "key `file` of the old log")
	f.StringVar(&flags.pub, "pub", "", "public `key` of the old log")
	return cmd
}

func importLog(cmd *cobra.Command, args []string, flags *verifyFlags, output, name string) error {
	old := logFiles{name: args[0], files: args}
	log, err := foreign(cmd.Context(), old)
	switch {
	case err != nil:
		return err
	case log == nil:
		return fmt.Errorf("%s is no log of another system that this program knows: P4ST4S/mcp-audit or mcp-audit-gateway", args[0])
	}
	var target []string
	if output != "" {
		target = []string{output}
	}
	path, err := logPath(target)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already; name a new log with --output", path)
	}
	// What is named must be what was verified: hashed before and after.
	before, err := hashFiles(args)
	if err != nil {
		return err
	}
	report, err := log.verify(cmd, flags)
	if err != nil {
		return err
	}
	if after, err := hashFiles(args); err != nil || after != before {
		return errors.Join(fmt.Errorf("%s is written to at this moment; stop the other system first", args[0]), err)
	}
	imported := &auditlog.Imported{SHA256: before, Count: uint64(report.Records), Status: importStatus(report)}
	if err := startImported(cmd.Context(), path, name, imported); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s begins; it names %s with %d records, status %s\n", path, args[0], report.Records, imported.Status)
	return nil
}

// importStatus is the worst status, or that something else is wrong.
func importStatus(r *legacy.Report) string {
	if r.Exit == auditlog.ExitTampered && r.Invalid+r.Unsigned == 0 {
		for _, f := range r.Findings {
			if f.Class == auditlog.ClassTampered {
				return f.Kind
			}
		}
	}
	return string(r.Worst)
}

func startImported(ctx context.Context, path, name string, imported *auditlog.Imported) error {
	keys, err := auditlog.LoadOrCreateKeyring(keysBeside(path), auditlog.DefaultKeyID, name)
	if err != nil {
		return fmt.Errorf("the keys of %s: %w", path, err)
	}
	store, err := jsonl.New(path, jsonl.Options{})
	if err != nil {
		return err
	}
	log, err := auditlog.Open(ctx, auditlog.Config{
		Store: store, Name: name, Secret: secretFromEnvironment(), Keys: keys, Import: imported,
		Version: Version(), Actor: "mcp-audit import",
	})
	if err != nil {
		return refused(err)
	}
	return log.Close(ctx)
}

// hashFiles is the SHA-256 of the bytes of files, one after the other.
func hashFiles(paths []string) (auditlog.Hash, error) {
	h := sha256.New()
	for _, path := range paths {
		f, err := os.Open(filepath.Clean(path))
		if err != nil {
			return auditlog.Hash{}, err
		}
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return auditlog.Hash{}, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	return auditlog.Hash(h.Sum(nil)), nil
}
