package auditlog

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// maxLineDepth is the nesting that a record's body, or its openings, may have.
const maxLineDepth = 72

// lineWorker does the work on a line that needs no other line, or only the one
// before it. It is not safe for concurrent use.
type lineWorker struct {
	cfg  *scanConfig
	kids interner
	mac  cachedMacer
	sha  hash.Hash
	body []byte // scratch, as the next two
	sum  [HashSize]byte
	flaw openingFaults
}

func newLineWorker(cfg *scanConfig) *lineWorker {
	return &lineWorker{cfg: cfg, sha: sha256.New()}
}

// chunk takes all lines of a chunk apart.
func (w *lineWorker) chunk(c *chunk) {
	for at := 1; at < c.n; {
		end := at + bytes.IndexByte(c.buf[at:c.n], '\n')
		c.lines = append(c.lines, scanned{start: at, end: end})
		s := &c.lines[len(c.lines)-1]
		w.line(c, s)
		if len(c.lines) > 1 && w.cfg.crypto {
			w.link(&c.lines[len(c.lines)-2], s)
		}
		at = end + 1
	}
}

// link checks that a line continues the chain of the one before it.
func (w *lineWorker) link(before, s *scanned) {
	if before.sealed() && s.sealed() {
		s.chained = true
		s.chainOK = s.seal.Chain == ChainHash(before.seal.Chain, s.seal.Seq, s.seal.Leaf)
	}
}

func (w *lineWorker) line(c *chunk, s *scanned) {
	line := c.buf[s.start:s.end]
	if len(line) > w.cfg.maxLine {
		s.fault = lineOversized
		return
	}
	splitFast(line, s, &w.kids)
	if !s.sealed() {
		return
	}
	s.facts.read(line[:s.prefix])
	if !w.cfg.crypto {
		return
	}
	w.seal(c, s, line)
	if w.cfg.strict || !s.leafOK || !s.facts.kind.payloadKind() {
		w.form(line, s)
	}
	if s.facts.commits > 0 || s.open[1] > 0 {
		w.checkOpenings(line, s)
	}
}

// seal checks a line's leaf and MAC.
func (w *lineWorker) seal(c *chunk, s *scanned, line []byte) {
	// The byte before the line and the one behind the body's last member are
	// lent to the hash, so that it reads one piece: 0x00 ‖ body.
	before, behind := c.buf[s.start-1], line[s.prefix]
	c.buf[s.start-1], line[s.prefix] = 0x00, '}'
	leaf := Hash(sha256.Sum256(c.buf[s.start-1 : s.start+s.prefix+1]))
	c.buf[s.start-1], line[s.prefix] = before, behind
	s.leafOK = leaf == s.seal.Leaf
	if m := w.mac.get(w.cfg.keys, c.origin, s.seal.KeyID, s.seal.Epoch); m != nil {
		mac := m.mac(s.seal.Chain)
		s.macDone, s.macOK = true, hmac.Equal(mac[:], s.seal.MAC[:])
	}
}

// form checks the exact form of a body.
func (w *lineWorker) form(line []byte, s *scanned) {
	behind := line[s.prefix]
	line[s.prefix] = '}'
	body := line[:s.prefix+1]
	s.canonical = no
	if canon.IsCanonical(body, maxLineDepth) {
		s.canonical = yes
	}
	s.erased = string(body) == erasedBody
	line[s.prefix] = behind
}

// erasedBody is the body of a record that was erased as a whole.
const erasedBody = `{"erased":true}`

// Erased reports whether the record was erased as a whole: its seal stands, and
// its leaf cannot be computed any more.
func (l *Line) Erased() bool { return string(l.Prefix) == erasedBody[:len(erasedBody)-1] }

// openingFaults is what is wrong with a line's openings.
type openingFaults struct {
	malformed bool     // not the exact form of an object of [salt,value] pairs
	mismatch  []string // names whose value is not what was committed
	unbound   []string // names without a commitment
	missing   []string // commitments without an opening
}

// checkOpenings compares the openings of a line with the commitments in its
// body. Nothing is allocated if they agree.
func (w *lineWorker) checkOpenings(line []byte, s *scanned) {
	if s.fault == LineExtraMember {
		return
	}
	faults := &w.flaw
	*faults = openingFaults{}
	open := line[s.open[0]:s.open[1]]
	if len(open) > 0 && (len(open) == 2 || !canon.IsCanonical(open, maxLineDepth)) {
		faults.malformed = true
	}
	prefix := line[:s.prefix]
	opened := 0
	if len(open) > 0 {
		m := memberWalk{b: open[:len(open)-1]}
		for m.next() {
			name := open[m.name[0]:m.name[1]]
			commit := commitmentOf(prefix, name)
			switch {
			case commit == nil:
				faults.unbound = append(faults.unbound, string(name))
			case !w.opens(commit, name, open[m.value[0]:m.value[1]]):
				faults.mismatch = append(faults.mismatch, string(name))
				opened++
			default:
				opened++
			}
		}
		faults.malformed = faults.malformed || m.broken
	}
	if opened < s.facts.commits {
		m := memberWalk{b: prefix}
		for m.next() {
			name := prefix[m.name[0]:m.name[1]]
			if isCommitment(prefix[m.value[0]:m.value[1]]) && !hasMember(open, name) {
				faults.missing = append(faults.missing, string(name))
			}
		}
	}
	if faults.malformed || faults.mismatch != nil || faults.unbound != nil || faults.missing != nil {
		found := *faults
		s.openings = &found
	}
}

// commitmentOf returns the 43 characters that stand for a member of a body,
// or nil.
func commitmentOf(prefix, name []byte) []byte {
	m := memberWalk{b: prefix}
	for m.next() {
		if bytes.Equal(prefix[m.name[0]:m.name[1]], name) {
			if value := prefix[m.value[0]:m.value[1]]; isCommitment(value) {
				return value[len(commitStart) : len(commitStart)+hashText]
			}
			return nil
		}
	}
	return nil
}

func hasMember(object, name []byte) bool {
	if len(object) == 0 {
		return false
	}
	m := memberWalk{b: object[:len(object)-1]}
	for m.next() {
		if bytes.Equal(object[m.name[0]:m.name[1]], name) {
			return true
		}
	}
	return false
}

// saltText is the number of characters of a salt.
const saltText = 22

// opens reports whether a pair ["<salt>",value] opens a commitment.
func (w *lineWorker) opens(commit, name, pair []byte) bool {
	const head = len(`["`) + saltText + len(`",`)
	if len(pair) <= head+1 || string(pair[:2]) != `["` || string(pair[head-2:head]) != `",` || pair[len(pair)-1] != ']' {
		return false
	}
	var want Hash
	var salt [16]byte
	var raw [18]byte
	n, err := b64.Decode(raw[:], pair[2:2+saltText])
	if err != nil || n != len(salt) || !decodeHash(&want, commit) {
		return false
	}
	copy(salt[:], raw[:])
	w.sha.Reset()
	w.body = append(w.body[:0], "auditlog/v3/open\n"...)
	w.body = binary.BigEndian.AppendUint64(w.body, uint64(len(name)))
	w.body = append(w.body, name...)
	w.body = append(w.body, salt[:]...)
	w.sha.Write(w.body)
	w.sha.Write(pair[head : len(pair)-1])
	w.sha.Sum(w.sum[:0])
	return w.sum == want
}
