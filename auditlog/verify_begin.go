package auditlog

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// pinned is what the caller expects of a log.
type pinned struct {
	origin string // as given, "" if not
	name   string // without its incarnation
	public ed25519.PublicKey
}

func newPinned(o *VerifyOptions) (p pinned, err error) {
	p.origin = o.Origin
	if o.PublicKey != "" {
		name, key, err := ParseVKey(o.PublicKey)
		if err != nil {
			return p, err
		}
		p.public = key
		if p.origin == "" {
			p.origin = name
		}
	}
	p.name, _, _ = splitOrigin(p.origin)
	return p, nil
}

// ParseVKey takes a verifier key apart: the key name, which is an origin, and
// the Ed25519 key.
func ParseVKey(vkey string) (name string, key ed25519.PublicKey, err error) {
	bad := func(why string) (string, ed25519.PublicKey, error) {
		return "", nil, fmt.Errorf("the public key %q is not a verifier key (%s); it has the form NAME+HASH+KEY, as `mcp-audit pubkey` prints it", vkey, why)
	}
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return bad("malformed")
	}
	parts := strings.SplitN(vkey, "+", 3)
	raw, err := base64.StdEncoding.Strict().DecodeString(parts[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != 1 {
		return bad("not Ed25519")
	}
	return verifier.Name(), ed25519.PublicKey(raw[1:]), nil
}

// bodyView reads single members of a body whose bytes were compared with
// their leaf.
type bodyView struct{ prefix []byte }

func (b bodyView) raw(name string) []byte {
	m := memberWalk{b: b.prefix}
	for m.next() {
		if string(b.prefix[m.name[0]:m.name[1]]) == name {
			return b.prefix[m.value[0]:m.value[1]]
		}
	}
	return nil
}

func (b bodyView) text(name string) string { return textValue(b.raw(name)) }

func (b bodyView) number(name string) (uint64, bool) { return decimal(b.raw(name)) }

func (b bodyView) hash(name string) (h Hash, ok bool) {
	v := b.raw(name)
	if len(v) != hashText+2 || v[0] != '"' {
		return h, false
	}
	return h, decodeHash(&h, v[1:len(v)-1])
}

// firstRecord is called for the record on line 1 of a file, and for the first
// record of all.
func (j *judge) firstRecord(line []byte, s *scanned) {
	kind := s.facts.kind
	if j.inc == nil {
		switch {
		case j.lineNo == 1 && (kind == codeGenesis || kind == codeChainBreak):
			j.begin(line, s)
		case j.lineNo == 1 && kind == codeSegmentStart:
			j.resume(line, s)
		default:
			j.find("genesis_missing", "the log does not begin with genesis, chain_break or segment_start")
			j.unknownBeginning()
		}
		return
	}
	switch {
	case kind == codeChainBreak && (bodyView{line[:s.prefix]}).text("origin") != j.inc.origin:
		j.begin(line, s)
	case !kind.opensFile():
		j.find("segment_boundary", "the first record of a file is neither genesis nor chain_break nor segment_start")
	}
}

// unknownBeginning starts a log whose beginning is missing or damaged.
func (j *judge) unknownBeginning() {
	j.inc = &incarnation{origin: j.pin.origin, name: j.pin.name}
	j.next, j.chainKnown, j.treeKnown = 0, false, true
	j.restarts = append(j.restarts, restart{file: j.file})
}

// begin starts an incarnation with its genesis or chain_break.
func (j *judge) begin(line []byte, s *scanned) {
	b := bodyView{line[:s.prefix]}
	before := j.inc
	// Where the records before end, if nothing is wrong with them.
	end, whole := j.chain, before != nil && j.chainKnown && j.report.FirstError == ""
	if before != nil {
		j.closeIncarnation()
	}
	inc := &incarnation{origin: b.text("origin"), broken: s.facts.kind == codeChainBreak}
	var numbered bool
	inc.name, inc.number, numbered = splitOrigin(inc.origin)
	j.inc, j.began = inc, true
	j.next, j.chain, j.chainKnown = 0, GenesisChain(inc.origin), s.leafOK
	j.tree, j.treeKnown = Range{}, true
	j.keyID, j.epoch, j.slack, j.seal = "", 0, 0, nil
	j.holes, j.lastFolded = spans{}, false
	j.hasSegment, j.sinceCheckpoint, j.overdue = false, 0, false
	j.heads = nil
	j.restarts = append(j.restarts, restart{file: j.file})
	if !s.leafOK {
		j.slack = 1
		inc.origin, inc.name = j.pin.origin, j.pin.name
		return
	}
	j.segment, j.hasSegment = b.number("segment")
	if kid := b.text("key_id"); ValidKeyID(kid) {
		j.keyID = kid
		j.named[kid] = true
	}
	switch {
	case j.pin.name != "" && inc.name != j.pin.name:
		j.find("foreign_log", "it is the log %q, not %q", inc.origin, j.pin.origin)
	case before != nil && before.name != "" && inc.name != before.name:
		j.find("foreign_log", "it is the log %q, but the files before are of %q", inc.origin, before.origin)
	case before != nil && inc.number != before.number+1 || !inc.broken && numbered && inc.number != 0:
		j.find("foreign_log", "the incarnation %q does not follow", inc.origin)
	}
	j.trust(b.text("vkey"), "the log names no valid public key")
	if inc.broken {
		j.chainBreak(b, before)
		if found, ok := b.hash("found_chain"); ok && whole && found != end {
			j.find("segment_boundary", "the break found other records before it than there are now: some were removed or added since")
		}
	}
	j.startAnchors()
}

// trust takes a public key that the log names for its checkpoints. A pinned
// key stands above what the log says.
func (j *judge) trust(vkey, complaint string) {
	if j.pin.public != nil {
		var err error
		if vkey, err = VKey(j.inc.origin, j.pin.public); err != nil {
			return
		}
	} else if name, _, err := ParseVKey(vkey); err != nil || name != j.inc.origin {
		j.find("checkpoint_sig_invalid", "%s", complaint)
		return
	}
	j.inc.vkeys = append(j.inc.vkeys, vkey)
	j.report.VKey = vkey
}

// chainBreak warns of a break and compares it with the incarnation before.
func (j *judge) chainBreak(b bodyView, before *incarnation) {
	inc := j.inc
	inc.prevOrigin = b.text("prev_origin")
	inc.prevSize, _ = b.number("prev_size")
	inc.prevRoot, _ = b.hash("prev_root")
	lost := "no record is known to be lost"
	l := bodyView{trimObject(b.raw("lost"))}
	if from, ok := l.number("from"); ok {
		if to, ok := l.number("to"); ok {
			lost = fmt.Sprintf("records %d to %d of it are lost", from, to)
		}
	}
	j.find("chain_break", "a new chain was begun after %s with %d records (%s); operator %q, reason %q",
		orUnknown(inc.prevOrigin), inc.prevSize, lost, b.text("operator"), b.text("reason"))
	if before == nil {
		return
	}
	if inc.prevOrigin != before.origin {
		j.find("foreign_log", "the chain break follows %s, but the files before are of %s", orUnknown(inc.prevOrigin), orUnknown(before.origin))
	}
}

func orUnknown(origin string) string {
	if origin == "" {
		return "an unknown log"
	}
	return origin
}

// trimObject returns an object's text without its closing brace.
func trimObject(value []byte) []byte {
	if len(value) < 2 || value[0] != '{' {
		return nil
	}
	return value[:len(value)-1]
}

// resume starts in the middle of a log, at a segment_start.
func (j *judge) resume(line []byte, s *scanned) {
	b := bodyView{line[:s.prefix]}
	inc := &incarnation{origin: b.text("origin")}
	inc.name, inc.number, _ = splitOrigin(inc.origin)
	j.inc, j.began = inc, true
	j.restarts = append(j.restarts, restart{file: j.file, next: s.seal.Seq})
	j.next, inc.first = s.seal.Seq, s.seal.Seq
	if !s.leafOK {
		inc.origin, inc.name = j.pin.origin, j.pin.name
		return
	}
	if j.opts.LeftOut > 0 {
		j.find("partial_history", "the log is checked from record %d on, as was asked: older files, %d of them, were not read", s.seal.Seq, j.opts.LeftOut)
	} else {
		j.find("partial_history", "the log begins at record %d: what was before is not among the files", s.seal.Seq)
	}
	if j.pin.name != "" && inc.name != j.pin.name {
		j.find("foreign_log", "it is the log %q, not %q", inc.origin, j.pin.origin)
	}
	j.segment, j.hasSegment = b.number("segment")
	if size, ok := b.number("size"); !ok || size != s.seal.Seq {
		j.find("segment_boundary", "segment_start does not state its own number of records before it")
	}
	chain, ok := b.hash("prev_chain")
	j.chain, j.chainKnown = chain, ok
	if tree, err := rangeMember(b.raw("range"), s.seal.Seq); err != nil {
		j.find("segment_boundary", "segment_start: %v", err)
	} else {
		j.tree, j.treeKnown = tree, true
	}
	j.trustPartial(s.seal.KeyID, b.text("vkey"))
	j.startAnchors()
}

// trustPartial finds the key for checkpoints where no genesis names one: the
// pinned one, else that of the keyring, else the one that segment_start names.
func (j *judge) trustPartial(kid, vkey string) {
	if j.pin.public != nil {
		j.trust("", "")
		return
	}
	defer func() {
		if len(j.inc.vkeys) == 0 && vkey != "" {
			j.trust(vkey, "segment_start names no valid public key")
		}
	}()
	if j.opts.Keys == nil {
		return
	}
	for _, key := range j.opts.Keys.PublicKeys() {
		if key.KeyID == kid {
			if vkey, err := VKey(j.inc.origin, key.Key); err == nil {
				j.trust(vkey, "the keyring's public key is not valid")
			}
		}
	}
}

// rangeMember reads the subtree roots of a segment_start.
func rangeMember(value []byte, size uint64) (Range, error) {
	bad := errors.New("its range is malformed")
	if len(value) < 2 || value[0] != '[' || value[len(value)-1] != ']' {
		return Range{}, bad
	}
	var roots []Hash
	for rest := value[1 : len(value)-1]; len(rest) > 0; {
		if len(rest) < hashText+2 || rest[0] != '"' || rest[hashText+1] != '"' || len(roots) == 63 {
			return Range{}, bad
		}
		var h Hash
		if !decodeHash(&h, rest[1:1+hashText]) {
			return Range{}, bad
		}
		roots = append(roots, h)
		if rest = rest[hashText+2:]; len(rest) > 0 {
			if rest[0] != ',' || len(rest) == 1 {
				return Range{}, bad
			}
			rest = rest[1:]
		}
	}
	return NewRange(size, roots)
}
