package bridge

import (
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// call is a client's request that the child has not answered yet.
type call struct {
	id     []byte // raw token
	key    string // mcp.IDKey of it
	token  string // key of its progress token, or ""
	method string
	modern bool

	out     *outbox
	dropped bool // ended without an answer: the client cancelled it

	// waiting are the requests of a batch that are not answered, raw ids by
	// their keys; nil: the call is a single request.
	waiting map[string][]byte
}

// route numbers a line of the child and gives it to the exchange it belongs
// to. Output that is no JSON-RPC message is not the protocol's and does not
// reach the client: it goes to the log.
func (b *Bridge) route(line []byte, scratch []mcp.Message) {
	msgs, batch, fault := mcp.ScanAnswer(line, scratch)
	if fault != nil || len(msgs) == 0 || msgs[0].Kind == mcp.KindInvalid {
		b.warnNoise(line)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.held > 0 && b.held+len(line) > b.opts.MaxHeld && b.ended == nil {
		b.room.Wait()
	}
	b.seq++
	it := item{seq: b.seq, line: line}
	b.held += len(line)
	b.carried[it.seq] = struct{}{}
	if batch {
		if c := b.batchOfLocked(msgs, line); c != nil {
			b.settleBatchLocked(c, msgs, line)
			c.out.push(it)
			return
		}
		// One line, several messages: it goes to the stream whole, and the
		// requests answered in it have nothing more to wait for.
		for i := range msgs {
			if c := b.answeredLocked(&msgs[i], line); c != nil && c.waiting == nil {
				c.dropped = true
				b.removeLocked(c)
				c.out.signal()
			}
		}
		b.strayLocked(it)
		return
	}
	m := &msgs[0]
	switch m.Kind {
	case mcp.KindResult, mcp.KindError:
		if c := b.answeredLocked(m, line); c != nil {
			if c.waiting != nil {
				b.settleBatchLocked(c, msgs[:1], line)
				c.out.push(it)
				return
			}
			b.finishLocked(c, it)
			return
		}
	case mcp.KindNotification:
		if c, last := b.relatedLocked(m, line); c != nil {
			if last {
				b.finishLocked(c, it)
			} else {
				c.out.push(it)
			}
			return
		}
	case mcp.KindRequest:
		it.id = m.ID.Of(line)
	}
	b.strayLocked(it)
}

// strayLocked queues a line for the GET stream.
func (b *Bridge) strayLocked(it item) {
	b.stray.push(it)
	if !b.hinted {
		b.hinted = true
		close(b.wanted)
	}
}

// finishLocked gives a call its last line.
func (b *Bridge) finishLocked(c *call, it item) {
	it.last = true
	b.removeLocked(c)
	c.out.push(it)
}

func (b *Bridge) removeLocked(c *call) {
	for key := range c.waiting {
		if b.calls[key] == c {
			delete(b.calls, key)
		}
	}
	if b.calls[c.key] == c {
		delete(b.calls, c.key)
	}
	if c.token != "" && b.progress[c.token] == c {
		delete(b.progress, c.token)
	}
}

// answeredLocked finds the call that an answer belongs to. Ids are compared
// with their type; a server that turns 5 into "5" or back is understood if
// nothing else can be meant.
func (b *Bridge) answeredLocked(m *mcp.Message, line []byte) *call {
	if m.Kind != mcp.KindResult && m.Kind != mcp.KindError || m.IDType != mcp.IDString && m.IDType != mcp.IDNumber {
		return nil
	}
	token := m.ID.Of(line)
	if c := b.calls[mcp.IDKey(token, m.IDType)]; c != nil {
		return c
	}
	if m.IDType == mcp.IDString {
		text := mcp.Text(token)
		return b.calls[mcp.IDKey([]byte(text), mcp.IDNumber)]
	}
	return b.calls["s"+string(token)]
}

// relatedLocked finds the call that a notification belongs to, by its progress
// token or, from 2026-07-28 on, its subscription. In those revisions nothing
// but a request can have caused one, so the only open call is taken if nothing
// is named. last reports that the notification ends the call.
func (b *Bridge) relatedLocked(m *mcp.Message, line []byte) (c *call, last bool) {
	if len(b.calls) == 0 {
		return nil, false
	}
	params := m.Params.Of(line)
	switch mcp.Text(m.Method.Of(line)) {
	case "notifications/progress":
		return b.progress[tokenKey(member(params, "progressToken"))], false
	case "notifications/cancelled":
		// Servers end a subscription with it; of any other request it is the
		// server's own that is meant.
		c := b.calls[tokenKey(m.CancelledID.Of(line))]
		if c != nil && c.modern && c.method == methodListen {
			return c, true
		}
		return nil, false
	}
	if id := member(params, "_meta", subscriptionMember); id != nil {
		return b.calls[tokenKey(id)], false
	}
	if len(b.calls) == 1 {
		for _, c := range b.calls {
			if c.modern {
				return c, false
			}
		}
	}
	return nil, false
}

const (
	methodInitialize = "initialize"
	methodListen     = "subscriptions/listen"
)

// tokenKey is the typed key of a raw id or progress token, "" for none.
func tokenKey(token []byte) string {
	if len(token) == 0 {
		return ""
	}
	switch c := token[0]; {
	case c == '"':
		return mcp.IDKey(token, mcp.IDString)
	case c == '-' || c >= '0' && c <= '9':
		return mcp.IDKey(token, mcp.IDNumber)
	}
	return ""
}

// release takes a line that was handed over off the books; err says that it
// was not.
func (b *Bridge) release(it item, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.dropLocked(it.seq)
	}
	b.releaseLocked(it)
}

func (b *Bridge) releaseLocked(it item) {
	if _, held := b.carried[it.seq]; !held {
		return
	}
	delete(b.carried, it.seq)
	b.held -= len(it.line)
	b.room.Broadcast()
	b.settleLocked()
}

// warnNoise reports output that is no message: to the audit, and one line a
// second to the operator.
func (b *Bridge) warnNoise(line []byte) {
	b.Wrote(ReportStdout, line)
	skipped, ok := b.noise.allow()
	if !ok {
		return
	}
	const shown = 200
	b.log.Warn("the server wrote something to its standard output that is no JSON-RPC message; it was kept from the client",
		"text", strings.ToValidUTF8(string(line[:min(len(line), shown)]), "?"), "bytes", len(line), "not_shown_before", skipped)
}

// oversized deals with a line of the child that was too long to hold. If one
// call is open, the line was its answer: nothing else has that size.
func (b *Bridge) oversized() {
	b.log.Error("the server wrote a line longer than the shim holds; it was dropped", "max_bytes", b.opts.MaxServerLine)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.calls) != 1 {
		return
	}
	for _, c := range b.calls {
		if c.waiting != nil {
			return // of a batch; which of its answers it was is not known
		}
		b.seq++
		it := item{seq: b.seq, line: mcp.AppendError(nil, c.id, codeInternal,
			"the server's answer is longer than the shim holds and was dropped", nil)}
		b.held += len(it.line)
		b.carried[it.seq] = struct{}{}
		b.finishLocked(c, it)
	}
}
