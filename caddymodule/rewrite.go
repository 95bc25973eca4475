package caddymodule

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// rewriteRule changes a server's message before its client gets it. It returns
// the ranges of data to be replaced, in order; none: the message stays. With an
// error the message must not go on.
type rewriteRule func(x *exchange, m *mcp.Message, data []byte) ([]replacement, error)

// replacement is what stands in the place of a range of bytes.
type replacement struct {
	at   mcp.Span
	with []byte
}

// rewriter stands between the server and the tee where an option changes what
// clients get, so that the tee records what has gone on. An answer that is no
// stream is held until it is whole, up to maxMessage; of a stream each event is
// held until it is whole, and goes on at once. Bytes that no rule touches stay as
// they came. What cannot be read does not go on.
type rewriter struct {
	*caddyhttp.ResponseWriterWrapper
	x     *exchange
	tee   *tee
	rules []rewriteRule

	status  int
	sse     bool
	decoder *streamDecoder
	failed  error

	buf     []byte // the answer, or the event that is not whole yet
	pos     int    // of buf is read
	lineAt  int    // where its current line begins
	started bool   // an event has gone on
}

func newRewriter(x *exchange, rules []rewriteRule) *rewriter {
	return &rewriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: x.tee}, x: x, tee: x.tee, rules: rules}
}

// Why an answer that has to be changed does not go on.
var (
	errUnrewritable = errors.New("the server's message cannot be read, so that what must not go on cannot be taken out of it")
	errTooLong      = errors.New("the server's message is too long to be changed, so that it was withheld")
)

// WriteHeader holds the header of an answer that is no stream.
func (w *rewriter) WriteHeader(status int) {
	if status >= 100 && status < 200 {
		w.tee.WriteHeader(status)
		return
	}
	if w.status != 0 {
		return
	}
	w.status = status
	h := w.Header()
	w.sse = mediaType(h) == "text/event-stream"
	encoding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	if !w.sse {
		return
	}
	h.Del("Content-Length")
	if encoding != "" && encoding != "identity" {
		if !canDecode(encoding) {
			w.fail(errUnrewritable)
			return
		}
		h.Del("Content-Encoding")
		w.decoder = newStreamDecoder(encoding, w.feed)
	}
	w.tee.WriteHeader(status)
}

// fail withholds what is left of the answer.
func (w *rewriter) fail(err error) {
	if w.failed == nil {
		w.failed = err
		w.buf = nil
	}
}

// Write takes bytes of the server.
func (w *rewriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed != nil && w.sse:
		return 0, w.failed
	case w.failed != nil:
		return len(p), nil
	case !w.sse:
		if w.buf = append(w.buf, p...); len(w.buf) > maxMessage {
			w.fail(errTooLong)
		}
		return len(p), nil
	case w.decoder != nil:
		if err := w.decoder.write(p); err != nil {
			w.fail(err)
		}
	default:
		w.feed(p)
	}
	if w.failed != nil {
		return 0, w.failed
	}
	return len(p), nil
}

// ReadFrom keeps io.Copy from going around Write.
func (w *rewriter) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

// FlushError flushes a stream; other answers wait.
func (w *rewriter) FlushError() error {
	if !w.sse || w.failed != nil {
		return nil
	}
	return w.tee.FlushError()
}

// feed takes bytes of a stream and sends on each event that is whole.
func (w *rewriter) feed(p []byte) {
	if w.failed != nil {
		return
	}
	w.buf = append(w.buf, p...)
	for w.pos < len(w.buf) {
		c := w.buf[w.pos]
		if c != '\n' && c != '\r' {
			w.pos++
			continue
		}
		blank := w.pos == w.lineAt
		if w.pos++; c == '\r' && w.pos < len(w.buf) && w.buf[w.pos] == '\n' {
			w.pos++
		}
		if w.lineAt = w.pos; blank {
			frame := w.buf[:w.pos]
			if w.send(frame); w.failed != nil {
				return
			}
			w.buf = append(w.buf[:0], w.buf[w.pos:]...)
			w.pos, w.lineAt = 0, 0
		}
	}
	if len(w.buf) > maxMessage+4096 {
		w.fail(errTooLong)
	}
}

// send passes one event on.
func (w *rewriter) send(frame []byte) {
	name, data := w.fields(frame)
	out := frame
	if len(data) > 0 && name != "endpoint" {
		changed, now, err := w.x.rewrite(w.rules, data)
		if err != nil {
			w.fail(err)
			return
		}
		if changed {
			out = replaceData(frame, now)
		}
	}
	w.started = true
	if _, err := w.tee.Write(out); err != nil {
		w.fail(err)
	}
}

// fields reads the name and the data of an event.
func (w *rewriter) fields(frame []byte) (name string, data []byte) {
	has := false
	eachLine(frame, func(line, _ []byte) {
		if !w.started {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		field, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(field) {
		case "event":
			name = string(value)
		case "data":
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, value...), true
		}
	})
	return name, data
}

// replaceData is an event with other data, in the place of its first data line.
func replaceData(frame, data []byte) []byte {
	out := make([]byte, 0, len(frame)+len(data))
	written := false
	eachLine(frame, func(line, end []byte) {
		field, _, _ := bytes.Cut(bytes.TrimPrefix(line, []byte("\uFEFF")), []byte{':'})
		if string(field) != "data" {
			out = append(append(out, line...), end...)
			return
		}
		if written {
			return
		}
		written = true
		for part := range bytes.SplitSeq(data, []byte{'\n'}) {
			out = append(append(append(out, "data: "...), part...), end...)
		}
	})
	return out
}

// eachLine calls f with the lines of an event and what ends them.
func eachLine(frame []byte, f func(line, end []byte)) {
	for len(frame) > 0 {
		i := bytes.IndexAny(frame, "\r\n")
		if i < 0 {
			f(frame, nil)
			return
		}
		n := i + 1
		if frame[i] == '\r' && n < len(frame) && frame[n] == '\n' {
			n++
		}
		f(frame[:i], frame[i:n])
		frame = frame[n:]
	}
}

// finish sends on what was held, when the answer has come to its end.
func (w *rewriter) finish() error {
	if w.sse {
		if w.decoder != nil {
			w.decoder.close()
		}
		if w.failed == nil && len(w.buf) > 0 {
			w.send(w.buf)
		}
		if w.failed != nil {
			w.x.h.logger.Warn("a stream was cut: " + w.failed.Error())
		}
		return w.failed
	}
	if w.status == 0 {
		return nil
	}
	body, err := w.body()
	if err != nil {
		w.x.withhold(w.tee, err.Error())
		return nil
	}
	h := w.Header()
	if h.Get("Content-Length") != "" || len(body) > 0 {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.tee.WriteHeader(w.status)
	if len(body) > 0 {
		_, err = w.tee.Write(body)
	}
	return err
}

// body is the answer as it goes on.
func (w *rewriter) body() ([]byte, error) {
	if w.failed != nil {
		return nil, w.failed
	}
	h := w.Header()
	body := w.buf
	if encoding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding"))); encoding != "" && encoding != "identity" && len(body) > 0 {
		if !canDecode(encoding) {
			return nil, errUnrewritable
		}
		var err error
		if body, err = decodeAll(encoding, body, maxMessage); err != nil {
			return nil, errUnrewritable
		}
		h.Del("Content-Encoding")
	}
	if len(body) == 0 || w.x.r.Method == http.MethodHead {
		return body, nil
	}
	changed, now, err := w.x.rewrite(w.rules, body)
	if err == nil && changed {
		return now, nil
	}
	if err != nil && !looksLikeJSON(h, body) {
		// A page of text, such as that of a proxy's error.
		return []byte(w.x.h.wireText(string(body))), nil
	}
	return body, err
}

func looksLikeJSON(h http.Header, body []byte) bool {
	media := mediaType(h)
	body = bytes.TrimLeft(body, " \t\r\n\uFEFF")
	return media == "" || strings.HasSuffix(media, "json") || len(body) > 0 && (body[0] == '{' || body[0] == '[')
}

// rewrite applies rules to a server's message, or to each of a batch.
func (x *exchange) rewrite(rules []rewriteRule, data []byte) (changed bool, out []byte, err error) {
	for _, rule := range rules {
		var scratch [1]mcp.Message
		msgs, _, fault := mcp.ScanAnswer(data, scratch[:0])
		if fault != nil {
			return false, nil, errUnrewritable
		}
		var edits []replacement
		for i := range msgs {
			more, err := rule(x, &msgs[i], data)
			if err != nil {
				return false, nil, err
			}
			edits = append(edits, more...)
		}
		if len(edits) > 0 {
			data, changed = applyReplacements(data, edits), true
		}
	}
	return changed, data, nil
}

// applyReplacements makes data with ranges replaced.
func applyReplacements(data []byte, edits []replacement) []byte {
	slices.SortStableFunc(edits, func(a, b replacement) int { return a.at.Start - b.at.Start })
	size := len(data)
	for _, e := range edits {
		size += len(e.with)
	}
	out := make([]byte, 0, size)
	at := 0
	for _, e := range edits {
		out = append(append(out, data[at:e.at.Start]...), e.with...)
		at = e.at.End
	}
	return append(out, data[at:]...)
}
