package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// operationAnswer is all that the log says of one operation, or of one record.
type operationAnswer struct {
	ID       string          `json:"id"`
	Kind     string          `json:"kind"` // as of a row
	Entry    json.RawMessage `json:"entry"`
	Payloads []payload       `json:"payloads"`
	Records  []recordAnswer  `json:"records"`
	Timeline []moved         `json:"timeline"`
	// Cut says that the timeline has more messages than are listed.
	Cut       bool      `json:"timeline_cut,omitempty"`
	Integrity integrity `json:"integrity"`
	// Pin is what is pinned of the tool now; null: nothing.
	Pin *pinned `json:"pin"`
}

// payload is a value for people to read: its JSON text, indented, with every
// number as the log has it.
type payload struct {
	Name string `json:"name"`
	Text string `json:"text"`
	Cut  bool   `json:"cut,omitempty"`
}

// recordAnswer is one record and its seal.
type recordAnswer struct {
	Seq       uint64          `json:"seq"`
	Kind      string          `json:"kind"`
	Timestamp time.Time       `json:"timestamp"`
	File      string          `json:"file"`
	Line      int64           `json:"line"`
	Leaf      string          `json:"leaf"`
	Chain     string          `json:"chain"`
	MAC       string          `json:"mac"`
	KeyID     string          `json:"key_id"`
	Epoch     uint64          `json:"epoch"`
	LeafFits  bool            `json:"leaf_fits"`  // the record's bytes have this hash
	ChainFits *bool           `json:"chain_fits"` // it follows the record before; null: that is not there
	Erased    bool            `json:"erased,omitempty"`
	Before    *neighbour      `json:"before"`
	After     *neighbour      `json:"after"`
	Body      json.RawMessage `json:"body,omitempty"`
	BodyCut   bool            `json:"body_cut,omitempty"`
}

type neighbour struct {
	Seq   uint64 `json:"seq"`
	Kind  string `json:"kind"`
	Leaf  string `json:"leaf"`
	Chain string `json:"chain"`
}

// moved is one message or fact of an operation's time line.
type moved struct {
	Seq       uint64    `json:"seq"`
	Timestamp time.Time `json:"timestamp"`
	Kind      string    `json:"kind"`
	Direction string    `json:"direction,omitempty"`
	What      string    `json:"what"`
	Detail    string    `json:"detail,omitempty"`
	Operation string    `json:"audit_operation_id,omitempty"`
}

// integrity says what protects the newest of the records.
type integrity struct {
	Checkpoint *checkpointed `json:"checkpoint"`
	Anchors    []anchored    `json:"anchors"`
	Verified   string        `json:"verified"` // yes, no or unknown: what the last verification says of the records
	VerifiedAt time.Time     `json:"verified_at,omitzero"`
}

type checkpointed struct {
	Seq       uint64    `json:"seq"` // of its record
	Size      uint64    `json:"size"`
	Root      string    `json:"root"`
	Timestamp time.Time `json:"timestamp"`
	Signed    bool      `json:"signature_fits"`
	VKey      string    `json:"vkey,omitempty"`
	Note      string    `json:"note"`
}

type anchored struct {
	Name   string `json:"name"`
	Size   uint64 `json:"size"`
	Covers bool   `json:"covers"`
}

const (
	mostShown    = 256 << 10 // bytes of a payload or a record's body
	mostTimeline = 200
	mostScanned  = 3000 // records that are looked through for messages
	timelineTime = 500 * time.Millisecond
)

func (h *Handler) serveOperation(w http.ResponseWriter, r *http.Request, id string) error {
	for name := range r.URL.Query() {
		return badRequest("there is no parameter %q", name)
	}
	x, _, err := h.follower.current()
	if err != nil {
		return err
	}
	records, err := h.find(r.Context(), x, id)
	if err != nil {
		return err
	}
	if err := h.record(r, "operation "+id); err != nil {
		return err
	}
	a, err := h.operation(r.Context(), x, id, records)
	if err != nil {
		return err
	}
	return answer(w, a)
}

// find finds the records of an operation id, or of a record's number, written
// as seq-N.
func (h *Handler) find(ctx context.Context, x *index.Index, id string) ([]index.Found, error) {
	if number, ok := strings.CutPrefix(id, "seq-"); ok {
		seq, err := strconv.ParseUint(number, 10, 63)
		if err != nil {
			return nil, badRequest("%q is no number of a record", number)
		}
		f, err := x.Seq(ctx, seq)
		if err != nil {
			return nil, err
		}
		if f == nil {
			return nil, ErrNotFound
		}
		return []index.Found{*f}, nil
	}
	found, err := x.Operation(ctx, id)
	if err == nil && len(found) == 0 {
		err = ErrNotFound
	}
	return found, err
}

func (h *Handler) operation(ctx context.Context, x *index.Index, id string, found []index.Found) (_ *operationAnswer, err error) {
	a := &operationAnswer{ID: id, Payloads: []payload{}, Timeline: []moved{}}
	var lines index.Lines
	defer func() { err = errors.Join(err, lines.Close()) }()
	row := export.Row{Origin: found[0].Origin}
	for i := range found {
		f := &found[i]
		r, _, _, err := lines.Read(nil, &f.Place)
		if err != nil {
			return nil, err
		}
		switch {
		case f.Kind == "intent" && len(found) > 1 && row.Intent == nil:
			row.Intent = &r
		case row.Close.Raw == nil:
			row.Close, row.Kind = r, export.KindOf(f.Kind)
		}
		one, err := describe(ctx, x, &lines, f, &r)
		if err != nil {
			return nil, err
		}
		a.Records = append(a.Records, *one)
		a.Timeline = append(a.Timeline, moveOf(f, &r))
	}
	if row.Close.Raw == nil {
		row.Close, row.Intent, row.Kind = *row.Intent, nil, export.OpenCall
	}
	a.Kind = row.Kind
	entry := row
	entry.NoPayloads = true
	if a.Entry, err = rowJSON(&entry); err != nil {
		return nil, err
	}
	a.payloads(&row)
	a.Pin = h.pin(memberText(&row, "server_id"), memberText(&row, "tool_name"))
	if err := a.messages(ctx, x, &lines, found); err != nil {
		return nil, err
	}
	return a, h.protect(ctx, x, &lines, found, &a.Integrity)
}

// describe tells a record's seal and neighbours.
func describe(ctx context.Context, x *index.Index, lines *index.Lines, f *index.Found, r *auditlog.Record) (*recordAnswer, error) {
	seal := &r.Line.Seal
	one := &recordAnswer{
		Seq: seal.Seq, Kind: f.Kind, Timestamp: f.At, File: f.Path, Line: f.Line, Leaf: seal.Leaf.String(), Chain: seal.Chain.String(),
		MAC: seal.MAC.String(), KeyID: seal.KeyID, Epoch: seal.Epoch, LeafFits: r.Line.LeafHash() == seal.Leaf, Erased: r.Line.Erased(),
	}
	if body := r.Line.Body(); len(body) <= mostShown && json.Valid(body) {
		one.Body = bytes.Clone(body)
	} else {
		one.BodyCut = true
	}
	before, err := x.Before(ctx, f.Mark, 1)
	if err != nil {
		return nil, err
	}
	if len(before) == 1 {
		b, _, _, err := lines.Read(nil, &before[0].Place)
		if err != nil {
			return nil, err
		}
		one.Before = neighbourOf(&before[0], &b)
		fits := b.Line.Seal.Seq+1 == seal.Seq && auditlog.ChainHash(b.Line.Seal.Chain, seal.Seq, seal.Leaf) == seal.Chain
		one.ChainFits = &fits
	}
	after, err := x.After(ctx, f.Mark, 1)
	if err != nil {
		return nil, err
	}
	if len(after) == 1 {
		n, _, _, err := lines.Read(nil, &after[0].Place)
		if err != nil {
			return nil, err
		}
		one.After = neighbourOf(&after[0], &n)
	}
	return one, nil
}

func neighbourOf(f *index.Found, r *auditlog.Record) *neighbour {
	return &neighbour{Seq: f.Seq, Kind: f.Kind, Leaf: r.Line.Seal.Leaf.String(), Chain: r.Line.Seal.Chain.String()}
}

// payloads adds what people read of the messages.
func (a *operationAnswer) payloads(row *export.Row) {
	for _, name := range []string{"params", "result", "error", "client_info", "policy", "principal", "anomaly", "counts"} {
		for _, r := range []*auditlog.Record{&row.Close, row.Intent} {
			if r == nil {
				continue
			}
			if value := r.Member(name); value != nil {
				a.Payloads = append(a.Payloads, payloadOf(name, value))
				break
			}
		}
	}
}

// memberText is a text member of the row's records.
func memberText(row *export.Row, name string) string {
	if text := row.Close.Text(name); text != "" || row.Intent == nil {
		return text
	}
	return row.Intent.Text(name)
}

func payloadOf(name string, value []byte) payload {
	p := payload{Name: name}
	var b bytes.Buffer
	if len(value) <= mostShown && json.Indent(&b, value, "", "  ") == nil && b.Len() <= 2*mostShown {
		value = b.Bytes()
	}
	if p.Cut = len(value) > 2*mostShown; p.Cut {
		value = value[:2*mostShown]
	}
	p.Text = strings.ToValidUTF8(string(value), "\ufffd")
	return p
}

// messages adds the messages that travelled in the exchange of the operation.
func (a *operationAnswer) messages(ctx context.Context, x *index.Index, lines *index.Lines, found []index.Found) error {
	first := &found[0]
	if first.Kind != "intent" {
		return nil
	}
	to := index.Mark{Segment: first.Mark.Segment, Pos: 1 << 62}
	if last := found[len(found)-1]; last.Kind == "outcome" && last.Mark.Segment == to.Segment {
		to = last.Mark
	}
	between, err := x.Span(ctx, first.Mark, to, mostScanned+1)
	if err != nil {
		return err
	}
	if a.Cut = len(between) > mostScanned; a.Cut {
		between = between[:mostScanned]
	}
	deadline := time.Now().Add(timelineTime)
	var buf []byte
	var within []moved
	for i := range between {
		f := &between[i]
		if len(within) == mostTimeline || time.Now().After(deadline) {
			a.Cut = true
			break
		}
		var r auditlog.Record
		if r, buf, _, err = lines.Read(buf, &f.Place); err != nil {
			return err
		}
		if parent, ok := r.Number("parent_seq"); ok && parent == first.Seq {
			within = append(within, moveOf(f, &r))
		}
	}
	a.Timeline = append(append(a.Timeline[:1:1], within...), a.Timeline[1:]...)
	return nil
}

func moveOf(f *index.Found, r *auditlog.Record) moved {
	m := moved{Seq: f.Seq, Timestamp: f.At, Kind: f.Kind, Direction: r.Text("direction"), Operation: r.Text("audit_operation_id")}
	m.What = r.Text("method")
	if name := r.Text("mcp_name"); name != "" {
		m.What += " " + name
	}
	switch {
	case f.Kind == "outcome":
		m.Detail = r.Text("outcome")
	case r.Text("outcome") != "":
		m.Detail = r.Text("outcome")
	case f.Kind == "intent":
		m.Detail = "recorded before it was forwarded"
	}
	if why := r.Text("reason"); why != "" {
		m.Detail = strings.TrimPrefix(m.Detail+": "+why, ": ")
	}
	if m.What == "" {
		m.What = f.Kind
	}
	return m
}

// protect finds the checkpoint that covers the last of the records, the
// receipts of anchors that do, and what was verified.
func (h *Handler) protect(ctx context.Context, x *index.Index, lines *index.Lines, found []index.Found, i *integrity) error {
	last := &found[len(found)-1]
	i.Anchors = []anchored{}
	c, err := x.Checkpoint(ctx, last.Mark)
	if err != nil {
		return err
	}
	vkey := h.verifier.vkey()
	if c != nil {
		r, _, _, err := lines.Read(nil, &c.Place)
		if err != nil {
			return err
		}
		note := []byte(r.Text("note"))
		if head, err := auditlog.ReadTreeHead(note); err == nil && head.Size > last.Seq {
			i.Checkpoint = &checkpointed{Seq: c.Seq, Size: head.Size, Root: head.Root.String(), Timestamp: c.At, Note: string(note)}
			if vkey != "" {
				_, err := auditlog.OpenTreeHead(note, vkey)
				i.Checkpoint.Signed, i.Checkpoint.VKey = err == nil, vkey
			}
		}
	}
	for _, note := range h.o.Log.Beside() {
		head, err := auditlog.ReadTreeHead(note.Text)
		if err != nil || !note.Receipt || head.Origin != last.Origin {
			continue
		}
		i.Anchors = append(i.Anchors, anchored{Name: note.Name, Size: head.Size, Covers: head.Size > last.Seq})
	}
	if s := h.status(); s != nil {
		for _, anchor := range s.Anchors {
			i.Anchors = append(i.Anchors, anchored{Name: anchor.Name, Size: anchor.Size, Covers: anchor.Size > last.Seq})
		}
	}
	i.Verified, i.VerifiedAt = h.verifier.verdict(found)
	return nil
}

func (h *Handler) status() *auditlog.Status {
	if h.o.Status == nil {
		return nil
	}
	return h.o.Status()
}
