package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
)

// codeInternal is JSON-RPC's internal error.
const codeInternal = -32603

// send posts one line and brings the answer to the client.
func (f *Front) send(msg *message) {
	req, err := http.NewRequestWithContext(f.ctx, http.MethodPost, f.o.Chain.URL, bytes.NewReader(msg.line))
	if err != nil {
		f.fail(msg, codeInternal, "the address of the audited route is not usable: "+err.Error())
		return
	}
	f.setHeaders(req.Header, msg)
	resp, err := f.o.Chain.Transport.RoundTrip(req)
	if err != nil {
		if f.ctx.Err() == nil {
			f.fail(msg, mcp.UnavailableCode(msg.modern), f.o.Chain.Unreachable(err))
		}
		return
	}
	defer resp.Body.Close()
	if err := f.receive(msg, resp); err != nil && f.ctx.Err() == nil {
		f.fail(msg, codeInternal, err.Error())
	}
}

// setHeaders sets what the transport of the message's revision demands.
func (f *Front) setHeaders(h http.Header, msg *message) {
	for name, values := range f.o.Chain.Header {
		h[name] = values
	}
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	h.Set(bridge.SeqHeader, strconv.FormatUint(msg.seq, 10))
	if !msg.scanned {
		// A batch, or a line that is refused: it belongs to what was agreed.
		switch version := f.lastVersion(); {
		case mcp.Modern(version):
			setPlain(h, "Mcp-Protocol-Version", version)
		case version != "":
			f.setSession(h)
		}
		return
	}
	method := msg.method()
	if !msg.modern {
		if method != methodInitialize {
			f.setSession(h)
		}
		return
	}
	version := f.lastVersion()
	if stated := mcp.Text(msg.m.ProtocolVersion.Of(msg.line)); stated != "" {
		version = stated
	}
	setPlain(h, "Mcp-Protocol-Version", version)
	setPlain(h, "Mcp-Method", method)
	if msg.m.Name.Present() && msg.request() {
		h.Set("Mcp-Name", mcp.EncodeHeaderValue(mcp.Text(msg.m.Name.Of(msg.line))))
	}
}

// setSession sets the headers of the session of revisions up to 2025-11-25.
func (f *Front) setSession(h http.Header) {
	h.Set(bridge.SessionHeader, f.o.Session)
	// The header came with 2025-06-18.
	if version := f.lastVersion(); version >= mcp.Revision20250618 && !mcp.Modern(version) {
		setPlain(h, "Mcp-Protocol-Version", version)
	}
}

func (f *Front) lastVersion() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}

// setPlain sets a header that has no encoded form. A value that no header can
// hold is left out: the chain then refuses the message.
func setPlain(h http.Header, name, value string) {
	if strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) < 0 {
		h.Set(name, value)
	}
}

// receive reads the answer to one line. The error is a sentence for the client
// if the answer it waits for did not come.
func (f *Front) receive(msg *message, resp *http.Response) error {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if media == "text/event-stream" && resp.StatusCode == http.StatusOK {
		return f.receiveEvents(msg, resp.Body)
	}
	body, err := readAll(resp)
	if err != nil {
		return fmt.Errorf("the connection to the audited route broke before the whole answer came: %w; the call may have been executed", err)
	}
	if !msg.request() && msg.scanned {
		// Nobody waits for an answer; a refusal matters all the same. One with
		// a text of its own is told: a request may have lost its id.
		if resp.StatusCode/100 != 2 {
			f.refused(msg, resp.StatusCode)
			if msg.m.Kind == mcp.KindNotification && isError(body) {
				f.out.deliver(0, body)
			}
		}
		return nil
	}
	if resp.Header.Get(bridge.EndedHeader) != "" {
		return nil
	}
	var scratch [1]mcp.Message
	msgs, batch, fault := mcp.ScanAnswer(body, scratch[:0])
	if fault == nil && (batch || msgs[0].Kind == mcp.KindResult || msgs[0].Kind == mcp.KindError) {
		seq, _ := strconv.ParseUint(resp.Header.Get(bridge.SeqHeader), 10, 64)
		if !batch {
			f.learn(msg, &msgs[0], body)
			body = withID(body, &msgs[0], msg.id())
		}
		f.out.deliver(seq, body)
		return nil
	}
	if msg.request() || resp.StatusCode/100 != 2 {
		return errors.New(describeStatus(resp.StatusCode))
	}
	return nil
}

// isError reports whether a body is one JSON-RPC error.
func isError(body []byte) bool {
	var scratch [1]mcp.Message
	msgs, batch, fault := mcp.ScanAnswer(body, scratch[:0])
	return fault == nil && !batch && msgs[0].Kind == mcp.KindError
}

// describeStatus says what an answer without a message means.
func describeStatus(status int) string {
	text := fmt.Sprintf("the audited route answered HTTP %d %s", status, http.StatusText(status))
	switch status {
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return text + "; check that the path given with --caddy has mcp_audit and reverse_proxy"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return text + "; check that its reverse_proxy has `dynamic mcp_shim` with the shim's runtime directory and that Caddy runs as the same user"
	case http.StatusUnauthorized, http.StatusForbidden:
		return text + "; the route must accept local callers without credentials"
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return text + " without an answer to the request"
	}
	return text
}

// receiveEvents reads the answer to a request that comes as a stream.
func (f *Front) receiveEvents(msg *message, body io.Reader) error {
	answered := false
	err := f.events(body, func(seq uint64, line []byte, m *mcp.Message) {
		if m != nil && (m.Kind == mcp.KindResult || m.Kind == mcp.KindError) {
			answered = true
			f.learn(msg, m, line)
			if seq == 0 {
				line = withID(line, m, msg.id())
			}
		}
		f.out.deliver(seq, line)
	})
	switch {
	case answered || !msg.request():
		return nil
	case err != nil:
		return fmt.Errorf("the connection to the audited route broke before the answer came: %w; the call may have been executed", err)
	case f.cancelled(msg):
		return nil
	}
	return errors.New("the audited route ended the stream before the answer came; the call may have been executed")
}

// cancelled reports whether a stream that ended without an answer did so
// because the client wanted it. A subscription has no answer of its own.
func (f *Front) cancelled(msg *message) bool {
	if msg.method() == methodListen {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.requests[msg.key()]
	return fl != nil && fl.seq == msg.seq && fl.cancelled
}

// learn takes the negotiated version from the answer to initialize.
func (f *Front) learn(msg *message, m *mcp.Message, body []byte) {
	if msg.scanned && msg.method() == methodInitialize && m.Kind == mcp.KindResult {
		msg.learned = true
		f.negotiated(mcp.Text(m.ProtocolVersion.Of(body)))
	}
}

// events reads a stream of events and hands over each line that it carries. m
// is nil for a batch.
func (f *Front) events(body io.Reader, each func(seq uint64, line []byte, m *mcp.Message)) error {
	p := mcp.SSEParser{MaxEvent: 1 << 30}
	emit := func(ev mcp.SSEEvent) {
		if len(ev.Data) == 0 {
			return
		}
		line := bytes.Clone(ev.Data)
		seq, _ := strconv.ParseUint(ev.ID, 10, 64)
		var scratch [1]mcp.Message
		msgs, batch, fault := mcp.ScanAnswer(line, scratch[:0])
		switch {
		case fault != nil:
			f.log.Warn("the audited route sent an event that is no JSON-RPC message", "bytes", len(line))
		case batch:
			each(seq, line, nil)
		default:
			each(seq, line, &msgs[0])
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		p.Feed(buf[:n], emit)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// refused deals with a notification or answer that the chain did not take. The
// server waits for an answer, so it is told; a notification is only missing.
func (f *Front) refused(msg *message, status int) {
	f.log.Warn("a message of the client was refused on the audited route", "status", status, "method", msg.method())
	if msg.m.Kind != mcp.KindResult && msg.m.Kind != mcp.KindError {
		return
	}
	id := msg.m.ID.Of(msg.line)
	if id == nil {
		return
	}
	if err := f.o.Bridge.Reject(id, codeInternal, "the client's answer was refused by the audit"); err != nil {
		f.log.Warn("the server could not be told that an answer was refused", "error", err)
	}
}

// fail answers a line in the chain's place.
func (f *Front) fail(msg *message, code int, text string) {
	f.log.Error(text)
	switch {
	case msg.request():
		f.out.deliver(0, mcp.AppendError(nil, msg.id(), code, text, nil))
	case msg.scanned:
		f.refused(msg, 0)
	default:
		f.out.deliver(0, mcp.AppendError(nil, nil, code, text, nil))
	}
}

// withID gives an error that names no request the id of the only one it can
// mean: the chain leaves it out of what it refuses unread.
func withID(body []byte, m *mcp.Message, id []byte) []byte {
	if id == nil || m.Kind != mcp.KindError || m.IDType != mcp.IDNone && m.IDType != mcp.IDNull {
		return body
	}
	var out []byte
	if m.IDType == mcp.IDNull {
		out = append(out, body[:m.ID.Start]...)
		out = append(out, id...)
		return append(out, body[m.ID.End:]...)
	}
	at := bytes.IndexByte(body, '{') + 1
	out = append(out, body[:at]...)
	out = append(out, `"id":`...)
	out = append(out, id...)
	out = append(out, ',')
	return append(out, body[at:]...)
}

func readAll(resp *http.Response) ([]byte, error) {
	var buf bytes.Buffer
	if n := resp.ContentLength; n > 0 {
		buf.Grow(int(min(n, 64<<20)) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(resp.Body)
	return buf.Bytes(), err
}
