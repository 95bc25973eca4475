package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func rotateKeyCommand() *cobra.Command {
	var keysFile, keyID string
	cmd := &cobra.Command{
		Use:   "rotate-key [LOG | FOLDER]",
		Short: "Let a log go over to new keys, while it is in use",
		Long: `rotate-key makes new keys in a log's key file and appends a record, signed with
the old and the new key, from which on the new ones count. Whoever writes to the
log follows with its next record; nothing is restarted. It prints the new public
key. Who verifies with the first public key alone follows, too, because the
record is signed with both.

The old keys stay in the key file: what they sealed is verified with them. A log
whose signing key is given in the Caddyfile is rotated there: change ` + "`key`" + ` and
reload.`,
		Example: `  mcp-audit rotate-key
  mcp-audit rotate-key /var/lib/mcp-audit/audit.jsonl --key-id spring-2027`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := logPath(args)
			if err != nil {
				return err
			}
			if _, err := os.Stat(path); err != nil {
				return fmt.Errorf("there is no log whose keys could be rotated: %w", err)
			}
			vkey, err := rotateKey(cmd, path, keysFile, keyID)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), vkey)
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&keysFile, "keys", "", "key `file` of the log (default: keys.json beside it)")
	flags.StringVar(&keyID, "key-id", "", "`id` of the new keys (default: the number in the current id, raised by one)")
	return cmd
}

func rotateKey(cmd *cobra.Command, path, keysFile, keyID string) (vkey string, err error) {
	cfg, err := writerConfig(path, keysFile, "mcp-audit rotate-key")
	if err != nil {
		return "", err
	}
	log, err := auditlog.Open(cmd.Context(), cfg)
	if err != nil {
		return "", refused(err)
	}
	vkey, err = log.RotateKey(cmd.Context(), auditlog.KeyRotation{KeyID: keyID})
	return vkey, errors.Join(err, log.Close(cmd.Context()))
}
