package legacy

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// ErrNoDatabase is the error of every function that reads a database in a
// program that was built without cgo.
var ErrNoDatabase = errors.New("this program was built without SQLite; build it with CGO_ENABLED=1 and a C compiler")

// VerifyDatabase checks the entries of a P4ST4S database, in the order in
// which they were inserted. It opens the file for reading only. Errors and
// report are those of Verify; a finding's line is the number of the row.
// Anchors are not for databases, which have no lines.
func VerifyDatabase(ctx context.Context, path string, opts Options) (*Report, error) {
	j := newJudge(FormatP4ST4S, &opts)
	j.file = path
	entries := &entryJudge{judge: j}
	unknown, err := readRows(ctx, path, func(r row) {
		j.lineNo++
		e, err := r.entry()
		entries.entry(e, err)
	})
	j.lineNo = 0
	if len(unknown) > 0 {
		j.findAll("unknown_member", "columns that no signature covers: %s", list(unknown))
	}
	report := j.finish(&opts)
	if err != nil {
		report.Exit = auditlog.ExitUnreadable
		return report, fmt.Errorf("reading %s: %w", path, err)
	}
	return report, nil
}

// row is one row of the table: the texts of its columns by name. A NULL is
// absent.
type row map[string]string

// tableColumns are the columns that are read. Those of the second list came
// with later versions.
var (
	requiredColumns = []string{"id", "timestamp", "direction", "transport", "method", "duration_ms", "client_id", "server_id", "signature"}
	laterColumns    = []string{"audit_operation_id", "outcome", "request_id", "mcp_name", "tool_name", "params", "result", "error", "principal", "policy", "integrity"}
)

// jsonColumns hold JSON text; an empty one is absent.
var jsonColumns = []string{"params", "result", "error", "principal", "policy", "integrity"}

// entry reads a row as the entry that it stands for.
func (r row) entry() (*entry, error) {
	var o object
	for _, name := range textMembers {
		if text, ok := r[name]; ok {
			o = append(o, field{name, canon.AppendString(nil, text)})
		}
	}
	for _, name := range jsonColumns {
		text := r[name]
		if text == "" {
			continue
		}
		if v := gate([]byte(text)); v != canon.None && v != canon.DupKey {
			return nil, fmt.Errorf("its %s: %w", name, &gateError{v})
		}
		o = append(o, field{name, []byte(text)})
	}
	if _, err := strconv.ParseInt(r["duration_ms"], 10, 64); err != nil {
		return nil, fmt.Errorf("its duration_ms %.40q is not an integer", r["duration_ms"])
	}
	return newEntry(append(o, field{"duration_ms", []byte(r["duration_ms"])}))
}
