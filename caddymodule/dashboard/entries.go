package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// entry is a row of a list, as the index knows it.
type entry struct {
	Mark      string      `json:"mark"`
	Seq       uint64      `json:"seq"`
	Leaf      string      `json:"leaf"`
	Origin    string      `json:"origin"`
	Kind      string      `json:"kind"`
	Timestamp time.Time   `json:"timestamp"`
	Operation string      `json:"audit_operation_id,omitempty"`
	Outcome   string      `json:"outcome,omitempty"`
	Direction string      `json:"direction,omitempty"`
	Method    string      `json:"method,omitempty"`
	Tool      string      `json:"tool_name,omitempty"`
	Name      string      `json:"mcp_name,omitempty"`
	Client    string      `json:"client_id,omitempty"`
	Server    string      `json:"server_id,omitempty"`
	Principal *principal  `json:"principal,omitempty"`
	Policy    *decision   `json:"policy,omitempty"`
	Duration  *int64      `json:"duration_ms,omitempty"`
	Status    int         `json:"http_status,omitempty"`
	Record    *rowPayload `json:"record,omitempty"`
}

type principal struct {
	Subject string `json:"subject"`
}

type decision struct {
	Decision string `json:"decision"`
	Rule     string `json:"rule_id,omitempty"`
}

// rowPayload is the row as an export has it.
type rowPayload = json.RawMessage

func newEntry(e *index.Entry) entry {
	row := entry{
		Mark: e.Mark.String(), Seq: e.Seq, Leaf: e.Leaf.String(), Origin: e.Origin, Kind: export.KindOf(e.Kind), Timestamp: e.At,
		Operation: e.Operation, Outcome: e.Outcome, Direction: e.Direction, Method: e.Method, Tool: e.Tool, Name: e.Name,
		Client: e.Client, Server: e.Server, Status: e.Status,
	}
	if e.Principal != "" {
		row.Principal = &principal{e.Principal}
	}
	if e.Decision != "" {
		row.Policy = &decision{e.Decision, e.Rule}
	}
	if e.Duration >= 0 {
		ms := e.Duration.Milliseconds()
		row.Duration = &ms
	}
	return row
}

// entriesAnswer is a page of entries, newest first.
type entriesAnswer struct {
	Entries []entry `json:"entries"`
	// Next is the value of `before` for the entries behind this page. Complete
	// says that there are none.
	Next     string `json:"next,omitempty"`
	Complete bool   `json:"complete"`
	// Newest is the value of `after` for what comes after this answer.
	Newest string `json:"newest,omitempty"`
	// Behind says that the newest records are not indexed yet.
	Behind bool `json:"behind,omitempty"`
}

const (
	// lookTime bounds how long one request looks for rare entries. The reader
	// goes on from where it ended.
	lookTime = 3 * time.Second
	// mostPage bounds the payloads of a page, in bytes.
	mostPage = 8 << 20
)

func (h *Handler) serveEntries(w http.ResponseWriter, r *http.Request) error {
	want, err := parseEntries(r.URL.Query())
	if err != nil {
		return err
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	if err := h.record(r, want.target); err != nil {
		return err
	}
	extent, err := x.Extent(r.Context())
	if err != nil {
		return err
	}
	want.walk.Deadline = time.Now().Add(lookTime)
	page, err := h.page(r.Context(), x, &want)
	if err != nil {
		return err
	}
	if page.Behind, _, _ = h.follower.state(); extent.Records > 0 {
		page.Newest = extent.Newest.String()
	}
	return answer(w, page)
}

// page finds a page of entries. The log is read only for their payloads, and
// for a text that is looked for.
func (h *Handler) page(ctx context.Context, x *index.Index, want *wanted) (_ *entriesAnswer, err error) {
	a := &entriesAnswer{Entries: []entry{}}
	var rows rowReader
	defer func() { err = errors.Join(err, rows.lines.Close()) }()
	if want.text != "" {
		select {
		case h.searches <- struct{}{}:
			defer func() { <-h.searches }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	needle := export.NewNeedle(want.text)
	size := 0
	page, err := x.Page(ctx, want.filter, want.walk, func(e *index.Entry) (bool, error) {
		row := newEntry(e)
		if needle != nil || want.payloads {
			full, err := rows.read(e)
			var stale *index.StaleError
			switch {
			case errors.As(err, &stale):
				// The file was just rotated away, or rewritten by an erasure.
				return false, nil
			case err != nil:
				return false, err
			case !needle.In(full):
				return false, nil
			}
			if want.payloads {
				text, err := rowJSON(full)
				if err != nil {
					return false, err
				}
				row.Record, size = &text, size+len(text)
			}
		}
		a.Entries = append(a.Entries, row)
		if size > mostPage {
			want.walk.Deadline = time.Unix(1, 0)
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if a.Complete = !page.More; page.More {
		a.Next = page.End.String()
	}
	return a, nil
}

// rowReader reads the records of entries from the log.
type rowReader struct {
	lines   index.Lines
	buffers [2][]byte
}

// read reads an entry's records. They are valid until the next call.
func (r *rowReader) read(e *index.Entry) (*export.Row, error) {
	row := &export.Row{Origin: e.Origin, Kind: export.KindOf(e.Kind)}
	var err error
	if row.Close, r.buffers[0], _, err = r.lines.Read(r.buffers[0], &e.Place); err != nil {
		return nil, err
	}
	if e.Intent != nil {
		var intent auditlog.Record
		if intent, r.buffers[1], _, err = r.lines.Read(r.buffers[1], e.Intent); err != nil {
			return nil, err
		}
		row.Intent = &intent
	}
	return row, nil
}

// rowJSON is a row as an export writes it.
func rowJSON(row *export.Row) (json.RawMessage, error) {
	var b bytes.Buffer
	w, err := export.New("jsonl", &b, export.Options{})
	if err == nil {
		err = w.Write(row)
	}
	if err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
