package legacy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Require is the least that every record must be.
type Require string

// What may be required.
const (
	RequireAny Require = ""
	RequireV2  Require = "v2" // Integrity v2 or this product's format
	RequireV3  Require = "v3" // this product's format
)

// Options says what Verify checks against. The zero value checks what can be
// checked without keys.
type Options struct {
	Keys    Keys
	Require Require
	// Strict makes warnings count in the exit code.
	Strict bool
	// MaxLine is the longest line in bytes. 0: 32 MiB.
	MaxLine int
	// Anchors are signed notes over the lines (Sign) that the verifier holds,
	// VKeys the verifier keys that they may be signed with, besides the keys
	// in Keys.Ring under the note's own origin.
	Anchors []auditlog.Anchor
	VKeys   []string
	// Sealed says that files of a log of this product lie beside the first
	// source: "" or what was found. The log itself is then not that log.
	Sealed string
}

// judge is what both formats' judges share.
type judge struct {
	report    Report
	found     *findings
	keys      *Keys
	require   Require
	file      string
	lineNo    int
	unchecked bool
	anchors   *anchors
}

func newJudge(format Format, opts *Options) *judge {
	return &judge{
		report: Report{Format: format, Promise: format.Promise(), Kinds: map[string]int{}, Statuses: map[Status]int{}, MAC: auditlog.MACUnchecked},
		found:  newFindings(), keys: &opts.Keys, require: opts.Require, anchors: newAnchors(opts),
	}
}

func (j *judge) find(kind, format string, args ...any) {
	j.findAs(kind, classOf(kind), format, args...)
}

func (j *judge) findAs(kind, class, format string, args ...any) {
	j.found.add(kind, class, j.file, j.lineNo, format, args...)
}

func (j *judge) findAll(kind, format string, args ...any) {
	j.found.add(kind, classOf(kind), "", 0, format, args...)
}

func (j *judge) place() string { return fmt.Sprintf("%s line %d", j.file, j.lineNo) }

// sealed notes a record of this product's format among foreign ones.
func (j *judge) sealed(text []byte) bool {
	if _, fault := auditlog.SplitLine(text); fault != auditlog.LineOK && fault != auditlog.LineExtraMember {
		return false
	}
	j.find("foreign_log", "the line is a record of this product's own format; verify the log that it was taken from")
	j.report.count(Unreadable)
	return true
}

// lineJudge is one format's judge of lines.
type lineJudge interface {
	// begin is called before the first line of each file.
	begin()
	line(text []byte)
	end()
}

func (j *entryJudge) begin() {}
func (j *entryJudge) end()   {}

// Verify checks the files of one log of another system, oldest first, line by
// line and in bounded memory. Faults do not end it: the report has them all.
// The error is not nil if a source could not be read; then the report has what
// was found up to there and Exit is ExitUnreadable. It is safe to run several
// verifications at once.
func Verify(ctx context.Context, format Format, sources []auditlog.Source, opts Options) (*Report, error) {
	j := newJudge(format, &opts)
	var lines lineJudge
	switch format {
	case FormatP4ST4S:
		lines = &entryJudge{judge: j}
	case FormatGateway:
		lines = newChainJudge(j)
	default:
		return nil, errors.New("verify: the format of the log is not known")
	}
	if len(sources) == 0 {
		return nil, errors.New("verify: no log file is given")
	}
	for i, s := range sources {
		j.file, j.lineNo = s.Name, 0
		lines.begin()
		err := scan(ctx, s, opts.MaxLine, func(text []byte, err error) {
			j.lineNo++
			j.anchors.leaf(text, err)
			if err != nil {
				j.find("oversized_line", "the line is longer than the limit")
				j.report.count(Unreadable)
				return
			}
			lines.line(text)
		}, func() {
			kind := "torn_segment"
			if i == len(sources)-1 {
				kind = "torn_tail"
			}
			j.lineNo++
			j.find(kind, "the file does not end with a line feed; what is behind the last one was not judged")
		})
		if err != nil {
			report := j.finish(&opts)
			report.Exit = auditlog.ExitUnreadable
			return report, fmt.Errorf("reading %s: %w", s.Name, err)
		}
	}
	lines.end()
	return j.finish(&opts), nil
}

// scan calls each for every line of a source; err is ErrLineTooLong for one
// that was passed over. torn is called if bytes follow the last line feed.
func scan(ctx context.Context, s auditlog.Source, maxLine int, each func(text []byte, err error), torn func()) (err error) {
	f, err := s.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	counted := &counter{r: f}
	r := auditlog.NewReader(counted, maxLine)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		text, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			if counted.n > r.Consumed() {
				torn()
			}
			return nil
		case err != nil && !errors.Is(err, auditlog.ErrLineTooLong):
			return err
		}
		each(text, err)
	}
}

// counter counts the bytes that are read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// finish makes the report.
func (j *judge) finish(opts *Options) *Report {
	r := &j.report
	if r.Total == 0 {
		j.findAll("empty_log", "there is no record")
	}
	if opts.Sealed != "" {
		j.findAll("downgrade", "%s lies beside it, so a log of this product was here: its records were replaced", opts.Sealed)
	}
	switch {
	case j.unchecked:
		j.findAll("mac_unchecked", "no key was given that fits the format: signatures were not checked")
	case r.Verified+r.Legacy+r.Invalid > 0:
		r.MAC = auditlog.MACChecked
	}
	j.anchors.finish(j)
	r.Worst = r.worst()
	r.Findings = j.found.list()
	r.FirstError = j.found.first
	r.Exit = j.found.exit(opts.Strict)
	return r
}
