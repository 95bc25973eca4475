package cli

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// recordAccess appends to a log, before it is read, that it is. The log may be
// in use.
func recordAccess(ctx context.Context, path, keysFile, action, target string) error {
	actor := actorName()
	cfg, err := writerConfig(path, keysFile, actor)
	if err != nil {
		return err
	}
	log, err := auditlog.Open(ctx, cfg)
	if err != nil {
		return fmt.Errorf("recording the access: %w", refused(err))
	}
	err = log.Access(ctx, auditlog.Access{Action: action, Target: target, Actor: actor})
	if err = errors.Join(err, log.Close(ctx)); err != nil {
		return fmt.Errorf("recording the access: %w", err)
	}
	return nil
}

// actorName is who runs the program, as records name it.
func actorName() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "unknown user"
}

// flagsText lists the flags of a command line that say what is read. A text
// that was searched for may be what the log keeps from its readers, so only
// that it was searched for is said.
func flagsText(cmd *cobra.Command) string {
	var parts []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "output", "record", "keys", "index", "rebuild":
		case "text":
			parts = append(parts, "--text …")
		default:
			parts = append(parts, "--"+f.Name+" "+f.Value.String())
		}
	})
	return strings.Join(parts, " ")
}
