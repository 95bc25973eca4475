package auditlog

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
)

// Commit names body members of intents, outcomes and events that a record only
// commits to: the body has a salted hash, and salt and value lie beside it, so
// that each can be disclosed or erased alone while the record's seal stands.
type Commit struct {
	members map[string]bool
}

// Payload members, and the others that can be committed to. A tool's name stands
// twice in a record, so mcp_name is both.
var (
	payloadMembers   = []string{"error", "params", "result"}
	committedMembers = []string{"error", "mcp_name", "params", "principal", "result"}
)

// ParseCommit reads the option: `none`, or any of `payload` (params, result and
// error), those members alone, `principal` and `mcp_name`.
func ParseCommit(words []string) (Commit, error) {
	c := Commit{}
	add := func(names ...string) {
		if c.members == nil {
			c.members = make(map[string]bool)
		}
		for _, n := range names {
			c.members[n] = true
		}
	}
	for _, word := range words {
		switch {
		case word == "none" && len(words) == 1:
		case word == "payload":
			add(payloadMembers...)
		case word == "mcp_name":
			add("mcp_name", "tool_name")
		case slices.Contains(committedMembers, word):
			add(word)
		default:
			return Commit{}, fmt.Errorf("%q cannot be committed to; there are none, payload, %s", word, strings.Join(committedMembers, ", "))
		}
	}
	return c, nil
}

// SetCommit changes which members the records from now on commit to.
func (l *Log) SetCommit(c Commit) {
	l.mu.Lock()
	l.opt.commit = c
	l.mu.Unlock()
	for {
		old := l.enc.Load()
		now := *old
		now.commit = c
		if l.enc.CompareAndSwap(old, &now) {
			return
		}
	}
}

// committed writes a member with write, and puts its commitment in its place if
// the log commits to it.
func (w *bodyWriter) committed(name string, write func()) {
	if !w.commit.members[name] {
		write()
		return
	}
	mark, begun := len(w.b), w.begun
	write()
	if len(w.b) == mark {
		return
	}
	value := w.b[mark+len(`,"":`)+len(name):]
	c := committedMember(name, value)
	w.open = append(w.open, c.opening...)
	w.b, w.begun = w.b[:mark], begun
	w.name(name)
	w.b = append(w.b, c.value...)
}

// openings is the value of the line's `open`, or nil. Members are written in
// the order of their names.
func (w *bodyWriter) openings() []byte { return closeOpenings(w.open) }

// closeOpenings makes an object of openings that each begin with a comma.
func closeOpenings(list []byte) []byte {
	if len(list) == 0 {
		return nil
	}
	list[0] = '{'
	return append(list, '}')
}

// commitMember is a committed member: what stands in the body, and its opening,
// with a comma before it.
type commitMember struct {
	member
	opening []byte
}

// committedMember commits to a value in its normal form, with a fresh salt.
func committedMember(name string, value []byte) commitMember {
	var salt [16]byte
	_, _ = rand.Read(salt[:])
	opening := make([]byte, 0, len(name)+len(value)+saltText+16)
	opening = append(append(append(opening, ',', '"'), name...), `":["`...)
	opening = b64.AppendEncode(opening, salt[:])
	opening = append(append(append(opening, `",`...), value...), ']')
	hash := commitment(name, salt, value)
	return commitMember{member{name, fmt.Appendf(nil, `{"$c":"%s"}`, hash)}, opening}
}

// plain is the body with the values in place of their commitments.
func (d *draft) plain() []byte {
	if d.open == nil {
		return d.body()
	}
	line := Line{Prefix: bytes.TrimSuffix(d.body(), []byte{'}'}), Open: d.open}
	out := make([]byte, 0, len(d.buf)+len(d.open))
	sep := byte('{')
	bodyMembers(line.Prefix, func(name string, value []byte) bool {
		if isCommitment(value) {
			if disclosed := opened(&line, name); disclosed != nil {
				value = disclosed
			}
		}
		out = append(append(append(out, sep, '"'), name...), `":`...)
		out, sep = append(out, value...), ','
		return true
	})
	return append(out, '}')
}

// Shortened reports whether values of the record were erased: all of them, or a
// committed one whose opening is not there.
func (l *Line) Shortened() bool {
	short := l.Erased()
	bodyMembers(l.Prefix, func(name string, value []byte) bool {
		short = short || isCommitment(value) && opened(l, name) == nil
		return !short
	})
	return short
}

// size is what a draft takes of a batch, in bytes.
func (d *draft) size() int { return len(d.buf) + len(d.open) }
