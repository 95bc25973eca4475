// Command release builds the archives of a release: for each target the
// programs, the licence and the README in a .tar.gz, or a .zip for Windows, and
// beside them a bill of materials and the SHA-256 sums of all. `make release`
// calls it.
//
// The same source and the same tools give the same bytes: entries are sorted,
// and carry the commit's time, fixed modes and no owner.
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
	"runtime"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err == nil {
		return
	}
	if !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
	}
	os.Exit(1)
}

// programs are those of an archive, by the name under which it has them.
var programs = []struct{ name, path string }{
	{"caddy-mcp-audit", "./caddymodule/cmd/caddy"},
	{"mcp-audit", "./verify/cmd/mcp-audit"},
	{"mcp-audit-shim", "./shim/cmd/mcp-audit-shim"},
}

type options struct {
	version string
	time    time.Time
	output  string
	tags    string
	ldflags string
	sbom    string
	targets []target
}

func parse(args []string) (*options, error) {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	version := flags.String("version", "", "the release, part of the archives' names")
	at := flags.String("time", "", "time of the commit, RFC 3339, for all entries")
	output := flags.String("output", "dist", "folder for the archives; files of the same names are replaced")
	tags := flags.String("tags", "", "build tags")
	ldflags := flags.String("ldflags", "", "linker flags")
	sbom := flags.String("sbom", "", "the tool that writes the bill of materials, as `go run` takes it; without it there is none")
	targets := flags.String("targets", "linux/amd64", "what to build for, OS/ARCH with commas or spaces between")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	o := &options{version: *version, output: *output, tags: *tags, ldflags: *ldflags, sbom: *sbom}
	if o.version == "" || strings.ContainsAny(o.version, "/\\ ") {
		return nil, fmt.Errorf("-version is %q; name the release, for example v1.2.3", o.version)
	}
	var err error
	if o.time, err = time.Parse(time.RFC3339, *at); err != nil {
		return nil, fmt.Errorf("-time is %q; give the commit's time, for example 2026-12-01T00:00:00Z", *at)
	}
	for _, name := range strings.FieldsFunc(*targets, func(r rune) bool { return r == ',' || r == ' ' }) {
		t, err := parseTarget(name)
		if err != nil {
			return nil, err
		}
		o.targets = append(o.targets, t)
	}
	if len(o.targets) == 0 {
		return nil, errors.New("-targets names none; give for example linux/amd64")
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.output, 0o755); err != nil { //nolint:gosec // it is to be published
		return err
	}
	var made []string
	for _, t := range o.targets {
		name, err := o.archive(ctx, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		fmt.Println(filepath.Join(o.output, name))
		made = append(made, name)
	}
	if o.sbom != "" {
		name, err := o.materials(ctx)
		if err != nil {
			return fmt.Errorf("bill of materials: %w", err)
		}
		fmt.Println(filepath.Join(o.output, name))
		made = append(made, name)
	}
	return writeSums(o.output, made)
}

// archive builds the programs for a target and packs them, and returns the
// name of the archive.
func (o *options) archive(ctx context.Context, t target) (string, error) {
	dir, err := os.MkdirTemp("", "mcp-audit-release-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	entries := []entry{
		{name: "BUILD", text: o.about(t), mode: 0o644},
		{name: "Caddyfile.example", file: "Caddyfile.example", mode: 0o644},
		{name: "LICENSE", file: "LICENSE", mode: 0o644},
		{name: "README.md", file: "README.md", mode: 0o644},
	}
	if t.os == "linux" {
		entries = append(entries, entry{name: "mcp-audit.service", file: "examples/deploy/mcp-audit.service", mode: 0o644})
	}
	for _, p := range programs {
		file := filepath.Join(dir, p.name+t.suffix())
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", o.tags, "-ldflags", o.ldflags, "-o", file, p.path) //nolint:gosec // the arguments are the caller's own
		cmd.Env = append(os.Environ(), "GOOS="+t.os, "GOARCH="+t.arch, "CGO_ENABLED="+t.cgo())
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("go build %s: %w", p.path, err)
		}
		entries = append(entries, entry{name: filepath.Base(file), file: file, mode: 0o755})
	}
	base := "mcp-audit_" + o.version + "_" + t.os + "_" + t.arch
	name := base + t.extension()
	return name, pack(filepath.Join(o.output, name), base, entries, o.time)
}

// about is the text of the file BUILD: what the programs are, and what a build
// without cgo lacks.
func (o *options) about(t target) string {
	text := fmt.Sprintf("mcp-audit %s for %s, of %s, built with %s\n", o.version, t, o.time.UTC().Format(time.RFC3339), runtime.Version())
	if t.cgo() == "1" {
		return text + "With cgo: all of it, against the C library of the machine that built it.\n"
	}
	return text + `Without cgo, and so without SQLite: what needs it (databases as logs, the index,
and so export, ship and the dashboard) says so where it is asked for. Build from
source with CGO_ENABLED=1 to have it.
`
}
