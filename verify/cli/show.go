package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func showCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show SEQ|OPERATION|RECORD-ID [PATH… | FOLDER]",
		Short: "Show one call in full: request, answer and decision",
		Long: `show prints one operation as a JSON object: what was asked, what was answered,
who asked, what was decided, and which records say so (intent_seq, outcome_seq).
Name it by the number of one of its records, by its operation id
(audit_operation_id), or by the id of one of its records, as tail prints it.
Records that belong to no operation are shown as they are.

Nothing is verified: see ` + "`mcp-audit verify`" + `.`,
		Example: `  mcp-audit show 12
  mcp-audit show 01KSFJ35VE44H269154RKJGA9A
  mcp-audit show 019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9 --raw`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			logs, err := logsOf(args[1:])
			if err != nil {
				return err
			}
			for _, log := range logs {
				found, err := find(log, args[0])
				if err != nil {
					return err
				}
				if found != nil {
					return found.print(cmd.OutOrStdout(), raw)
				}
			}
			return fmt.Errorf("no record of %s has seq, operation or id %q; `mcp-audit tail` lists ids", logs[0].name, args[0])
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the record lines as they are")
	return cmd
}

// operation is the records of one operation, or one record of its own.
type operation struct {
	intent, outcome, single *auditlog.Record
}

// find looks for what a key names. Where several incarnations of a log have a
// record of that number, it is the newest one's.
func find(log logFiles, key string) (*operation, error) {
	seq, seqErr := strconv.ParseUint(key, 10, 53)
	var hit *auditlog.Record
	err := eachRecord(log, func(line []byte) bool { return seqErr == nil || bytes.Contains(line, []byte(key)) }, func(r *auditlog.Record) {
		if seqErr == nil && r.Line.Seal.Seq == seq || r.Text("audit_operation_id") == key || r.Text("id") == key {
			hit = r
		}
	})
	if err != nil || hit == nil {
		return nil, err
	}
	id := hit.Text("audit_operation_id")
	if id == "" || hit.Kind != "intent" && hit.Kind != "outcome" {
		return &operation{single: hit}, nil
	}
	op := new(operation)
	err = eachRecord(log, func(line []byte) bool { return bytes.Contains(line, []byte(id)) }, func(r *auditlog.Record) {
		switch {
		case r.Text("audit_operation_id") != id:
		case r.Kind == "intent":
			op.intent = r
		case r.Kind == "outcome":
			op.outcome = r
		}
	})
	return op, err
}

// eachRecord calls do for the records whose line passes the filter. The
// records stay valid.
func eachRecord(log logFiles, filter func([]byte) bool, do func(*auditlog.Record)) error {
	for _, path := range log.files {
		if err := eachRecordIn(path, filter, do); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
	}
	return nil
}

func eachRecordIn(path string, filter func([]byte) bool, do func(*auditlog.Record)) (err error) {
	f, err := openLines(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := auditlog.NewReader(f, 0)
	for {
		line, err := lines.Next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, auditlog.ErrLineTooLong):
			continue
		case err != nil:
			return err
		case !filter(line):
			continue
		}
		r, fault := auditlog.ParseRecord(bytes.Clone(line))
		if fault == auditlog.LineOK || fault == auditlog.LineExtraMember {
			do(&r)
		}
	}
}

func (o *operation) print(w io.Writer, raw bool) error {
	if raw {
		for _, r := range []*auditlog.Record{o.intent, o.outcome, o.single} {
			if r != nil {
				if _, err := fmt.Fprintf(w, "%s\n", r.Raw); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var b bytes.Buffer
	if err := json.Indent(&b, o.entry(), "", "  "); err != nil {
		return fmt.Errorf("the record is damaged (%w); see it with --raw, and run `mcp-audit verify`", err)
	}
	// Escapes keep the JSON value, and the terminal from obeying it.
	for line := range bytes.Lines(b.Bytes()) {
		if _, err := fmt.Fprintln(w, printable(string(bytes.TrimSuffix(line, []byte("\n"))))); err != nil {
			return err
		}
	}
	return nil
}

// entryMembers are the members of an entry in the reference system's order,
// and those that it does not have.
var entryMembers = []string{
	"id", "timestamp", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id",
	"mcp_name", "tool_name", "params", "result", "error", "duration_ms", "client_id", "server_id", "principal", "policy",
	"reason", "anomaly", "http_status", "protocol_version", "session", "client_info", "counts", "count",
	"request_bytes", "request_sha256", "response_bytes", "response_sha256", "parent_seq", "traceparent",
}

// entry joins the records into one object.
func (o *operation) entry() []byte {
	if o.single != nil && o.single.Kind != "event" {
		return o.plain()
	}
	b := []byte{'{'}
	member := func(name string, value []byte) {
		if len(value) == 0 {
			return
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = strconv.AppendQuote(b, name)
		b = append(b, ':')
		b = append(b, value...)
	}
	// What both records have is the outcome's.
	records := []*auditlog.Record{o.single, o.outcome, o.intent}
	for _, name := range entryMembers {
		for _, r := range records {
			if r == nil {
				continue
			}
			value := r.Member(name)
			switch {
			case value == nil:
			case name == "timestamp":
				value = strconv.AppendQuote(nil, r.Time().Format(time.RFC3339Nano))
			case name == "principal":
				value = reordered(value, "subject", "client_id", "issuer")
			case name == "error":
				value = reordered(value, "code", "message", "data")
			}
			if value != nil {
				member(name, value)
				break
			}
		}
	}
	seq := func(name string, r *auditlog.Record) {
		if r != nil {
			member(name, strconv.AppendUint(nil, r.Line.Seal.Seq, 10))
		}
	}
	seq("seq", o.single)
	seq("intent_seq", o.intent)
	seq("outcome_seq", o.outcome)
	return append(b, '}')
}

// plain is a record of its own: its body and its number.
func (o *operation) plain() []byte {
	b := append([]byte{}, o.single.Line.Prefix...)
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = append(b, `"seq":`...)
	return append(strconv.AppendUint(b, o.single.Line.Seal.Seq, 10), '}')
}
