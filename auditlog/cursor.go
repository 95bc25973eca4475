package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Cursor is what a verification found up to the last whole record, so that a
// later one can go on behind it. It says that who made it had verified these
// records, and had found this chain and this tree. It says nothing about what
// happened to those bytes since: they are not read again.
//
// It names its place by the number and the chain hash of a record, not by a
// file and an offset, since rotation renames files and erasure rewrites them.
// A Cursor is not changed once it is made.
type Cursor struct{ s cursorState }

// cursorState is a Cursor's content.
type cursorState struct {
	Version int       `json:"version"`
	At      time.Time `json:"verified_at"`
	Origin  string    `json:"origin"`
	First   uint64    `json:"first_seq"` // of the history that was there
	Size    uint64    `json:"records"`
	Chain   string    `json:"chain"`
	Roots   []string  `json:"range"`
	// The file that the last record lies in.
	Line      int    `json:"line"`
	FileFirst uint64 `json:"file_first_seq"`
	FileNote  string `json:"file_checkpoint,omitempty"`
	Segment   uint64 `json:"segment"`
	Numbered  bool   `json:"numbered"`
	Ended     bool   `json:"ended"`
	// What it was checked with.
	MAC       bool     `json:"mac_checked"`
	Strict    bool     `json:"strict"`
	Pinned    string   `json:"pinned_origin,omitempty"`
	PublicKey string   `json:"public_key,omitempty"` // as given
	Public    string   `json:"current_public_key,omitempty"`
	VKeys     []string `json:"vkeys,omitempty"`
	KeyID     string   `json:"key_id"`
	Epoch     uint64   `json:"epoch"`
	Named     []string `json:"named_key_ids,omitempty"`
	// What later records are compared with.
	Checkpointed    uint64          `json:"checkpointed"`
	SinceCheckpoint int64           `json:"since_checkpoint"`
	LastTime        int64           `json:"last_time"`
	Erasures        int             `json:"erasures"`
	Broken          bool            `json:"broken,omitempty"`
	PrevOrigin      string          `json:"prev_origin,omitempty"`
	PrevSize        uint64          `json:"prev_size,omitempty"`
	PrevRoot        string          `json:"prev_root,omitempty"`
	Open            []cursorIntent  `json:"open_intents,omitempty"`
	Retired         []cursorRetired `json:"retired,omitempty"`
	Heads           []cursorHead    `json:"tree_heads,omitempty"`
}

type cursorIntent struct {
	Seq       uint64 `json:"seq"`
	Operation []byte `json:"operation"`
	Label     string `json:"label"`
}

type cursorRetired struct {
	Segment uint64 `json:"segment"`
	First   uint64 `json:"first_seq"`
	Last    uint64 `json:"last_seq"`
	By      uint64 `json:"by"`
}

// cursorHead is a tree head that the log was found to agree with.
type cursorHead struct {
	Size  uint64 `json:"size"`
	Root  string `json:"root"`
	Until int64  `json:"until"`
}

// The bounds of a cursor: open operations beyond which none is made, retired
// segments and tree heads that it remembers, the newest of each, and bytes.
const (
	maxCursorOpen    = 100_000
	maxCursorRetired = 10_000
	maxCursorHeads   = 256
	maxCursorBytes   = 64 << 20
	cursorVersion    = 1
	cursorLabel      = "auditlog/v3/cursor\n"
)

// ErrCursor is returned, wrapped, for a cursor that was not made with the key.
var ErrCursor = errors.New("the cursor cannot be used")

// Origin is that of the log that the cursor was made of.
func (c *Cursor) Origin() string { return c.s.Origin }

// Records is the number of records that were verified.
func (c *Cursor) Records() uint64 { return c.s.Size }

// VerifiedAt is when they were.
func (c *Cursor) VerifiedAt() time.Time { return c.s.At }

// Encode writes the cursor with a MAC under a key of the verifier's own, at
// least 16 bytes, that who writes the log must not have.
func (c *Cursor) Encode(key []byte) ([]byte, error) {
	if len(key) < 16 {
		return nil, errors.New("auditlog: the key of a cursor has fewer than 16 bytes")
	}
	text, err := json.Marshal(&c.s)
	if err != nil {
		return nil, err
	}
	mac := cursorMAC(key, text)
	return append(append(append(text, '\n'), mac.String()...), '\n'), nil
}

func cursorMAC(key, text []byte) (h Hash) {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(cursorLabel))
	m.Write(text)
	m.Sum(h[:0])
	return h
}

// ParseCursor reads what Encode wrote. Nothing of it is looked at before its
// MAC was found right; an error is ErrCursor.
func ParseCursor(data, key []byte) (*Cursor, error) {
	if len(data) > maxCursorBytes {
		return nil, fmt.Errorf("%w: it is too large", ErrCursor)
	}
	text, rest, _ := bytes.Cut(data, []byte("\n"))
	mac, ok := parseHash(string(bytes.TrimSuffix(rest, []byte("\n"))))
	want := cursorMAC(key, text)
	if !ok || len(rest) != hashText+1 || !hmac.Equal(mac[:], want[:]) {
		return nil, fmt.Errorf("%w: it was changed, or made with another key", ErrCursor)
	}
	c := new(Cursor)
	if err := json.Unmarshal(text, &c.s); err != nil || c.s.Version != cursorVersion {
		return nil, fmt.Errorf("%w: it was made by another version", ErrCursor)
	}
	if _, _, _, err := c.hashes(); err != nil || c.s.Size == 0 {
		return nil, fmt.Errorf("%w: it is incomplete", ErrCursor)
	}
	return c, nil
}

// hashes are the cursor's chain, tree and, after a break, the root before it.
func (c *Cursor) hashes() (chain Hash, tree Range, prev Hash, err error) {
	bad := errors.New("a hash is malformed")
	var ok bool
	if chain, ok = parseHash(c.s.Chain); !ok {
		return chain, tree, prev, bad
	}
	if c.s.PrevRoot != "" {
		if prev, ok = parseHash(c.s.PrevRoot); !ok {
			return chain, tree, prev, bad
		}
	}
	roots := make([]Hash, len(c.s.Roots))
	for i, text := range c.s.Roots {
		if roots[i], ok = parseHash(text); !ok {
			return chain, tree, prev, bad
		}
	}
	tree, err = NewRange(c.s.Size, roots)
	return chain, tree, prev, err
}

// head is the tree head that the cursor stands for.
func (c *Cursor) head() TreeHead {
	_, tree, _, err := c.hashes()
	if err != nil {
		return TreeHead{Origin: c.s.Origin, Size: c.s.Size}
	}
	return TreeHead{Origin: c.s.Origin, Size: c.s.Size, Root: tree.Root()}
}

// knows reports whether the log was found to have a root at a size.
func (c *Cursor) knows(size uint64) (head cursorHead, root Hash, ok bool) {
	for _, h := range c.s.Heads {
		if h.Size == size {
			root, ok = parseHash(h.Root)
			return h, root, ok
		}
	}
	return head, root, false
}

// unfit says why a verification with some options cannot go on behind the
// cursor, or "".
func (c *Cursor) unfit(j *judge) string {
	s := &c.s
	switch {
	case j.opts.Strict && !s.Strict:
		return "it was made without --strict"
	case j.keys.available() && !s.MAC:
		return "it was made without checking MACs"
	case j.opts.PublicKey != s.PublicKey:
		return "it was made with another public key, or without one"
	case j.pin.origin != s.Pinned:
		return "it was made with another expected origin, or without one"
	}
	for _, a := range j.anchors {
		if !a.readable || a.head.Origin == s.Origin && a.head.Size >= s.Size {
			continue
		}
		if _, _, ok := c.knows(a.head.Size); ok && a.head.Origin == s.Origin {
			continue
		}
		if a.external || a.head.Origin == s.Origin && a.head.Size > s.First {
			return fmt.Sprintf("%s covers records before it, and was not compared with them yet", a.name)
		}
	}
	return ""
}

// cursor is what was found, or nil where nothing can go on behind it: after a
// fault, or where too many operations are open. It is called before finish.
func (j *judge) cursor() *Cursor {
	inc := j.inc
	if inc == nil || inc.origin == "" || j.next == 0 || !j.treeKnown || !j.chainKnown || j.tree.Size != j.next ||
		j.slack > 0 || len(j.holes.list) > 0 || len(j.pending) > 0 || len(j.open) > maxCursorOpen || j.tooMany > 0 || len(j.suspects) > 0 {
		return nil
	}
	f := &j.files[len(j.files)-1]
	if !f.sealed {
		return nil
	}
	s := cursorState{
		Version: cursorVersion, At: time.Unix(0, j.now).UTC(), Origin: inc.origin, First: inc.first, Size: j.next,
		Chain: j.chain.String(), Line: j.lineNo, FileFirst: f.first, FileNote: f.note, Segment: j.segment, Numbered: j.hasSegment, Ended: j.ended,
		MAC: j.macChecked, Strict: j.opts.Strict, Pinned: j.pin.origin, PublicKey: j.opts.PublicKey, VKeys: inc.vkeys,
		KeyID: j.keyID, Epoch: j.epoch, Checkpointed: inc.checkpointed, SinceCheckpoint: j.sinceCheckpoint,
		LastTime: j.lastTime, Erasures: j.erasures, Broken: inc.broken, PrevOrigin: inc.prevOrigin, PrevSize: inc.prevSize, Heads: j.heads,
	}
	if j.pin.public != nil {
		s.Public = b64.EncodeToString(j.pin.public)
	}
	if inc.prevRoot != (Hash{}) {
		s.PrevRoot = inc.prevRoot.String()
	}
	for _, root := range j.tree.Roots {
		s.Roots = append(s.Roots, root.String())
	}
	for kid := range j.named {
		s.Named = append(s.Named, kid)
	}
	for seq, in := range j.open {
		s.Open = append(s.Open, cursorIntent{seq, in.operation[:], string(in.label[:in.labelLen])})
	}
	for n, r := range j.retired {
		if len(s.Retired) < maxCursorRetired {
			s.Retired = append(s.Retired, cursorRetired{n, r.first, r.last, r.by})
		}
	}
	return &Cursor{s}
}

// restore goes on behind a cursor. The first source begins at the line behind
// it; skipped are those before.
func (j *judge) restore(c *Cursor, p cursorPlace, skipped []Source) error {
	s := &c.s
	chain, tree, prev, err := c.hashes()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCursor, err)
	}
	name, number, _ := splitOrigin(s.Origin)
	j.inc = &incarnation{
		origin: s.Origin, name: name, number: number, first: p.first, vkeys: s.VKeys, checkpointed: s.Checkpointed,
		broken: s.Broken, prevOrigin: s.PrevOrigin, prevSize: s.PrevSize, prevRoot: prev,
	}
	if len(s.VKeys) > 0 {
		j.report.VKey = s.VKeys[len(s.VKeys)-1]
	}
	if raw, err := b64.DecodeString(s.Public); err == nil && len(raw) == ed25519.PublicKeySize && j.pin.public != nil {
		j.pin.public = raw
	}
	j.resumed, j.base, j.lineNo = true, p.base, s.Line
	j.next, j.chain, j.chainKnown, j.tree, j.treeKnown = s.Size, chain, true, tree, true
	j.segment, j.hasSegment, j.ended = s.Segment, s.Numbered, s.Ended
	j.keyID, j.epoch, j.macChecked = s.KeyID, s.Epoch, s.MAC
	j.sinceCheckpoint, j.lastTime, j.hasTime, j.erasures, j.heads = s.SinceCheckpoint, s.LastTime, true, s.Erasures, s.Heads
	j.restarts = append(j.restarts, restart{file: 0, next: s.Size})
	for _, kid := range s.Named {
		j.named[kid] = true
	}
	for _, in := range s.Open {
		p := pairedIntent{at: place{seq: in.Seq, sealed: true}}
		copy(p.operation[:], in.Operation)
		p.labelLen = uint8(copy(p.label[:], in.Label))
		j.open[in.Seq] = p
	}
	for _, r := range s.Retired {
		j.retired[r.Segment] = retired{r.First, r.Last, r.By}
	}
	f := &j.files[0]
	f.sealed, f.first, f.last, f.origin, f.note = true, s.FileFirst, s.Size-1, s.Origin, s.FileNote
	f.segment, f.numbered = s.Segment, s.Numbered
	for _, source := range skipped {
		j.skipped = append(j.skipped, newFileFacts(source.Name).base)
	}
	j.report.Resumed = &Resumption{Records: s.Size, VerifiedAt: s.At}
	if p.first > 0 {
		j.findAt(place{}, "partial_history", "the log begins at record %d: what was before is not among the files", p.first)
	}
	for _, a := range j.anchors {
		if !a.readable || a.head.Origin != s.Origin || a.head.Size >= s.Size {
			continue
		}
		if head, root, ok := c.knows(a.head.Size); ok && j.checkAnchor(a, j.inc) {
			j.compareAnchor(a, root)
			a.until = head.Until
		}
	}
	j.startAnchors()
	return nil
}

// agreed notes a tree head that the log was found to agree with.
func (j *judge) agreed(size uint64, root Hash) {
	for i := len(j.heads) - 1; i >= 0; i-- {
		if j.heads[i].Size == size {
			return
		}
	}
	if len(j.heads) >= 2*maxCursorHeads {
		j.heads = append(j.heads[:0], j.heads[len(j.heads)-maxCursorHeads:]...)
	}
	j.heads = append(j.heads, cursorHead{size, root.String(), j.lastTime})
}

// holdCursor has a cursor that cannot be gone on from compared as an anchor is:
// the log must still have the records that it stands for.
func (j *judge) holdCursor(c *Cursor, name string) {
	j.anchors = append(j.anchors, &heldAnchor{name: name, head: c.head(), readable: true, valid: true, cursor: true})
}
