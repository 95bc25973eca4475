package caddymodule

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// maxMessage is the largest server message that is held for reading: a JSON
// answer or the data of one SSE event. A larger one passes all the same and is
// recorded by length and hash.
const maxMessage = 16 << 20

// tee follows an answer as it passes. It changes no byte of the server and holds
// none back, with one exception: the write that would complete a server's
// request waits until that request's intent is recorded. With hold_answers,
// messages that close a call wait too (hold.go). What it adds, between
// the server's events or in front of its messages, are the answers to what was
// not forwarded, and comments if the operator wants them (inject.go, batch.go).
type tee struct {
	*caddyhttp.ResponseWriterWrapper
	x      *exchange
	mu     sync.Mutex // of a stream: others may put events or comments in
	mode   teeMode
	status int // 0: no header yet

	// JSON and anything else that is not a stream
	buf      []byte
	size     int64
	declared int64 // Content-Length, -1 if unknown
	hash     *auditlog.WireHash
	done     bool // buf was read for answers

	// SSE
	events   mcp.SSEParser
	eventIDs bool // the stream can be resumed
	after    []serverMessage
	denied   error // an intent could not be recorded

	encoding   string
	decoder    *streamDecoder
	unreadable bool // what follows cannot be decoded

	joiner  *mcp.Joiner // puts answers of ours into the server's
	swallow bool        // the server's body is no answer and does not go on

	holding *holder // of what closes a call, until that is recorded; nil: it is not held

	held    bool   // the answer waits to be judged as a whole
	sifting bool   // events go on one by one, as they are judged
	tail    []byte // of a sifted stream: the event that is not whole yet
	drop    bool   // it does not go on
	instead []byte // but this does

	waiting []byte      // events of ours for the next place between two of the server's
	begun   bool        // bytes of the server have gone out
	over    bool        // the exchange has ended
	cut     bool        // before the answer did
	silence *time.Timer // until the next comment

	clientErr error // writing to the client failed
}

type teeMode uint8

const (
	teeBody    teeMode = iota // held up to maxMessage, read when it ends
	teeSSE                    // read event by event
	teeBlocked                // replaced by an error: it cannot be read
)

// serverMessage is a message of the server that is recorded once its bytes
// have gone to the client.
type serverMessage struct {
	data []byte
	m    mcp.Message
}

func newTee(x *exchange, w http.ResponseWriter) *tee {
	t := &tee{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, x: x, declared: -1}
	t.events.MaxEvent = maxMessage
	t.events.Spill = t.spill
	return t
}

// WriteHeader decides how the answer is read.
func (t *tee) WriteHeader(status int) {
	if status >= 100 && status < 200 {
		t.ResponseWriter.WriteHeader(status)
		return
	}
	if t.status != 0 {
		return
	}
	t.status = status
	h := t.Header()
	h.Del("Set-Cookie")
	t.x.bindSession(status, h)
	t.narrowOrigin(h)
	t.declared = contentLength(h)
	if mediaType(h) == "text/event-stream" {
		t.mode = teeSSE
	}
	t.encoding = strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding")))
	if t.encoding == "identity" {
		t.encoding = ""
	}
	if t.encoding != "" && !t.startDecoding() {
		return
	}
	t.sifting = t.mode == teeSSE && t.encoding == "" && (t.x.judgesAsks() || t.x.h.HoldAnswers)
	if t.mode == teeSSE && (t.x.h.Keepalive > 0 || t.x.joiner != nil || t.sifting) {
		// What is added or left out changes it.
		h.Del("Content-Length")
		t.declared = -1
	}
	status = t.startJoining(status)
	t.startHolding(status)
	if t.held = t.mode == teeBody && t.x.holdsAnswer(); t.held || t.holding.whole() {
		return
	}
	t.ResponseWriter.WriteHeader(status)
	t.startKeepalive()
}

// startDecoding prepares to read an encoded answer. If it cannot be read and
// the operator wants nothing unrecorded, the client gets an error instead.
func (t *tee) startDecoding() bool {
	if canDecode(t.encoding) && t.x.joiner == nil {
		if t.mode == teeSSE {
			t.decoder = newStreamDecoder(t.encoding, t.feed)
		}
		return true
	}
	t.x.anomaly = append(t.x.anomaly, "unreadable_encoding")
	if t.x.h.settings.OnFailure != onFailureBlock || t.x.h.observe() {
		t.unreadable = true
		return true
	}
	t.mode = teeBlocked
	t.x.blockAnswer()
	return false
}

// Write passes bytes on and reads along.
func (t *tee) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status == 0 {
		t.WriteHeader(http.StatusOK)
	}
	out := p
	switch t.mode {
	case teeBlocked:
		return len(p), nil
	case teeSSE:
		t.record()
		if t.sifting {
			out = t.sift(p)
		} else {
			t.read(p)
			if t.holding.verdict() != nil {
				t.denied = errors.Join(t.denied, errWithheld)
			}
		}
		if t.denied != nil {
			return 0, t.denied
		}
		if len(t.after) > 0 {
			t.x.setFinishing(true)
		}
	default:
		before := t.buf
		if t.hold(p); t.size == t.declared && !t.holding.whole() {
			t.x.setFinishing(true)
		}
		switch {
		case t.swallow, t.held, t.holding.whole() && t.buf != nil:
			return len(p), nil
		case t.holding.whole():
			if err := t.passTail(before, p); err != nil {
				return 0, err
			}
			return len(p), nil
		case t.joiner != nil:
			out = t.joiner.Next(nil, p)
		}
	}
	if t.sifting && len(out) == 0 {
		return len(p), nil
	}
	n, err := t.ResponseWriter.Write(out)
	t.begun = t.begun || n > 0
	if err != nil {
		t.clientErr = err
		return min(n, len(p)), err
	}
	t.heard()
	t.fill()
	return len(p), nil
}

// read reads the bytes of a stream before they go on.
func (t *tee) read(p []byte) {
	if t.decoder == nil {
		if !t.unreadable {
			t.feed(p)
		}
		return
	}
	if err := t.decoder.write(p); err != nil {
		t.decoder.close()
		t.decoder, t.unreadable = nil, true
		t.denied = errors.Join(t.denied, t.x.undecodable(err))
	}
}

// ReadFrom keeps io.Copy from going around Write.
func (t *tee) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{t}, r)
}

// FlushError flushes and then records what has been sent.
func (t *tee) FlushError() error {
	if t.mode == teeBlocked || t.swallow || t.held || t.holding.whole() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := http.NewResponseController(t.ResponseWriter).Flush()
	t.record()
	return err
}

// hold keeps the bytes of an answer that is no stream.
func (t *tee) hold(p []byte) {
	t.size += int64(len(p))
	if t.hash != nil {
		_, _ = t.hash.Write(p)
		return
	}
	if t.size <= maxMessage {
		if t.buf == nil && t.declared > 0 && t.declared <= maxMessage {
			t.buf = make([]byte, 0, t.declared)
		}
		t.buf = append(t.buf, p...)
		if t.size == t.declared {
			t.learn()
		}
		return
	}
	if t.hash = t.x.newHash(); t.hash != nil {
		_, _ = t.hash.Write(t.buf)
		_, _ = t.hash.Write(p)
	}
	t.buf = nil
}

// learn takes from a whole answer what the client's next request relies on.
func (t *tee) learn() {
	if t.encoding != "" || !t.x.initialize && !t.x.decidesBy(t.buf) {
		return
	}
	var scratch [1]mcp.Message
	msgs, _, _ := mcp.ScanAnswer(t.buf, scratch[:0])
	for i := range msgs {
		t.x.learnVersion(&msgs[i], t.buf)
		t.x.learnDecisions(&msgs[i], t.buf)
	}
}

// feed reads SSE bytes before they go on. A server's request is recorded now,
// everything else once it has been sent.
func (t *tee) feed(p []byte) {
	t.events.Feed(p, t.event)
}

func (t *tee) event(ev mcp.SSEEvent) {
	if ev.HasID {
		t.eventIDs = true
	}
	if ev.Truncated {
		hash := t.hash
		t.hash = nil
		if !t.cut {
			t.x.oversizedEvent(ev.DataLen, hash)
		}
		if t.x.judgesAsks() && t.denied == nil {
			t.denied = errUnjudged
		}
		return
	}
	if len(ev.Data) == 0 {
		return
	}
	if ev.Name == "endpoint" && t.x.r.Method == http.MethodGet {
		if err := t.x.endpoint(t, string(ev.Data)); err != nil && t.denied == nil {
			t.denied = err
		}
		return
	}
	judged, seen := t.x.judgesAsks(), t.x.alreadySeen(ev)
	if seen && !judged {
		return
	}
	var scratch [1]mcp.Message
	msgs, _, fault := mcp.ScanAnswer(ev.Data, scratch[:0])
	if fault != nil && len(msgs) == 0 {
		if !seen {
			t.x.unreadableMessage(ev.Data, fault)
		}
		return
	}
	if judged && t.judgeEvent(msgs, ev.Data, seen) || seen {
		return
	}
	var data []byte
	for i := range msgs {
		if msgs[i].Kind == mcp.KindRequest {
			err := t.x.serverRequest(&msgs[i], ev.Data, false)
			switch {
			case errors.Is(err, errAskDenied):
				t.deny(len(msgs) == 1, nil)
			case err != nil && t.denied == nil:
				t.denied = err
			}
			continue
		}
		t.x.learnVersion(&msgs[i], ev.Data)
		t.x.learnDecisions(&msgs[i], ev.Data)
		if t.holding != nil && (msgs[i].Kind == mcp.KindResult || msgs[i].Kind == mcp.KindError) {
			// What came before it belongs to the call while that is open.
			t.record()
			t.x.serverMessage(&msgs[i], ev.Data)
			continue
		}
		if data == nil {
			data = append(data, ev.Data...)
		}
		t.after = append(t.after, serverMessage{data: data, m: msgs[i]})
	}
}

// spill takes the data of an event that is too large to be read, for its hash.
func (t *tee) spill() io.Writer {
	if t.hash = t.x.newHash(); t.hash == nil {
		return nil
	}
	return t.hash
}

// record writes the records of the messages that have been sent.
func (t *tee) record() {
	for i := range t.after {
		t.x.serverMessage(&t.after[i].m, t.after[i].data)
		t.after[i] = serverMessage{}
	}
	t.after = t.after[:0]
	if t.mode == teeSSE {
		t.x.setFinishing(false)
	}
}

// complete ends an answer that came to its end. The client has all of it
// before its outcome is worked out.
func (t *tee) complete() error {
	if t.mode == teeBlocked {
		return nil
	}
	if t.holding.whole() {
		return t.completeHeld()
	}
	if t.held {
		t.sent(t.releaseHeld())
	}
	if t.joiner != nil {
		_, err := t.ResponseWriter.Write(t.joiner.End(nil))
		t.sent(err)
	}
	if t.status != 0 && t.mode == teeBody && t.size > 0 {
		t.learn()
		t.x.setFinishing(true)
		if err := http.NewResponseController(t.ResponseWriter).Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
			t.clientErr = err
		}
	}
	t.end(false)
	return nil
}

// end reads what is left to read. If the exchange was cut, what came before
// counts as far as it is whole.
func (t *tee) end(cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop(cut)
	switch t.mode {
	case teeSSE:
		if t.decoder != nil {
			t.decoder.close()
			t.decoder = nil
		}
		if t.holding == nil || !cut {
			t.events.Close(t.event)
		}
		if len(t.tail) > 0 && !cut && t.denied == nil {
			_, err := t.ResponseWriter.Write(t.settle())
			t.sent(err)
		}
		t.record()
	case teeBody:
		if t.done || t.size == 0 || cut && t.holding != nil || t.declared >= 0 && t.size != t.declared {
			return
		}
		t.done = true
		t.x.answerBody(t, cut)
	}
}

// stop ends what others do with the stream. What still waits goes out behind
// the server's last event, if that came whole.
func (t *tee) stop(cut bool) {
	if t.over {
		return
	}
	t.over, t.cut = true, cut || t.unreadable
	if t.silence != nil {
		t.silence.Stop()
	}
	if !cut && t.mode == teeSSE && len(t.waiting) > 0 {
		t.begun = true
		t.fill()
	}
	if t.x.entered != nil {
		t.x.lease.sessions.endStream(t.x.entered, t)
	}
}

// mediaType is the media type of an answer without its parameters, in lower
// case. Clients are lenient about how it is written.
func mediaType(h http.Header) string {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(media))
}
