package auditlog

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// timeLayout is the one form of time stamps in records; times are UTC.
const timeLayout = "2006-01-02T15:04:05.000000000Z"

// stamp is what makes a record unique: its time, the salt of its leaf and the
// random part of its id.
type stamp struct {
	at      time.Time
	nonce   [16]byte
	entropy [10]byte
}

func newStamp(at time.Time) (s stamp) {
	s.at = at
	var random [26]byte
	_, _ = rand.Read(random[:])
	copy(s.nonce[:], random[:16])
	copy(s.entropy[:], random[16:])
	return s
}

// id is the record's ULID. A time outside the range of ULIDs, from a broken
// clock, becomes the nearest that fits.
func (s *stamp) id() (u ulid.ULID) {
	ms := min(uint64(max(s.at.UnixMilli(), 0)), ulid.MaxTime())
	_ = u.SetTime(ms)
	_ = u.SetEntropy(s.entropy[:])
	return u
}

// NewOperationID makes an operation id: a UUIDv7.
func NewOperationID() string { return uuid.Must(uuid.NewV7()).String() }

// draft is a record body before it is sealed. buf is 0x00 ‖ body: what the
// leaf hashes, in one piece.
type draft struct {
	buf    []byte
	stamp  stamp
	idAt   int // where the 26 characters of the id are in buf
	timeAt int // where the 30 characters of the time stamp are
	leaf   Hash
	open   []byte // the openings of committed members, a JSON object, or nil
}

func (d *draft) body() []byte { return d.buf[1:] }

func (d *draft) seal() { d.leaf = sha256.Sum256(d.buf) }

// restamp moves the record to a later time: it waited longer for the log than
// a reader of the log would expect.
func (d *draft) restamp(at time.Time) {
	d.stamp.at = at
	id := d.stamp.id()
	_ = id.MarshalTextTo(d.buf[d.idAt : d.idAt+ulid.EncodedSize])
	at.UTC().AppendFormat(d.buf[d.timeAt:d.timeAt], timeLayout)
	d.seal()
}

// drafts recycles body buffers; larger ones are left to the collector.
var drafts = sync.Pool{New: func() any { return new([]byte) }}

const maxPooledBody = 256 << 10

func newBuffer(size int) []byte {
	b := *drafts.Get().(*[]byte)
	return append(slices.Grow(b[:0], size), 0x00)
}

func (d *draft) recycle() {
	if d.buf != nil && cap(d.buf) <= maxPooledBody {
		b := d.buf
		drafts.Put(&b)
	}
	d.buf, d.open = nil, nil
}

// encoder builds record bodies for one run. It is safe for concurrent use.
type encoder struct {
	run    string
	blind  *blinder
	commit Commit
}

// content is all that a body of kind intent, outcome or event may carry.
type content struct {
	kind      string
	m         *Message // what identifies the message or operation
	session   string   // its keyed hash
	task      string   // its keyed hash
	direction Direction
	policy    *Policy

	clientInfo  []byte
	traceParent string
	reason      string
	anomaly     []string
	httpStatus  int
	count       int
	counts      map[string]int
	parentSeq   uint64
	hasParent   bool

	result      Result
	intentSeq   uint64
	hasIntent   bool
	durationMS  int64
	hasDuration bool

	params, answer, err *Payload
	request, response   []byte
	responseHash        *WireHash
	truncate            bool // keep payloads as $trunc only
}

// size estimates the body, so that its buffer rarely grows.
func (c *content) size() int {
	n := 1024 + len(c.clientInfo)
	for _, p := range []*Payload{c.params, c.answer, c.err} {
		if p != nil && (p.Limit <= 0 || len(p.Received) <= p.Limit) {
			n += len(p.Received) + len(p.Received)/8
		}
	}
	return n
}

func (e *encoder) intent(in *Intent, session string, s stamp) (draft, error) {
	return e.encode(&content{
		kind: "intent", m: &in.Message, session: session, direction: in.Direction, policy: in.Policy,
		clientInfo: in.ClientInfo, traceParent: in.TraceParent, reason: in.Reason, anomaly: in.Anomaly,
		httpStatus: in.HTTPStatus, task: e.blind.task(in.TaskID), parentSeq: in.ParentSeq, hasParent: in.HasParent,
		params: &in.Params, request: in.Request,
	}, s)
}

func (e *encoder) event(ev *Event, s stamp) (draft, error) {
	return e.encode(&content{
		kind: "event", m: &ev.Message, session: e.blind.session(ev.SessionID), direction: ev.Direction, policy: ev.Policy,
		clientInfo: ev.ClientInfo, traceParent: ev.TraceParent, reason: ev.Reason, anomaly: ev.Anomaly,
		httpStatus: ev.HTTPStatus, task: e.blind.task(ev.TaskID), count: ev.Count, parentSeq: ev.ParentSeq, hasParent: ev.HasParent,
		result: ev.Result, params: &ev.Params, answer: &ev.Answer, err: &ev.Error, request: ev.Request,
	}, s)
}

// outcome takes the members that identify the operation from its intent.
func (e *encoder) outcome(m *Message, session string, intentSeq uint64, out *Outcome, truncate bool, s stamp) (draft, error) {
	c := content{
		kind: "outcome", m: m, session: session, direction: out.Direction, policy: out.Policy,
		reason: out.Reason, anomaly: out.Anomaly, httpStatus: out.HTTPStatus, counts: out.Counts,
		result: out.Result, intentSeq: intentSeq, hasIntent: true,
		durationMS: max(out.Duration.Milliseconds(), 0), hasDuration: true,
		answer: &out.Answer, err: &out.Error, response: out.Response, responseHash: out.ResponseHash,
		truncate: truncate, task: e.blind.task(cmp.Or(out.TaskID, m.TaskID)),
	}
	if c.direction == "" {
		c.direction = m.Direction
	}
	if c.policy == nil {
		c.policy = m.Policy
	}
	if c.responseHash != nil {
		s.nonce = c.responseHash.nonce
	}
	return e.encode(&c, s)
}

// encode writes the members in the order of their names, which is the order
// of JCS for such names.
func (e *encoder) encode(c *content, s stamp) (draft, error) {
	d := draft{stamp: s}
	w := bodyWriter{b: newBuffer(c.size()), blind: e.blind, nonce: s.nonce, commit: e.commit}
	w.list("anomaly", c.anomaly)
	w.text("audit_operation_id", c.m.OperationID)
	w.text("client_id", c.m.ClientID)
	if len(c.clientInfo) > 0 {
		w.payload("client_info", &Payload{Received: c.clientInfo, RedactionOn: true}, false)
	}
	if c.count > 1 {
		w.number("count", uint64(c.count))
	}
	w.counts("counts", c.counts)
	w.text("direction", string(c.direction))
	if c.hasDuration {
		w.number("duration_ms", uint64(c.durationMS))
	}
	w.committed("error", func() { w.payload("error", c.err, c.truncate) })
	if c.httpStatus > 0 {
		w.number("http_status", uint64(c.httpStatus))
	}
	d.idAt = w.id(&s)
	if c.hasIntent {
		w.number("intent_seq", c.intentSeq)
	}
	w.text("kind", c.kind)
	w.committed("mcp_name", func() { w.text("mcp_name", c.m.MCPName) })
	w.text("method", c.m.Method)
	w.nonced("nonce")
	w.text("outcome", string(c.result))
	w.committed("params", func() { w.payload("params", c.params, c.truncate) })
	if c.hasParent {
		w.number("parent_seq", c.parentSeq)
	}
	w.policy("policy", c.policy)
	w.committed("principal", func() { w.principal("principal", c.m.Principal) })
	w.text("protocol_version", c.m.ProtocolVersion)
	w.text("reason", c.reason)
	if c.request != nil {
		w.number("request_bytes", uint64(len(c.request)))
	}
	if c.m.RequestIDType != "" {
		w.always("request_id", c.m.RequestID)
		w.text("request_id_type", c.m.RequestIDType)
	}
	if c.request != nil {
		w.wire("request_sha256", c.request)
	}
	w.response(c)
	w.committed("result", func() { w.payload("result", c.answer, c.truncate) })
	w.text("run", e.run)
	w.text("server_id", c.m.ServerID)
	w.text("session", c.session)
	w.text("task", c.task)
	d.timeAt = w.time("timestamp", s.at)
	w.committed("tool_name", func() { w.text("tool_name", c.m.ToolName) })
	w.text("traceparent", c.traceParent)
	w.text("transport", c.m.Transport)
	d.buf, d.open = append(w.b, '}'), w.openings()
	if len(d.buf)+len(d.open)+maxSeal > MaxLine {
		d.recycle()
		return draft{}, ErrTooLarge
	}
	d.seal()
	return d, nil
}

// maxSeal is more than a seal and the line's end can take.
const maxSeal = 384

// bodyWriter appends members to a body.
type bodyWriter struct {
	b     []byte
	begun bool
	blind *blinder
	nonce [16]byte

	commit Commit
	open   []byte // the openings so far, without the closing brace
}

func (w *bodyWriter) name(name string) {
	sep := byte(',')
	if !w.begun {
		sep, w.begun = '{', true
	}
	w.b = append(w.b, sep, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *bodyWriter) always(name, value string) {
	w.name(name)
	w.b = canon.AppendString(w.b, value)
}

func (w *bodyWriter) text(name, value string) {
	if value != "" {
		w.always(name, value)
	}
}

func (w *bodyWriter) number(name string, value uint64) {
	w.name(name)
	w.b = strconv.AppendUint(w.b, value, 10)
}

func (w *bodyWriter) list(name string, values []string) {
	if len(values) == 0 {
		return
	}
	w.name(name)
	sep := byte('[')
	for _, v := range values {
		w.b = append(w.b, sep)
		w.b = canon.AppendString(w.b, v)
		sep = ','
	}
	w.b = append(w.b, ']')
}

func (w *bodyWriter) counts(name string, counts map[string]int) {
	if len(counts) == 0 {
		return
	}
	names := make([]string, 0, len(counts))
	for n := range counts {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return canon.CompareNames([]byte(a), []byte(b)) })
	w.name(name)
	sep := byte('{')
	for _, n := range names {
		w.b = append(w.b, sep)
		w.b = canon.AppendString(w.b, n)
		w.b = append(w.b, ':')
		w.b = strconv.AppendInt(w.b, int64(counts[n]), 10)
		sep = ','
	}
	w.b = append(w.b, '}')
}

func (w *bodyWriter) id(s *stamp) (at int) {
	w.name("id")
	at = len(w.b) + 1
	var text [ulid.EncodedSize]byte
	u := s.id()
	_ = u.MarshalTextTo(text[:])
	w.b = append(w.b, '"')
	w.b = append(w.b, text[:]...)
	w.b = append(w.b, '"')
	return at
}

func (w *bodyWriter) nonced(name string) {
	w.name(name)
	w.b = append(w.b, '"')
	w.b = b64.AppendEncode(w.b, w.nonce[:])
	w.b = append(w.b, '"')
}

func (w *bodyWriter) time(name string, at time.Time) (pos int) {
	w.name(name)
	pos = len(w.b) + 1
	w.b = append(w.b, '"')
	w.b = at.UTC().AppendFormat(w.b, timeLayout)
	w.b = append(w.b, '"')
	return pos
}

// object starts a nested object; the caller closes it with end.
func (w *bodyWriter) object(name string) bodyWriter {
	w.name(name)
	return bodyWriter{b: w.b}
}

func (w *bodyWriter) end(inner bodyWriter) { w.b = append(inner.b, '}') }

func (w *bodyWriter) policy(name string, p *Policy) {
	if p == nil || *p == (Policy{}) {
		return
	}
	o := w.object(name)
	o.text("decision", p.Decision)
	o.text("digest", p.Digest)
	o.text("reason", p.Reason)
	o.text("rule_id", p.RuleID)
	w.end(o)
}

func (w *bodyWriter) principal(name string, p *Principal) {
	if p == nil || p.Subject == "" && p.ClientID == "" && p.Issuer == "" && p.Source == "" && len(p.Roles) == 0 && len(p.Scopes) == 0 {
		return
	}
	o := w.object(name)
	o.text("client_id", p.ClientID)
	o.text("issuer", p.Issuer)
	o.list("roles", p.Roles)
	o.list("scopes", p.Scopes)
	o.text("source", p.Source)
	o.text("subject", p.Subject)
	w.end(o)
}

func (w *bodyWriter) wire(name string, data []byte) {
	h := w.blind.wire(w.nonce)
	h.Write(data)
	w.sum(name, h)
}

func (w *bodyWriter) sum(name string, h hash.Hash) {
	var full [HashSize]byte
	h.Sum(full[:0])
	w.name(name)
	w.b = append(w.b, '"')
	w.b = b64.AppendEncode(w.b, full[:])
	w.b = append(w.b, '"')
}

func (w *bodyWriter) response(c *content) {
	switch {
	case c.responseHash != nil:
		w.number("response_bytes", uint64(c.responseHash.n))
		w.sum("response_sha256", c.responseHash.h)
	case c.response != nil:
		w.number("response_bytes", uint64(len(c.response)))
		w.wire("response_sha256", c.response)
	}
}

// payload writes the stored form of a payload: its normal form, or what stands
// for it where it is too long or no strict JSON.
func (w *bodyWriter) payload(name string, p *Payload, truncate bool) {
	if p == nil || p.Received == nil {
		return
	}
	switch {
	case truncate, p.Limit > 0 && len(p.Received) > p.Limit:
		w.truncated(name, p.Received, "")
		return
	case p.Withheld != "":
		w.truncated(name, p.Received, p.Withheld)
		return
	}
	src := p.Received
	if p.Redacted != nil {
		src = p.Redacted
	}
	mark := *w
	w.name(name)
	out, why := canon.Append(w.b, src)
	if why == canon.None {
		w.b = out
		return
	}
	*w = mark
	if p.RedactionOn && why != canon.Depth && why != canon.Keys {
		w.truncated(name, p.Received, string(why))
		return
	}
	o := w.object(name)
	o.name("$raw")
	o.b = append(o.b, '"')
	o.b = base64.RawURLEncoding.AppendEncode(o.b, src)
	o.b = append(o.b, '"')
	o.text("why", string(why))
	w.end(o)
}

func (w *bodyWriter) truncated(name string, received []byte, why string) {
	o := w.object(name)
	o.blind, o.nonce = w.blind, w.nonce
	o.number("$trunc", uint64(len(received)))
	o.wire("sha256", received)
	o.text("why", why)
	w.end(o)
}
