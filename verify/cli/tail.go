package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// tailer prints a log's calls, one a line.
type tailer struct {
	path   string
	follow bool
	count  int
	all    bool
	json   bool
	color  bool
	out    io.Writer
	err    error // of writing to out
}

func tailCommand() *cobra.Command {
	t := tailer{}
	cmd := &cobra.Command{
		Use:   "tail [PATH | FOLDER]",
		Short: "Show the newest calls, and each new one as it happens",
		Long: `tail prints one line for each finished call: its time, ✓ or ✗, the server and
tool (or method), the duration, the id of its record, and why it failed or was
refused. Facts about the log itself, such as a gap, are marked with "!".

On a terminal it goes on with new calls as they are recorded, until Ctrl-C;
elsewhere only with -f. The log may be rotated or replaced, or not exist yet;
the last calls are also looked for in its closed segments. Nothing is verified
and no lock is taken: see ` + "`mcp-audit verify`" + `.`,
		Example: `  mcp-audit tail
  mcp-audit tail -n 100 /var/lib/mcp-audit/audit.jsonl
  mcp-audit tail -f --json | jq .outcome`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if t.count < 0 {
				return usage("-n %d is negative; give the number of calls to show first", t.count)
			}
			if t.path, err = logPath(args); err != nil {
				return err
			}
			t.out = cmd.OutOrStdout()
			terminal := isTerminal(t.out)
			if !cmd.Flags().Changed("follow") {
				t.follow = terminal
			}
			t.color = terminal && os.Getenv("NO_COLOR") == ""
			return t.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&t.follow, "follow", "f", false, "go on with new calls (default: on a terminal)")
	flags.IntVarP(&t.count, "lines", "n", 10, "`number` of calls to show first")
	flags.BoolVar(&t.all, "all", false, "also show notifications and other single messages")
	flags.BoolVar(&t.json, "json", false, "print the record lines as they are")
	return cmd
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (t *tailer) run(cmd *cobra.Command) error {
	f, err := openView(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && t.follow:
		cmd.PrintErrf("mcp-audit: waiting for the log %s\n", t.path)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no log %s yet; it is made at the first call, or give another path", t.path)
	case err != nil:
		return err
	}
	w := newWatcher(t.path, f, t.line)
	defer w.close()
	if f != nil {
		if w.offset, err = t.last(f); err != nil {
			return err
		}
	}
	if !t.follow || t.err != nil {
		return t.err
	}
	if err := w.run(cmd.Context(), func() bool { return t.err != nil }); err != nil {
		return err
	}
	return t.err
}

// The window at a log's end in which the last calls are looked for.
const (
	firstWindow = 256 << 10
	lastWindow  = 64 << 20
)

// last prints the last calls, also those of closed segments, and returns the
// offset behind the last line of the file.
func (t *tailer) last(f logView) (int64, error) {
	shown, end, err := t.lastOf(f)
	if err != nil {
		return 0, err
	}
	before, err := t.lastClosed(t.count - len(shown))
	if err != nil {
		return 0, err
	}
	for _, line := range append(before, shown...) {
		t.line(line)
	}
	return end, nil
}

// lastOf finds the last calls in a file, and the offset behind its last line.
func (t *tailer) lastOf(f logView) ([][]byte, int64, error) {
	size, err := f.Size()
	if err != nil {
		return nil, 0, err
	}
	for window := int64(firstWindow); ; window *= 4 {
		from := max(size-window, 0)
		data := make([]byte, size-from)
		n, err := f.ReadAt(data, from)
		if err != nil && err != io.EOF {
			return nil, 0, err
		}
		data = data[:n]
		end := bytes.LastIndexByte(data, '\n') + 1
		if from > 0 {
			// The first line is cut.
			at := bytes.IndexByte(data, '\n') + 1
			data, end, from = data[at:], end-at, from+int64(at)
		}
		var shown [][]byte
		for line := range bytes.Lines(data[:max(end, 0)]) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if _, ok := t.render(line); ok {
				shown = append(shown, line)
			}
		}
		if len(shown) < t.count && from > 0 && window < lastWindow {
			continue
		}
		return shown[max(len(shown)-t.count, 0):], from + int64(max(end, 0)), nil
	}
}

// line prints a record if it is one that is shown.
func (t *tailer) line(line []byte) {
	text, ok := t.render(line)
	if !ok || t.err != nil {
		return
	}
	if t.json {
		text = string(line)
	}
	_, t.err = fmt.Fprintln(t.out, text)
}

// render makes the text of a line, and reports whether it is shown.
func (t *tailer) render(line []byte) (string, bool) {
	r, fault := auditlog.ParseRecord(line)
	if fault != auditlog.LineOK && fault != auditlog.LineExtraMember {
		return t.paint(warnColor, "!") + " a line that is no record (" + string(fault) + "); run `mcp-audit verify`", true
	}
	switch r.Kind {
	case "outcome":
		return t.call(&r), true
	case "event":
		if r.Text("outcome") == "" && !t.all {
			return "", false
		}
		return t.call(&r), true
	case "gap", "chain_break", "recovered", "disk_full", "io_error":
		text := localTime(&r) + " " + t.paint(warnColor, "!") + " " + r.Kind
		if n, ok := r.Number("count"); ok && r.Kind == "gap" {
			text += fmt.Sprintf(": %d calls without a record", n)
		}
		if why := r.Text("reason") + r.Text("error"); why != "" {
			text += ": " + printable(why)
		}
		return text, true
	}
	return "", false
}

// The widths of a call's target and reason in characters.
const (
	targetWidth = 32
	maxTarget   = 100
	maxReason   = 300
)

func (t *tailer) call(r *auditlog.Record) string {
	outcome := r.Text("outcome")
	mark := t.paint(failColor, "✗")
	switch auditlog.Result(outcome) {
	case auditlog.Success, auditlog.InputRequired:
		mark = t.paint(goodColor, "✓")
	case "":
		mark = "·"
	}
	duration := "-"
	if ms, ok := r.Number("duration_ms"); ok {
		duration = (time.Duration(ms) * time.Millisecond).String()
		if ms < 10_000 {
			duration = fmt.Sprintf("%d ms", ms)
		}
	}
	target := clipped(printable(target(r)), maxTarget)
	if pad := targetWidth - len([]rune(target)); pad > 0 {
		target += strings.Repeat(" ", pad)
	}
	text := fmt.Sprintf("%s %s %s %9s  %s", localTime(r), mark, target, duration, printable(r.Text("id")))
	if outcome != "" && outcome != string(auditlog.Success) {
		text += "  " + printable(outcome)
		if n, ok := r.Number("count"); ok {
			text += fmt.Sprintf(" ×%d", n)
		}
		if why := reasonOf(r); why != "" {
			text += ": " + clipped(printable(why), maxReason)
		}
	}
	return text
}

// reasonOf says why a call failed, as far as the record does.
func reasonOf(r *auditlog.Record) string {
	why := r.Text("reason")
	if why == "" {
		why = inner(r.Member("policy"), "reason")
	}
	if rule := inner(r.Member("policy"), "rule_id"); rule != "" && r.Text("outcome") == string(auditlog.Denied) {
		why = strings.TrimSpace(why + " (rule " + rule + ")")
	}
	if why == "" {
		why = inner(r.Member("error"), "message")
	}
	return why
}

// target is what was called: server and tool, or server and method.
func target(r *auditlog.Record) string {
	what := r.Text("tool_name")
	if what == "" {
		what = r.Text("method")
		if name := r.Text("mcp_name"); name != "" {
			what += " " + name
		}
	}
	if what == "" {
		what = "(" + export.Nameless(r.Text("reason")) + ")"
	}
	if server := r.Text("server_id"); server != "" {
		return server + "/" + what
	}
	return what
}

func localTime(r *auditlog.Record) string { return timeOf(r.Time().Local()) }

// The colours of marks.
const (
	goodColor = "32"
	failColor = "31"
	warnColor = "33"
)

func (t *tailer) paint(color, text string) string {
	if !t.color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}
