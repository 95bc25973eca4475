package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
	"github.com/caddy-mcp-audit/mcp-audit/verify/ship"
)

// shipper is the flags of the ship command.
type shipper struct {
	to          ship.Receiver
	index       indexFlags
	cursor      string
	own         bool
	noPayloads  bool
	once        bool
	skipMissing bool
	recordEvery time.Duration
	keys        string
	poll        time.Duration
}

func shipCommand() *cobra.Command {
	var s shipper
	cmd := &cobra.Command{
		Use:   "ship --to ADDRESS --cursor FILE [PATH… | FOLDER]",
		Short: "Deliver what is recorded to a SIEM, and go on with what comes",
		Long: `ship sends each call that ended, and each single message, to a system that
collects logs, in the order of the log, and goes on with new ones until it is
stopped. The receiver is

  https://HOST/PATH           lines of JSON (OCSF, or --format jsonl), by POST
  otlp+https://HOST/v1/logs   log records of OpenTelemetry, in protobuf
  syslog+tls://HOST[:6514]    RFC 5424 messages over TLS

http and otlp+http are taken for loopback addresses alone. What has been
acknowledged is kept in the file --cursor, behind which the next run goes on; a
batch that was not is sent again, with waits of up to a minute. A receiver that
died between taking a batch and saying so gets it twice: origin and seq, which
every row carries, tell a repetition. Acknowledged is a batch that was answered
with a status 2xx; with syslog, one that the receiver has read to its end,
which closes the connection.

A receiver that refuses a batch ends the program; nothing is passed over. So
does a log that no longer has what comes behind the cursor; --skip-missing goes
on with what is left, and says what is missing.

With --record-every, the log gets a record of how far it was delivered, at most
so often, and at the end.`,
		Example: `  mcp-audit ship --to https://siem.example.com/ingest --header-file token.txt --cursor /var/lib/mcp-audit/siem.cursor /var/lib/mcp-audit/audit.jsonl
  mcp-audit ship --to syslog+tls://siem.example.com --ca siem.pem --cursor ~/siem.cursor --once`,
		RunE: s.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&s.to.URL, "to", "", "`address` of the receiver")
	flags.StringVar(&s.cursor, "cursor", "", "`file` that keeps what was acknowledged")
	flags.StringVar(&s.to.Format, "format", "ocsf", "what is posted to https: ocsf, jsonl")
	flags.BoolVar(&s.to.List, "list", false, "post a batch as one JSON list, not as lines")
	flags.StringVar(&s.to.HeaderFile, "header-file", "", "`file` with header lines, such as Authorization: Bearer …")
	flags.StringVar(&s.to.CA, "ca", "", "PEM `file` with the authorities to trust in place of the system's")
	flags.StringVar(&s.to.Cert, "cert", "", "PEM `file` with a client certificate")
	flags.StringVar(&s.to.Key, "key", "", "PEM `file` with its key")
	flags.DurationVar(&s.to.Timeout, "timeout", 30*time.Second, "`time` for one batch")
	flags.StringVar(&s.to.Host, "hostname", "", "name of this machine in messages (default: its own)")
	flags.BoolVar(&s.own, "all", false, "also the log's own records: starts, gaps, checkpoints")
	flags.BoolVar(&s.noPayloads, "no-payloads", false, "leave out params, results, error data and client information")
	flags.BoolVar(&s.once, "once", false, "end when all that is there was delivered")
	flags.BoolVar(&s.skipMissing, "skip-missing", false, "go on where records behind the cursor are gone from the log")
	flags.DurationVar(&s.recordEvery, "record-every", 0, "append to the log how far it was delivered, at most this `often`, and at the end; needs the log's keys")
	flags.StringVar(&s.keys, "keys", "", "key `file` for --record-every (default: the one beside the log)")
	flags.DurationVar(&s.poll, "poll", time.Second, "`time` between two looks at a log that has nothing new")
	s.index.add(cmd)
	return cmd
}

func (s *shipper) run(cmd *cobra.Command, args []string) (err error) {
	switch {
	case s.to.URL == "":
		return usage("--to says where to deliver to; see `mcp-audit ship --help`")
	case s.cursor == "":
		return usage("--cursor names the file that keeps what was acknowledged")
	case s.poll < 10*time.Millisecond, s.to.Timeout < time.Millisecond, s.recordEvery < 0:
		return usage("--poll is at least 10ms, --timeout at least 1ms, and --record-every not negative")
	}
	s.to.Version = Version()
	if s.to.Host == "" {
		// Without a name messages have none.
		s.to.Host, _ = os.Hostname()
	}
	sink, err := s.to.Open()
	if err != nil {
		return usage("%w", err)
	}
	defer func() { err = errors.Join(err, sink.Close()) }()
	log, err := oneLog(args)
	if err != nil {
		return err
	}
	file, from, err := ship.OpenFile(s.cursor)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	x, err := openIndex(cmd, log, &s.index, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()

	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var after *index.Position
	if from != nil {
		after = &index.Position{Origin: from.Origin, Seq: from.Seq, Leaf: from.Leaf}
	}
	source := &logRows{x: x, args: args, feed: x.Feed(after), options: s, note: func(text string) { cmd.PrintErrf("mcp-audit: %s\n", text) }}
	source.feed.Own = s.own
	defer func() { err = errors.Join(err, source.lines.Close()) }()
	to := sink.String()
	told := delivery{log: log, keys: s.keys, to: to, every: s.recordEvery, last: time.Now()}
	run := ship.Run{
		Source: source, Sink: sink, Once: s.once,
		Save: func(c ship.Cursor) error { return file.Save(c, to, time.Now()) },
		Poll: s.poll, Retry: time.Second, RetryMax: time.Minute,
		Failed: func(err error, again time.Duration) {
			cmd.PrintErrf("mcp-audit: %v; trying again in %s\n", err, again)
		},
	}
	var rows int
	run.Delivered = func(b *ship.Batch) {
		rows += b.Len()
		if err := told.batch(cmd, b); err != nil {
			cmd.PrintErrf("mcp-audit: %v\n", err)
		}
	}
	err = run.Do(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // stopped, not failed
	}
	err = errors.Join(err, told.end(cmd))
	cmd.PrintErrf("mcp-audit: %d rows were delivered to %s\n", rows, to)
	return err
}

// logRows reads the rows of a log that grows.
type logRows struct {
	x       *indexed
	args    []string // by which the log is found: rotation makes new files
	feed    *index.Feed
	options *shipper
	note    func(string)
	lines   index.Lines
	stale   int
}

// maxStale is how often in a row the places of records may be out of date.
// Each time the index is brought up to date.
const maxStale = 5

// Next implements ship.Source.
func (s *logRows) Next(ctx context.Context, take func(*export.Row) (bool, error)) error {
	log, err := oneLog(s.args)
	if err != nil {
		return err
	}
	report, err := s.x.Update(ctx, log.files)
	if err != nil {
		return err
	}
	for _, note := range report.Notes {
		s.note("note: " + note)
	}
	given := 0
	err = s.feed.Next(ctx, func(e *index.Entry) (bool, error) {
		row := export.Row{Origin: e.Origin, Kind: export.KindOf(e.Kind), NoPayloads: s.options.noPayloads}
		var err error
		var changed bool
		if row.Close, _, changed, err = s.lines.Read(nil, &e.Place); err != nil {
			return false, err
		}
		if changed {
			s.note(fmt.Sprintf("record %d does not fit its own hash: it was changed after it was written; run `mcp-audit verify %s`", e.Seq, log.name))
		}
		if e.Intent != nil {
			intent, _, _, err := s.lines.Read(nil, e.Intent)
			if err != nil {
				return false, err
			}
			row.Intent = &intent
		}
		given++
		return take(&row)
	})
	gone, stale := new(index.GoneError), new(index.StaleError)
	switch {
	case errors.As(err, &gone):
		if !s.options.skipMissing {
			return fmt.Errorf("%w; give --skip-missing to go on with what is left", err)
		}
		s.note(err.Error() + "; going on with what is left")
		s.feed.Skip(gone)
		return s.Next(ctx, take)
	case errors.As(err, &stale) && given == 0:
		if s.stale++; s.stale < maxStale {
			return s.Next(ctx, take)
		}
		return err
	case errors.As(err, &stale):
		// What was read before is delivered first.
		err = nil
	}
	s.stale = 0
	return err
}

// delivery tells the log how far it was delivered.
type delivery struct {
	log   logFiles
	keys  string
	to    string
	every time.Duration // 0: never

	last        time.Time
	first, done ship.Cursor
	rows        int
}

func (d *delivery) batch(cmd *cobra.Command, b *ship.Batch) error {
	if d.every == 0 {
		return nil
	}
	if d.rows == 0 {
		d.first = b.First
	}
	d.rows, d.done = d.rows+b.Len(), b.Last
	if time.Since(d.last) < d.every {
		return nil
	}
	return d.end(cmd)
}

// end writes what has not been told yet.
func (d *delivery) end(cmd *cobra.Command) error {
	if d.rows == 0 {
		return nil
	}
	target := fmt.Sprintf("%d rows from record %d to %d (%s, leaf %s) to %s", d.rows, d.first.Seq, d.done.Seq, d.done.Origin, d.done.Leaf, d.to)
	d.rows, d.last = 0, time.Now()
	cmd.SetContext(context.WithoutCancel(cmd.Context()))
	return recordAccess(cmd.Context(), d.log.active(), d.keys, "ship", target)
}
