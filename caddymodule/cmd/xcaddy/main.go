// Command xcaddy reads xcaddy.json and runs the xcaddy release that it pins, so
// that `make xcaddy` builds Caddy the way its users do, from one committed
// manifest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "xcaddy:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("xcaddy", flag.ContinueOnError)
	manifest := flags.String("manifest", "xcaddy.json", "the build manifest; its folder holds the module")
	output := flags.String("output", filepath.Join("bin", "caddy-xcaddy"), "the program to write")
	ldflags := flags.String("ldflags", "", "further linker flags")
	if err := flags.Parse(args); err != nil {
		return err
	}
	m, err := ReadManifest(*manifest)
	if err != nil {
		return err
	}
	goArgs, err := m.Args(filepath.Dir(*manifest), *output)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(*output), 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", goArgs...)
	cmd.Env = m.Env(os.Environ(), *ldflags)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("xcaddy %s: %w", m.XcaddyVersion, err)
	}
	return nil
}
