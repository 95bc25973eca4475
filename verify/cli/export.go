package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// exporter is the flags of the export command.
type exporter struct {
	index        indexFlags
	filter       index.Filter
	since, until string
	text         string
	format, file string
	framing      string
	host         string
	noPayloads   bool
	record       bool
}

func exportCommand() *cobra.Command {
	var e exporter
	cmd := &cobra.Command{
		Use:   "export [PATH… | FOLDER]",
		Short: "Write calls as JSON lines, CSV, OCSF, CEF or syslog",
		Long: `export writes one row for each call, intent and outcome joined, and for each
single message, in the order in which they ended. Calls that have not ended
come where they began, with kind "open". Each row has the number (seq) and the
hash (leaf) of its record in the log.

Options that filter may be repeated: a row has to match one value of each. A "*"
stands for any characters. Times are 2026-12-01, 2026-12-01T08:30:00Z, or an
age such as 90m, 24h or 7d.

The format lines is another one: all records as they are, byte for byte. Of a
database that is a JSONL log which verifies as the database does.

CEF and syslog leave payloads out; the record has them. Nothing is verified, but
a record that does not fit its own hash is exported and makes the exit code 1:
see ` + "`mcp-audit verify`" + `.`,
		Example: `  mcp-audit export --format csv --since 7d -o week.csv
  mcp-audit export --outcome denied --outcome rate_limited
  mcp-audit export --format syslog --framing octet --tool 'write_*'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.format == formatLines {
				return e.runLines(cmd, args)
			}
			return e.run(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&e.format, "format", "jsonl", strings.Join(export.Formats(), ", ")+", "+formatLines)
	flags.StringVarP(&e.file, "output", "o", "", "write to this `file`, which is replaced once the export is complete")
	flags.StringVar(&e.since, "since", "", "rows from this `time` on")
	flags.StringVar(&e.until, "until", "", "rows before this `time`")
	flags.StringArrayVar(&e.filter.Tools, "tool", nil, "rows of this tool")
	flags.StringArrayVar(&e.filter.Methods, "method", nil, "rows of this method")
	flags.StringArrayVar(&e.filter.Clients, "client", nil, "rows of this client_id")
	flags.StringArrayVar(&e.filter.Principals, "principal", nil, "rows of this subject")
	flags.StringArrayVar(&e.filter.Servers, "server", nil, "rows of this server_id")
	flags.StringArrayVar(&e.filter.Outcomes, "outcome", nil, "rows that ended so")
	flags.StringArrayVar(&e.filter.Decisions, "decision", nil, "rows that the policy judged so: allow, deny")
	flags.StringVar(&e.text, "text", "", "rows whose record has this `text` in any value, in any case")
	flags.BoolVar(&e.filter.Own, "all", false, "also the log's own records: starts, gaps, checkpoints")
	flags.BoolVar(&e.noPayloads, "no-payloads", false, "leave out params, results, error data and client information")
	flags.BoolVar(&e.record, "record", false, "first append to the log who exports what; needs the log's keys")
	flags.StringVar(&e.framing, "framing", "lf", "how syslog messages are told apart: lf, octet")
	flags.StringVar(&e.host, "hostname", "", "HOSTNAME of syslog messages (default: this machine's)")
	e.index.add(cmd)
	return cmd
}

func (e *exporter) run(cmd *cobra.Command, args []string) (err error) {
	if err := e.check(time.Now()); err != nil {
		return err
	}
	log, err := oneLog(args)
	if err != nil {
		return err
	}
	if err := e.spare(log); err != nil {
		return err
	}
	if err := e.announce(cmd, log); err != nil {
		return err
	}
	x, err := openIndex(cmd, log, &e.index, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	out, err := newOutput(e.file, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	changed, err := e.rows(cmd.Context(), x, out)
	if err := out.finish(err); err != nil {
		return err
	}
	if changed.n > 0 {
		return fmt.Errorf("%d records do not fit their own hash, the first is seq %d at %s line %d: the log was changed after it was written; run `mcp-audit verify %s`",
			changed.n, changed.first.Seq, changed.first.Path, changed.first.Line, log.name)
	}
	return nil
}

// announce records the export in the log, if that is asked for.
func (e *exporter) announce(cmd *cobra.Command, log logFiles) error {
	if !e.record {
		return nil
	}
	return recordAccess(cmd.Context(), log.active(), "", "export", flagsText(cmd))
}

// check reads the flags.
func (e *exporter) check(now time.Time) (err error) {
	if !slices.Contains(export.Formats(), e.format) {
		return usage("there is no format %q; --format takes %s, %s", e.format, strings.Join(export.Formats(), ", "), formatLines)
	}
	if e.framing != "lf" && e.framing != "octet" {
		return usage("--framing %q is neither lf nor octet", e.framing)
	}
	for _, o := range e.filter.Outcomes {
		if !slices.Contains(outcomes(), o) && !strings.Contains(o, "*") {
			return usage("there is no outcome %q; --outcome takes %s", o, strings.Join(outcomes(), ", "))
		}
	}
	for _, d := range e.filter.Decisions {
		if d != "allow" && d != "deny" {
			return usage("there is no decision %q; --decision takes allow, deny", d)
		}
	}
	if e.filter.Since, err = moment("--since", e.since, now); err != nil {
		return err
	}
	if e.filter.Until, err = moment("--until", e.until, now); err != nil {
		return err
	}
	if !e.filter.Since.IsZero() && !e.filter.Until.IsZero() && !e.filter.Since.Before(e.filter.Until) {
		return usage("--since %s is not before --until %s", e.since, e.until)
	}
	if e.host == "" {
		// Without a name the field is "-".
		e.host, _ = os.Hostname()
	}
	return nil
}

// outcomes lists how operations can end.
func outcomes() []string {
	var names []string
	for _, o := range []auditlog.Result{
		auditlog.Success, auditlog.ToolError, auditlog.RPCError, auditlog.InputRequired, auditlog.Denied, auditlog.RateLimited,
		auditlog.UpstreamError, auditlog.Timeout, auditlog.ClientDisconnect, auditlog.Cancelled, auditlog.MalformedResponse,
		auditlog.InternalError, auditlog.Unknown,
	} {
		names = append(names, string(o))
	}
	return names
}

// spare refuses to write over the log, its keys, or what else lies beside it.
func (e *exporter) spare(log logFiles) error {
	if e.file == "" {
		return nil
	}
	target, err := os.Stat(e.file)
	if err != nil {
		// What is not there cannot be overwritten.
		return nil //nolint:nilerr // said above
	}
	guarded := append([]string{keysBeside(log.name), e.index.path}, log.files...)
	for _, suffix := range []string{index.Suffix, ".state", ".lock", ".checkpoint"} {
		guarded = append(guarded, log.name+suffix)
	}
	for _, path := range guarded {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, target) {
			return usage("-o %s would overwrite a file of the log; give another file", e.file)
		}
	}
	return nil
}

// faulty counts records that do not fit their own hash.
type faulty struct {
	n     int
	first index.Place
}

// rows writes the rows.
func (e *exporter) rows(ctx context.Context, x *indexed, out io.Writer) (bad faulty, err error) {
	buffered := bufio.NewWriterSize(out, 256<<10)
	w, err := export.New(e.format, buffered, export.Options{Version: Version(), Host: e.host, Octets: e.framing == "octet"})
	if err != nil {
		return bad, err
	}
	var lines index.Lines
	defer func() { err = errors.Join(err, lines.Close()) }()
	var buffers [2][]byte
	read := func(i int, p *index.Place) (auditlog.Record, error) {
		r, buf, changed, err := lines.Read(buffers[i], p)
		if buffers[i] = buf; cap(buf) > maxKeptLine {
			// One large record must not hold its memory to the end.
			buffers[i] = nil
		}
		if changed {
			if bad.n++; bad.n == 1 {
				bad.first = *p
			}
		}
		return r, err
	}
	needle := export.NewNeedle(e.text)
	err = x.Each(ctx, e.filter, func(entry *index.Entry) error {
		row := export.Row{Origin: entry.Origin, Kind: export.KindOf(entry.Kind), NoPayloads: e.noPayloads}
		if row.Close, err = read(0, &entry.Place); err != nil {
			return err
		}
		if entry.Intent != nil {
			intent, err := read(1, entry.Intent)
			if err != nil {
				return err
			}
			row.Intent = &intent
		}
		if !needle.In(&row) {
			return nil
		}
		return w.Write(&row)
	})
	if err == nil {
		err = buffered.Flush()
	}
	return bad, err
}

// maxKeptLine is the largest line buffer, in bytes, that is kept for the next
// row.
const maxKeptLine = 1 << 20

// output is where an export goes: standard output, or a file that appears once
// it is complete.
type output struct {
	io.Writer
	file *os.File // nil: the writer is not ours
	path string   // to rename to; "": the file is not to be renamed
}

func newOutput(path string, stdout io.Writer) (*output, error) {
	if path == "" || path == "-" {
		return &output{Writer: stdout}, nil
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		// A pipe or a device.
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		return &output{Writer: f, file: f}, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	// CreateTemp makes it readable for its owner alone: it has payloads.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w; give another file with -o", path, err)
	}
	return &output{Writer: f, file: f, path: path}, nil
}

// finish closes the output after an export that ended with err.
func (o *output) finish(err error) error {
	if o.file == nil {
		return err
	}
	if err == nil && o.path != "" {
		err = o.file.Sync()
	}
	err = errors.Join(err, o.file.Close())
	if o.path == "" {
		return err
	}
	if err == nil {
		err = os.Rename(o.file.Name(), o.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(o.file.Name()))
	}
	return nil
}
