package cli

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func keygenCommand() *cobra.Command {
	var out, keyID, name string
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make the keys of a log",
		Long: `keygen makes a key file: a random MAC key and an Ed25519 key, as a JWK set with
mode 0600. It never replaces a file.

This is only needed to make keys beforehand or elsewhere: a log that finds no
key file makes one on first use. Who has the file can forge records; keep a copy
of it, and give others the public key (` + "`mcp-audit pubkey`" + `) instead.`,
		Example: `  mcp-audit keygen
  mcp-audit keygen --out /etc/mcp-audit/keys.json --name gateway.example`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if out == "" {
				dir, err := defaultDir()
				if err != nil {
					return err
				}
				out = filepath.Join(dir, keysName)
			}
			keys, err := auditlog.GenerateKeyring(keyID, name)
			if err != nil {
				return usage("%w", err)
			}
			if err := os.MkdirAll(filepath.Dir(out), 0o700); err != nil {
				return err
			}
			if err := keys.Save(out); err != nil {
				return fmt.Errorf("writing the keys: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s\n", out)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&out, "out", "", "key `file` to make (default: keys.json in the default folder)")
	flags.StringVar(&keyID, "key-id", auditlog.DefaultKeyID, "`id` of the keys in records")
	flags.StringVar(&name, "name", "", "`name` of the log that the keys are for, so that pubkey can name it before there is a log")
	return cmd
}

func pubkeyCommand() *cobra.Command {
	var keysFile string
	cmd := &cobra.Command{
		Use:   "pubkey [LOG | FOLDER | keys.json]",
		Short: "Print the public key that checkpoints are verified with",
		Long: `pubkey prints a log's public key in the form that verify --pub takes (vkey:
the log's origin, a hash and the key). Give it to whoever is to verify the log
without being able to forge it, by a way that the log's writer does not control.

It is the key that the log's first record names, or, with --keys, the one in the
key file, under the log's origin. With a key file alone the name is the one that
the keys were made for.`,
		Example: `  mcp-audit pubkey > gateway.vkey
  mcp-audit pubkey --keys /etc/mcp-audit/keys.json /var/lib/mcp-audit/audit.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			vkey, err := publicKey(cmd, args, keysFile)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), vkey)
			return nil
		},
	}
	cmd.Flags().StringVar(&keysFile, "keys", "", "key `file` whose key is printed, under the log's origin")
	return cmd
}

func publicKey(cmd *cobra.Command, args []string, keysFile string) (string, error) {
	path, err := logPath(args)
	if err != nil {
		return "", err
	}
	first, err := firstRecord(path)
	if errors.Is(err, fs.ErrNotExist) && keysFile == "" && len(args) == 0 {
		// No log yet: the keys may be there.
		path = keysBeside(path)
		first = nil
	} else if err != nil {
		return "", err
	}
	if first == nil {
		keys, err := auditlog.LoadKeyring(path)
		if err != nil {
			return "", fmt.Errorf("%s is neither a log nor a key file: %w", path, err)
		}
		if keys.Name() == "" {
			return "", fmt.Errorf("the keys in %s are not made for a log of a certain name; give the log: `mcp-audit pubkey --keys %s LOG`", path, path)
		}
		return vkeyOf(keys, "", keys.Name()+"/i0")
	}
	origin, named := first.Text("origin"), first.Text("vkey")
	if origin == "" {
		return "", fmt.Errorf("%s does not begin with a record that names its origin; run `mcp-audit verify`", path)
	}
	if keysFile != "" {
		keys, err := auditlog.LoadKeyring(keysFile)
		if err != nil {
			return "", fmt.Errorf("reading the keys: %w", err)
		}
		return vkeyOf(keys, first.Line.Seal.KeyID, origin)
	}
	beside, err := auditlog.LoadKeyring(keysBeside(path))
	if named == "" {
		if err != nil {
			return "", fmt.Errorf("%s begins in the middle of a log, which names no key; give the key file with --keys", path)
		}
		return vkeyOf(beside, first.Line.Seal.KeyID, origin)
	}
	if err == nil {
		if held, err := vkeyOf(beside, first.Line.Seal.KeyID, origin); err == nil && held != named {
			cmd.PrintErrf("mcp-audit: the log names another key than %s has\n", keysBeside(path))
		}
	}
	return named, nil
}

// vkeyOf is a keyring's public key of an id, or its only one, under an origin.
func vkeyOf(keys *auditlog.Keyring, kid, origin string) (string, error) {
	var key ed25519.PublicKey
	list := keys.PublicKeys()
	for _, k := range list {
		if k.KeyID == kid || len(list) == 1 || kid == "" && key == nil {
			key = k.Key
		}
	}
	if key == nil {
		return "", fmt.Errorf("the key file has no Ed25519 key %q", kid)
	}
	return auditlog.VKey(origin, key)
}

// firstRecord reads the record on line 1; nil if the file holds no log.
func firstRecord(path string) (r *auditlog.Record, err error) {
	f, err := openLines(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	line, err := auditlog.NewReader(f, 0).Next()
	if err != nil {
		return nil, nil
	}
	record, fault := auditlog.ParseRecord([]byte(strings.Clone(string(line))))
	if fault != auditlog.LineOK {
		return nil, nil
	}
	return &record, nil
}
