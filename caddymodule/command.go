package caddymodule

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/verify/cli"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-audit",
		Usage: "<command>",
		Short: "Reads and verifies audit logs",
		Long: `
The commands of the mcp-audit program: verify a log, follow it, show one
operation, make keys and checkpoints. Run them from the small program instead
where no Caddy is installed.`,
		CobraFunc: func(cmd *cobra.Command) { cmd.AddCommand(cli.Hosted()...) },
	})
}

// version is what start records name.
func version() string { return cli.Version() }
