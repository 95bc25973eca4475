package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// demo holds the folder of a run and the programs that it started.
type demo struct {
	programs string // the folder of the programs
	folder   string // of this run
	log      string
	running  []*exec.Cmd
	problem  error
}

func newDemo(programs, folder string) *demo {
	return &demo{programs: programs, folder: folder, log: filepath.Join(folder, "audit", "audit.jsonl")}
}

func (d *demo) program(name string) string { return filepath.Join(d.programs, name) }

// command is a program in an environment that leads it to the run's folder.
func (d *demo) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.program(name), args...)
	cmd.Dir = d.folder
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + d.folder,
		"XDG_CONFIG_HOME=" + filepath.Join(d.folder, "config"),
		"XDG_DATA_HOME=" + filepath.Join(d.folder, "data"),
		"MCP_AUDIT_DIR=" + filepath.Dir(d.log),
	}
	return cmd
}

// listen starts a program on a free loopback port and waits until it accepts
// connections.
func (d *demo) listen(name string, args func(address string) []string) (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	address := listener.Addr().String()
	listener.Close()
	cmd := d.command(context.Background(), name, args(address)...)
	if d.problem != nil {
		return "", d.problem
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("%w; run `make build` first", err)
	}
	d.running = append(d.running, cmd)
	for range 500 {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return address, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	d.stopAll()
	return "", fmt.Errorf("%s does not listen on %s:\n%s", name, address, &stderr)
}

// stopAll ends what was started, the last first.
func (d *demo) stopAll() {
	for len(d.running) > 0 {
		cmd := d.running[len(d.running)-1]
		d.running = d.running[:len(d.running)-1]
		cmd.Process.Signal(os.Interrupt)
		timer := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		timer.Stop()
	}
}

// show runs an mcp-audit command, prints it with its output, and checks its
// exit code.
func (d *demo) show(ctx context.Context, code int, args ...string) error {
	shown := make([]string, len(args))
	for i, arg := range args {
		if rel, err := filepath.Rel(d.folder, arg); err == nil && strings.HasPrefix(arg, d.folder) {
			arg = rel
		}
		shown[i] = arg
	}
	fmt.Printf("\n  %s\n", bold("1", "$ mcp-audit "+strings.Join(shown, " ")))
	cmd := d.command(ctx, "mcp-audit", args...)
	out, err := cmd.CombinedOutput()
	text := strings.ReplaceAll(string(out), d.folder+"/", "")
	for line := range strings.Lines(text) {
		fmt.Print("    ", line)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		return fmt.Errorf("mcp-audit %s exited %d, expected %d", args[0], got, code)
	}
	if code != 0 {
		fmt.Printf("    (exit %d)\n", code)
	}
	return nil
}

func (d *demo) publicKey(ctx context.Context) string {
	out, err := d.command(ctx, "mcp-audit", "pubkey", d.log).Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func heading(n int, title string) {
	fmt.Printf("\n%s\n", bold("1;36", fmt.Sprintf("%d. %s", n, title)))
}

func say(format string, args ...any) { fmt.Printf("   "+format+"\n", args...) }

// bold marks a text, on a terminal only.
func bold(style, text string) string {
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return text
	}
	return "\033[" + style + "m" + text + "\033[0m"
}
