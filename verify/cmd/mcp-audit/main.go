// Command mcp-audit reads, follows and verifies audit logs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/caddy-mcp-audit/mcp-audit/verify/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return cli.Run(ctx, os.Args[1:])
}
