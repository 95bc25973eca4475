package shim

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
	"github.com/caddy-mcp-audit/mcp-audit/shim/lines"
)

// Options are the command line of mcp-audit-shim.
type Options struct {
	// Caddy is the address of an audited route of a running Caddy; empty: one
	// is embedded.
	Caddy string
	// ServerID and ClientID name the two ends in records.
	ServerID, ClientID string
	// LogLevel is debug, info, warn or error.
	LogLevel string
	// RuntimeDir is the folder of the socket for Caddy.
	RuntimeDir string
	// MaxLine is the largest message of the client in bytes.
	MaxLine int
	// Drain is how long calls may still take when the client has closed the
	// shim's input.
	Drain time.Duration
	// AcceptChainBreak is the reason to go on with a log that refused to open.
	AcceptChainBreak string
	// Dir is the folder of the log: MCP_AUDIT_DIR, else ~/.mcp-audit.
	Dir string
	// EnvAllow, if it is not empty, names the variables that the child gets, and
	// EnvDeny those that it does not.
	EnvAllow, EnvDeny patterns
	// RecordStderr has the child's standard error recorded, too.
	RecordStderr bool
	// Config is a Caddy configuration whose mcp_audit the embedded Caddy uses.
	Config string
	// ShowVersion asks for the version alone.
	ShowVersion bool
	// Command is the server to start and its arguments.
	Command []string
}

// largestLine is the largest --max-line: a record holds at most 32 MiB.
const largestLine = 30 << 20

const usageText = `Audits an MCP server that speaks over standard input and output: put this
program and -- in front of the server's command in the client's configuration.

  mcp-audit-shim [options] -- COMMAND [ARGUMENT...]

With no options a Caddy in this process audits, and the log is
~/.mcp-audit/audit.jsonl (MCP_AUDIT_DIR names another folder). Read it with
"mcp-audit tail", check it with "mcp-audit verify".

Options:
`

// ParseOptions reads the command line, without the program's name. The error
// is a sentence for the user; flag.ErrHelp means that help was printed.
func ParseOptions(args []string, stderr io.Writer) (*Options, error) {
	o := &Options{}
	f := flag.NewFlagSet("mcp-audit-shim", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.Caddy, "caddy", "", "audit in a running Caddy: `address` of a route with mcp_audit and\n\"reverse_proxy { dynamic mcp_shim }\", http://127.0.0.1:4422/fs or unix//path[:/route]")
	f.StringVar(&o.ServerID, "server-id", "", "`name` of the server in records (default: from the command)")
	f.StringVar(&o.ClientID, "client-id", "local", "`name` of the client in records")
	f.StringVar(&o.LogLevel, "log-level", "warn", "`level` of what is logged to standard error: debug, info, warn, error")
	f.StringVar(&o.RuntimeDir, "runtime-dir", "", "with --caddy: `folder` of the socket for Caddy\n(default "+capability.DefaultDir()+")")
	f.IntVar(&o.MaxLine, "max-line", lines.DefaultMax, "largest message of the client in `bytes`, up to 31457280")
	f.DurationVar(&o.Drain, "drain", 800*time.Millisecond, "how long open calls may still take once the client has closed its end")
	f.StringVar(&o.AcceptChainBreak, "accept-chain-break", "", "if the log refuses to open, go on with a new chain; the `reason` is recorded")
	f.Var(&o.EnvAllow, "env-allow", "give the server only the variables of these `names` (* for any characters);\nmay be repeated")
	f.Var(&o.EnvDeny, "env-deny", "keep variables of these `names` from the server; may be repeated")
	f.BoolVar(&o.RecordStderr, "record-stderr", false, "record what the server writes to its standard error, redacted")
	f.StringVar(&o.Config, "config", "", "`file`, a Caddyfile or Caddy's JSON, whose mcp_audit directive says what is allowed,\nlimited and redacted (not with --caddy: there the route says it)")
	f.BoolVar(&o.ShowVersion, "version", false, "print the version")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stderr, usageText)
		f.SetOutput(stderr)
		f.PrintDefaults()
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w; see mcp-audit-shim --help", err)
	}
	if o.ShowVersion {
		return o, nil
	}
	o.Command = f.Args()
	return o, o.check(f)
}

func (o *Options) check(f *flag.FlagSet) error {
	if len(o.Command) == 0 || o.Command[0] == "" {
		return errors.New("no server command is given; put it after --, as in: mcp-audit-shim -- npx -y @modelcontextprotocol/server-filesystem /home/me/notes")
	}
	if o.MaxLine < 1 || o.MaxLine > largestLine {
		return fmt.Errorf("--max-line %d is out of bounds; use 1 to %d", o.MaxLine, largestLine)
	}
	if o.Drain < 0 || o.Drain > 10*time.Minute {
		return fmt.Errorf("--drain %s is out of bounds; use 0s to 10m", o.Drain)
	}
	if _, err := o.level(); err != nil {
		return err
	}
	if o.ServerID == "" {
		o.ServerID = ServerID(o.Command)
	}
	for name, value := range map[string]string{"--server-id": o.ServerID, "--client-id": o.ClientID} {
		if value == "" || len(value) > 128 || strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r == '{' || r == '}' || r == 0x7f }) >= 0 {
			return fmt.Errorf("%s %q is no name; use 1 to 128 bytes without braces and control characters", name, value)
		}
	}
	if o.AcceptChainBreak = strings.TrimSpace(o.AcceptChainBreak); o.AcceptChainBreak == "" && given(f, "accept-chain-break") {
		return errors.New("--accept-chain-break needs the reason, which is recorded")
	}
	if o.Caddy == "" {
		return o.findDir()
	}
	if o.Config != "" {
		return errors.New("--config and --caddy exclude each other: the running Caddy has a configuration of its own")
	}
	if o.RuntimeDir == "" {
		o.RuntimeDir = capability.DefaultDir()
	}
	var err error
	if o.RuntimeDir, err = filepath.Abs(o.RuntimeDir); err != nil {
		return fmt.Errorf("--runtime-dir: %w", err)
	}
	_, err = parseCaddyAddress(o.Caddy)
	return err
}

func given(f *flag.FlagSet, name string) (found bool) {
	f.Visit(func(fl *flag.Flag) { found = found || fl.Name == name })
	return found
}

// findDir is where the embedded Caddy's log lies.
func (o *Options) findDir() error {
	dir := os.Getenv("MCP_AUDIT_DIR")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return fmt.Errorf("there is no home directory for the audit log (%w); set MCP_AUDIT_DIR", err)
		}
		dir = filepath.Join(home, ".mcp-audit")
	}
	var err error
	if o.Dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("MCP_AUDIT_DIR: %w", err)
	}
	return nil
}

// level is the level of the shim's own messages.
func (o *Options) level() (slog.Level, error) {
	var level slog.Level
	switch o.LogLevel {
	case "debug", "info", "warn", "error":
		return level, level.UnmarshalText([]byte(o.LogLevel))
	}
	return level, fmt.Errorf("--log-level %q is unknown; use debug, info, warn or error", o.LogLevel)
}

// CaddyLevel is the level of the embedded Caddy, whose warnings say nothing to
// someone who did not configure it.
func (o *Options) CaddyLevel() string {
	if o.LogLevel == "warn" {
		return "ERROR"
	}
	return strings.ToUpper(o.LogLevel)
}

// Logger writes the shim's own messages.
func (o *Options) Logger(w io.Writer) *slog.Logger {
	level, _ := o.level()
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})).With("program", "mcp-audit-shim")
}
