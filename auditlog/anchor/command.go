package anchor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Command gives each checkpoint to a program of the operator, which takes it
// to a git repository, an object store or a time-stamping service. The program
// is run without a shell, gets the note on standard input and, in the
// environment, MCP_AUDIT_ORIGIN and MCP_AUDIT_SIZE; the secrets of the log are
// taken out of it. Exit code 0 says that the checkpoint is anchored. What it
// prints is kept as its receipt, up to 64 KiB.
type Command struct {
	argv    []string
	timeout time.Duration
}

// DefaultCommandTimeout is how long a command may take.
const DefaultCommandTimeout = 30 * time.Second

// The bounds of what a command may print.
const (
	maxReceipt  = 64 << 10
	maxComplain = 512
)

// NewCommand returns the anchor of a program and its arguments. timeout 0 is
// DefaultCommandTimeout.
func NewCommand(argv []string, timeout time.Duration) (*Command, error) {
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("anchor command: there is no program to run")
	}
	if timeout <= 0 {
		timeout = DefaultCommandTimeout
	}
	return &Command{argv, timeout}, nil
}

// Type implements Anchor.
func (c *Command) Type() string { return "command" }

// Name implements Anchor: the command line.
func (c *Command) Name() string { return strings.Join(c.argv, " ") }

// Submit implements Anchor.
func (c *Command) Submit(ctx context.Context, s *Submission) (Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
	cmd.Stdin = bytes.NewReader(s.Note)
	out, errs := &limited{most: maxReceipt}, &limited{most: maxComplain}
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.Env = append(withoutSecrets(os.Environ()),
		"MCP_AUDIT_ORIGIN="+s.Head.Origin, fmt.Sprintf("MCP_AUDIT_SIZE=%d", s.Head.Size))
	// A child of the program that holds its output open is not waited for.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case ctx.Err() != nil && err != nil:
		return Receipt{}, fmt.Errorf("the command %s was stopped: it took longer than %s", c.argv[0], c.timeout)
	case err != nil:
		said := strings.ToValidUTF8(strings.TrimSpace(errs.kept.String()), "?")
		if said == "" {
			said = "it printed no reason"
		}
		return Receipt{}, fmt.Errorf("the command %s failed (%w): %s", c.argv[0], err, said)
	case out.over:
		return Receipt{}, fmt.Errorf("the command %s printed more than %d KiB; a receipt is shorter", c.argv[0], maxReceipt>>10)
	}
	return Receipt{Note: s.Note, Extra: out.kept.Bytes()}, nil
}

func withoutSecrets(environment []string) (out []string) {
	for _, entry := range environment {
		if name, _, _ := strings.Cut(entry, "="); name != "MCP_AUDIT_SIGNING_SECRET" && name != "AUDIT_SECRET" {
			out = append(out, entry)
		}
	}
	return out
}

// limited keeps the first bytes that are written to it, and takes the rest.
// The buffer is not embedded: its ReadFrom would take all without a limit.
type limited struct {
	kept bytes.Buffer
	most int
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if room := l.most - l.kept.Len(); len(p) > room {
		l.over = true
		l.kept.Write(p[:room])
		return len(p), nil
	}
	return l.kept.Write(p)
}
