package ship

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// poster posts batches; an answer 2xx acknowledges one.
type poster struct {
	client *http.Client
	url    string
	name   string // the address without user information and query
	header http.Header
}

// answerLimit is how much of an answer is read.
const answerLimit = 64 << 10

// post sends a body. The batch's first and last record are in headers, by which
// a receiver can tell a repetition before it reads the body.
func (p *poster) post(ctx context.Context, b *Batch, mediaType string, body []byte) (answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, values := range p.header {
		r.Header[name] = values
	}
	r.Header.Set("Content-Type", mediaType)
	r.Header.Set("Mcp-Audit-Origin", b.Last.Origin)
	r.Header.Set("Mcp-Audit-First", strconv.FormatUint(b.First.Seq, 10))
	r.Header.Set("Mcp-Audit-Last", strconv.FormatUint(b.Last.Seq, 10))
	resp, err := p.client.Do(r)
	if err != nil {
		return nil, p.plain(err)
	}
	answer, err = io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return nil, p.plain(err)
	}
	switch code := resp.StatusCode; {
	case code/100 == 2:
		return answer, nil
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500 && code != http.StatusNotImplemented:
		err := fmt.Errorf("%s answers %s", p.name, resp.Status)
		if seconds, parsed := strconv.Atoi(resp.Header.Get("Retry-After")); parsed == nil && seconds > 0 {
			return nil, &laterError{err, time.Duration(min(seconds, 3600)) * time.Second}
		}
		return nil, err
	default:
		return nil, &RefusedError{Receiver: p.name, Why: "it answers " + resp.Status, First: b.First, Last: b.Last}
	}
}

// plain is an error without the address, which may hold credentials.
func (p *poster) plain(err error) error {
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		err = inner.Unwrap()
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

func (p *poster) String() string { return p.name }

// Close implements Sink.
func (p *poster) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// lineSink posts rows as lines of JSON, or as one list.
type lineSink struct {
	poster
	format  string
	options export.Options
	list    bool
}

// Encode implements Sink.
func (s *lineSink) Encode(r *export.Row) ([]byte, error) { return encode(s.format, s.options, r) }

func encode(format string, o export.Options, r *export.Row) ([]byte, error) {
	var line bytes.Buffer
	w, err := export.New(format, &line, o)
	if err != nil {
		return nil, err
	}
	err = w.Write(r)
	return line.Bytes(), err
}

// Deliver implements Sink.
func (s *lineSink) Deliver(ctx context.Context, b *Batch) error {
	if !s.list {
		_, err := s.post(ctx, b, "application/x-ndjson", bytes.Join(b.rows, nil))
		return err
	}
	trimmed := make([][]byte, len(b.rows))
	for i, row := range b.rows {
		trimmed[i] = bytes.TrimSuffix(row, []byte("\n"))
	}
	body := append([]byte{'['}, bytes.Join(trimmed, []byte(","))...)
	_, err := s.post(ctx, b, "application/json", append(body, ']'))
	return err
}

// otlpSink posts log records of OpenTelemetry in protobuf (OTLP/HTTP 1.x).
type otlpSink struct {
	poster
	resource *resource.Resource
}

// Encode implements Sink.
func (s *otlpSink) Encode(r *export.Row) ([]byte, error) {
	record, err := export.LogRecord(r)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(record)
}

// Deliver implements Sink. The body is an ExportLogsServiceRequest, which has
// the form of LogsData.
func (s *otlpSink) Deliver(ctx context.Context, b *Batch) error {
	scope := &logs.ScopeLogs{LogRecords: make([]*logs.LogRecord, len(b.rows))}
	for i, row := range b.rows {
		scope.LogRecords[i] = new(logs.LogRecord)
		if err := proto.Unmarshal(row, scope.LogRecords[i]); err != nil {
			return err
		}
	}
	body, err := proto.Marshal(&logs.LogsData{ResourceLogs: []*logs.ResourceLogs{{Resource: s.resource, ScopeLogs: []*logs.ScopeLogs{scope}}}})
	if err != nil {
		return err
	}
	answer, err := s.post(ctx, b, "application/x-protobuf", body)
	if err != nil {
		return err
	}
	if n, why := rejected(answer); n > 0 {
		return &RefusedError{Receiver: s.name, Why: fmt.Sprintf("it rejects %d of them: %s", n, why), First: b.First, Last: b.Last}
	}
	return nil
}

// rejected reads the partial success of an ExportLogsServiceResponse: how many
// log records were not taken, and why.
func rejected(answer []byte) (n int64, why string) {
	fields(answer, func(number protowire.Number, _ uint64, partial []byte) {
		if number != 1 {
			return
		}
		fields(partial, func(number protowire.Number, value uint64, text []byte) {
			switch number {
			case 1:
				n = int64(value)
			case 2:
				why = string(text)
			}
		})
	})
	return n, why
}

// fields calls do for the numbers and texts of a message, up to one that cannot
// be read.
func fields(message []byte, do func(number protowire.Number, value uint64, text []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return
		}
		switch kind {
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(message)
			do(number, v, nil)
		case protowire.BytesType:
			v, _ := protowire.ConsumeBytes(message)
			do(number, 0, v)
		}
		message = message[size:]
	}
}
