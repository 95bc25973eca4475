// Command demo shows the product in half a minute: a real client calls a real
// server through an audited route, over HTTP and over stdio; the log shows the
// calls, verifies, and does not survive tampering unnoticed. It needs the
// programs of `make build`, keeps everything in a temporary folder and removes
// that at its end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	bin := flags.String("bin", "bin", "the folder of the programs")
	keep := flags.Bool("keep", false, "keep the folder with the log")
	if err := flags.Parse(args); err != nil {
		return err
	}
	programs, err := filepath.Abs(*bin)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "mcp-audit-demo-")
	if err != nil {
		return err
	}
	if *keep {
		fmt.Println("Everything stays in", folder)
	} else {
		defer os.RemoveAll(folder)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := newDemo(programs, folder)
	defer d.stopAll()
	return d.play(ctx)
}
