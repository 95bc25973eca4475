package bridge

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// requestsIn are the raw ids of a batch's requests, by their keys; nil if an id
// stands twice.
func requestsIn(msgs []mcp.Message, body []byte) map[string][]byte {
	ids := make(map[string][]byte)
	for i := range msgs {
		m := &msgs[i]
		if m.Kind != mcp.KindRequest {
			continue
		}
		key := mcp.IDKey(m.ID.Of(body), m.IDType)
		if ids[key] != nil {
			return nil
		}
		ids[key] = bytes.Clone(m.ID.Of(body))
	}
	return ids
}

// batch takes a batch to the child and stays for the answers to its requests,
// which it gives back as one array. It reports false if it did nothing, because
// the batch has no request or an id that is in flight already.
func (b *Bridge) batch(w http.ResponseWriter, r *http.Request, ids map[string][]byte, body []byte, seq uint64) bool {
	if len(ids) == 0 {
		return false
	}
	c := &call{waiting: ids, out: newOutbox()}
	b.mu.Lock()
	busy := b.ended != nil
	for key := range ids {
		busy = busy || b.calls[key] != nil
	}
	if busy {
		b.mu.Unlock()
		return false
	}
	for key := range ids {
		b.calls[key] = c
	}
	b.mu.Unlock()
	defer b.leave(c)
	if err := b.write(body); err != nil {
		b.log.Debug("a batch could not be written to the server", "error", err)
	}
	b.accepted(seq)
	b.carryBatch(w, r, c)
	return true
}

// carryBatch waits for the answers to a batch. The array of a child that answers
// it at once goes on as it is; of single answers one is made.
func (b *Bridge) carryBatch(w http.ResponseWriter, r *http.Request, c *call) {
	var items []item
	for {
		b.mu.Lock()
		done := len(c.waiting) == 0 || b.ended != nil
		b.mu.Unlock()
		for it, ok := c.out.pop(); ok; it, ok = c.out.pop() {
			items = append(items, it)
		}
		if done {
			break
		}
		select {
		case <-c.out.wake:
		case <-r.Context().Done():
			b.mu.Lock()
			for _, it := range items {
				b.strayLocked(it)
			}
			b.mu.Unlock()
			return
		}
	}
	seq, text := b.joinBatch(c, items)
	if text == nil {
		// All of it was cancelled.
		w.Header().Set(EndedHeader, "cancelled")
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set(SeqHeader, strconv.FormatUint(seq, 10))
	err := answer(w, http.StatusOK, text)
	for _, it := range items {
		b.release(it, err)
	}
}

// joinBatch makes the answer to a batch of the child's lines and of errors for
// what an ended child leaves open, numbered as the last of them. nil: there is
// nothing to answer.
func (b *Bridge) joinBatch(c *call, items []item) (seq uint64, text []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var elements [][]byte
	for _, it := range items {
		elements = append(elements, elementsOf(it.line))
		seq = it.seq
	}
	if len(c.waiting) > 0 {
		for _, id := range c.waiting {
			elements = append(elements, b.ended.answer(id, false))
		}
		b.seq++
		seq = b.seq
	}
	switch {
	case len(elements) == 0:
		return 0, nil
	case len(items) == 1 && len(elements) == 1 && elements[0] != nil && len(elements[0]) != len(items[0].line):
		return seq, items[0].line
	}
	for _, it := range items {
		if it.seq != seq {
			// It does not come as a line of its own.
			b.dropLocked(it.seq)
		}
	}
	return seq, append(append([]byte{'['}, bytes.Join(elements, []byte(","))...), ']')
}

// elementsOf is a message, or what stands between the brackets of an array.
func elementsOf(line []byte) []byte {
	line = bytes.TrimSpace(line)
	if inner, ok := bytes.CutPrefix(line, []byte("[")); ok {
		return bytes.TrimSuffix(inner, []byte("]"))
	}
	return line
}

// batchOfLocked is the batch that all messages of an array answer, or nil.
func (b *Bridge) batchOfLocked(msgs []mcp.Message, line []byte) (batch *call) {
	for i := range msgs {
		c := b.answeredLocked(&msgs[i], line)
		if c == nil || c.waiting == nil || batch != nil && c != batch {
			return nil
		}
		batch = c
	}
	return batch
}

// settleBatchLocked takes answered requests of a batch off the books.
func (b *Bridge) settleBatchLocked(c *call, msgs []mcp.Message, line []byte) {
	for i := range msgs {
		if b.answeredLocked(&msgs[i], line) != c {
			continue
		}
		token := msgs[i].ID.Of(line)
		for _, key := range []string{tokenKey(token), "s" + string(token), mcp.IDKey([]byte(mcp.Text(token)), mcp.IDNumber)} {
			if b.calls[key] == c {
				delete(b.calls, key)
				delete(c.waiting, key)
				break
			}
		}
	}
}
