package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

// eraser is the flags of the erase command.
type eraser struct {
	seq       int64
	operation string
	fields    []string
	whole     bool
	reason    string
	by        string
	keysFile  string
}

func eraseCommand() *cobra.Command {
	var e eraser
	cmd := &cobra.Command{
		Use:   "erase [LOG | FOLDER] --seq N | --operation ID  --whole | --field NAME  --reason TEXT --authorised-by NAME",
		Short: "Erase the values of a record for good, and record that",
		Long: `erase removes what a record says, or one member that it only commits to
(see the option ` + "`commit`" + `), for good: from the log, from its closed segments, and
from the copy that ` + "`compat v2`" + ` writes. First a signed record says which one,
why, and who answers for it; verify shows that for ever. The record's seal, the
chain and every proof given away before stay valid.

--operation erases both records of a call. A call that is still going on cannot
be erased. The log may be in use meanwhile; if the record lies in its current
file, that is closed as a segment first.

A record keeps salted hashes of the exact messages: whoever has the log's secret
could test a guess against them. Backups, exports, and what a disk keeps of
deleted files are beyond this command.`,
		Example: `  mcp-audit erase --seq 12 --whole --reason "request 2027-31" --authorised-by "privacy officer"
  mcp-audit erase --operation 019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9 --field params --field result \
    --reason "request 2027-31" --authorised-by "privacy officer"`,
		Args: cobra.MaximumNArgs(1),
		RunE: e.run,
	}
	flags := cmd.Flags()
	flags.Int64Var(&e.seq, "seq", -1, "`number` of the record")
	flags.StringVar(&e.operation, "operation", "", "operation `id`")
	flags.StringArrayVar(&e.fields, "field", nil, "committed `member` to erase, for example params")
	flags.BoolVar(&e.whole, "whole", false, "erase all that the record says")
	flags.StringVar(&e.reason, "reason", "", "`why`, which is recorded")
	flags.StringVar(&e.by, "authorised-by", "", "`name` of who answers for it, which is recorded")
	flags.StringVar(&e.keysFile, "keys", "", "key `file` of the log (default: keys.json beside it)")
	return cmd
}

// found is a record that is to be erased.
type found struct {
	seq       uint64
	id        string
	operation string
	fields    []string // committed, with their values
}

func (e *eraser) run(cmd *cobra.Command, args []string) (err error) {
	switch {
	case (e.seq >= 0) == (e.operation != ""):
		return usage("give either --seq N or --operation ID")
	case e.whole == (len(e.fields) > 0):
		return usage("give either --whole or --field NAME")
	case e.reason == "" || e.by == "":
		return usage("--reason and --authorised-by are needed: both are recorded")
	}
	path, err := logPath(args)
	if err != nil {
		return err
	}
	logs, err := logsOf([]string{path})
	if err != nil {
		return err
	}
	log := logs[0]
	records, err := e.find(log)
	if err != nil {
		return err
	}
	cfg, err := writerConfig(log.active(), e.keysFile, "mcp-audit erase")
	if err != nil {
		return err
	}
	writer, err := auditlog.Open(cmd.Context(), cfg)
	if err != nil {
		return refused(err)
	}
	defer func() { err = errors.Join(err, writer.Close(cmd.Context())) }()
	for _, r := range records {
		for _, field := range r.fields {
			err := writer.Erase(cmd.Context(), auditlog.Erasure{Seq: r.seq, Field: field, Reason: e.reason, AuthorisedBy: e.by})
			if err != nil {
				return err
			}
			what := field
			if field == auditlog.WholeRecord {
				what = "all of it"
			}
			fmt.Fprintf(cmd.OutOrStdout(), "record %d: %s is erased\n", r.seq, printable(what))
		}
		n, err := legacy.EraseCopy(log.name+v2Suffix, r.operation, r.id)
		if err != nil {
			return fmt.Errorf("erasing from the copy in Integrity v2 form: %w; run the command again", err)
		}
		if n > 0 {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: %d entries are blank now\n", log.name+v2Suffix, n)
		}
	}
	// The index has no payloads, but names; it is made anew from what is left.
	return index.Remove(log.name + index.Suffix)
}

// v2Suffix is what the name of the copy in Integrity v2 form has behind that of
// the log.
const v2Suffix = ".v2.jsonl"

// find looks for the records, and for what of them is to be erased.
func (e *eraser) find(log logFiles) (records []found, err error) {
	snap, err := log.snapshot()
	if err != nil {
		return nil, err
	}
	defer snap.close()
	databases, err := databasesOf(snap.files)
	if err != nil {
		return nil, err
	}
	sources, err := snap.sources(newSegmentLimits(defaultMaxSegment, snap.manifest), databases)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		more, err := e.findIn(s)
		if err != nil {
			return nil, err
		}
		records = append(records, more...)
	}
	if len(records) == 0 {
		return nil, fmt.Errorf("the log has no such record; `mcp-audit tail` and `mcp-audit export` list ids and numbers")
	}
	for i := range records {
		r := &records[i]
		if e.whole {
			r.fields = []string{auditlog.WholeRecord}
			continue
		}
		// The members of intent and outcome differ.
		if e.operation != "" {
			r.fields = common(e.fields, r.fields)
		} else {
			r.fields = e.fields
		}
	}
	if e.operation != "" && !slices.ContainsFunc(records, func(r found) bool { return len(r.fields) > 0 }) {
		return nil, usage("the records of the call do not commit to %s; erase them with --whole", strings.Join(e.fields, ", "))
	}
	return records, nil
}

func (e *eraser) findIn(s auditlog.Source) (records []found, err error) {
	from, err := s.Open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	lines := auditlog.NewReader(from, 0)
	for {
		line, err := lines.Next()
		if errors.Is(err, auditlog.ErrLineTooLong) {
			continue
		}
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return nil, err
		}
		if e.operation != "" && !bytes.Contains(line, []byte(e.operation)) {
			continue
		}
		r, fault := auditlog.ParseRecord(line)
		if fault != auditlog.LineOK || e.operation == "" && r.Line.Seal.Seq != uint64(e.seq) ||
			e.operation != "" && r.Text("audit_operation_id") != e.operation {
			continue
		}
		records = append(records, found{r.Line.Seal.Seq, r.Text("id"), r.Text("audit_operation_id"), openingNames(line)})
	}
}
