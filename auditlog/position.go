package auditlog

import (
	"bytes"
	"crypto/hmac"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// position is a place between two records of a log and all that is needed to
// continue there.
type position struct {
	origin  string
	segment uint64
	fileID  uint64
	offset  int64
	next    uint64 // seq of the next record = number of records
	chain   Hash
	tree    Range
	keyID   string
	vkey    string // of the last key rotation; "" if there was none
	epoch   uint64
	key     []byte                // K_e, if keys evolve
	blind   []byte                // BK, if keys evolve
	open    map[uint64]openIntent // by seq

	// Of the file: the seq and the time of its first record, whether it has
	// anything worth closing it for, and whether segment_end closed it.
	first uint64
	began time.Time
	used  bool
	ended bool

	// Records since the last checkpoint that are no checkpoints, and the size
	// that checkpoint states.
	unchecked    uint64
	checkpointed uint64
	note         []byte // that checkpoint, if it was seen
}

// openIntent is an intent without an outcome, of any run.
type openIntent struct {
	seq       uint64
	segment   uint64
	pos       int64 // of its line in the segment
	length    int   // of the line without its LF
	run       string
	operation string
	leaf      Hash
}

// start is the position before the first record of an origin.
func startPosition(origin, keyID string, segment uint64) position {
	return position{origin: origin, keyID: keyID, segment: segment, chain: GenesisChain(origin), open: map[uint64]openIntent{}}
}

// sealer holds the MAC key of the current key id and epoch. It is not safe for
// concurrent use.
type sealer struct {
	keyID string
	epoch uint64
	key   []byte // K_e
	mac   *macer

	// find returns K_0 of the key that a rotation goes over to. nil: none is
	// at hand.
	find func(keyID string) ([]byte, error)
}

// maxEpoch bounds the derivations that a planted state can ask for.
const maxEpoch = 1 << 24

func newSealer(k0 []byte, origin, keyID string, epoch uint64) (*sealer, error) {
	if epoch > maxEpoch {
		return nil, fmt.Errorf("epoch %d is beyond any that can occur", epoch)
	}
	key := k0
	for e := uint64(1); e <= epoch; e++ {
		key = evolveKey(key, origin, e)
	}
	return &sealer{keyID: keyID, epoch: epoch, key: key, mac: newMacer(macKey(key))}, nil
}

// clone copies a sealer, so that one may go on without the other.
func (s *sealer) clone() *sealer {
	return &sealer{keyID: s.keyID, epoch: s.epoch, key: s.key, mac: newMacer(macKey(s.key)), find: s.find}
}

// rekey goes over to the key of another id, at epoch 0.
func (s *sealer) rekey(keyID string) error {
	if s.find == nil {
		return fmt.Errorf("the MAC key %q is not at hand", keyID)
	}
	key, err := s.find(keyID)
	if err != nil {
		return err
	}
	s.keyID, s.epoch, s.key, s.mac = keyID, 0, key, newMacer(macKey(key))
	return nil
}

// evolve goes on to the next epoch.
func (s *sealer) evolve(origin string) {
	s.epoch++
	s.key = evolveKey(s.key, origin, s.epoch)
	s.mac = newMacer(macKey(s.key))
}

func (s *sealer) checks(l *Line) bool {
	m := s.mac.mac(l.Seal.Chain)
	return hmac.Equal(m[:], l.Seal.MAC[:])
}

// lineError says why a line does not continue a position; Finding is the
// verifier's name for it.
type lineError struct{ finding, why string }

func (e *lineError) Error() string { return e.why }

// check verifies that a line continues the position: its place, its own bytes,
// the chain and the MAC.
func (p *position) check(l *Line, fault LineFault, s *sealer) error {
	switch {
	case fault != LineOK:
		return &lineError{string(fault), "a line is no sealed record"}
	case p.ended:
		return &lineError{"segment_boundary", fmt.Sprintf("record %d follows segment_end in one file", l.Seal.Seq)}
	case l.Seal.Seq != p.next:
		return &lineError{"seq_gap", fmt.Sprintf("a record has seq %d in place of %d", l.Seal.Seq, p.next)}
	case l.Seal.Leaf != l.LeafHash() && !l.Erased():
		return &lineError{"content_modified", fmt.Sprintf("record %d was changed", p.next)}
	case l.Seal.Chain != ChainHash(p.chain, p.next, l.Seal.Leaf):
		return &lineError{"chain_broken", fmt.Sprintf("record %d does not continue the chain", p.next)}
	case l.Seal.KeyID != s.keyID:
		return &lineError{"unknown_key", fmt.Sprintf("record %d is sealed with key id %s, not %s", p.next, l.Seal.KeyID, s.keyID)}
	case l.Seal.Epoch != s.epoch:
		return &lineError{"epoch_violation", fmt.Sprintf("record %d is of epoch %d, not %d", p.next, l.Seal.Epoch, s.epoch)}
	case !s.checks(l):
		return &lineError{"mac_invalid", fmt.Sprintf("the MAC of record %d is not made with this log's key", p.next)}
	}
	return nil
}

// folded is what a record changed beyond the chain.
type folded struct {
	kind   string
	intent openIntent // kind intent
	keyID  string     // kind key_rotation: the new one
}

// fold takes a checked line of the given length at the position's offset.
func (p *position) fold(l *Line, length int, s *sealer) (f folded) {
	var run, operation, vkey string
	var intentSeq uint64
	var signed, at []byte
	bodyMembers(l.Prefix, func(name string, value []byte) bool {
		switch name {
		case "audit_operation_id":
			operation = textValue(value)
		case "intent_seq":
			intentSeq, _ = numberValue(value)
		case "kind":
			f.kind = textValue(value)
		case "note":
			signed, _ = canon.Unquote(nil, value)
		case "new_key_id":
			f.keyID = textValue(value)
		case "new_vkey":
			vkey = textValue(value)
		case "run":
			run = textValue(value)
		case "timestamp":
			at = value
		}
		return true
	})
	if p.offset == 0 {
		p.startFile(at)
	}
	switch f.kind {
	case kindIntent:
		f.intent = openIntent{p.next, p.segment, p.offset, length, run, operation, l.Seal.Leaf}
		p.open[p.next] = f.intent
	case kindOutcome, kindErasure:
		// An erased outcome does not name its intent any more; its erasure does.
		delete(p.open, intentSeq)
	case kindCheckpoint:
		p.note = signed
	case kindEpochEnd:
		p.epoch++
		s.evolve(p.origin)
		if p.key != nil {
			p.key = s.key
		}
	case kindRotation:
		p.keyID, p.vkey, p.epoch = f.keyID, vkey, 0
	case kindSegmentEnd:
		p.ended = true
	}
	p.used = p.used || f.kind != kindSegment && f.kind != kindCheckpoint && f.kind != kindHeartbeat && f.kind != kindEpochEnd
	p.advance(l.Seal.Leaf, l.Seal.Chain, length+1, f.kind == kindCheckpoint)
	return f
}

// startFile notes what is remembered of a file's first record, which is the
// next one.
func (p *position) startFile(timestamp []byte) {
	p.first = p.next
	if ns, ok := parseTimestamp(timestamp); ok {
		p.began = time.Unix(0, ns).UTC()
	}
}

// advance moves the position behind one record of size bytes.
func (p *position) advance(leaf, chain Hash, size int, checkpoint bool) {
	if checkpoint {
		p.unchecked, p.checkpointed = 0, p.next
	} else {
		p.unchecked++
	}
	p.tree.Append(leaf)
	p.chain = chain
	p.next++
	p.offset += int64(size)
}

// clone copies a position, open intents included.
func (p *position) clone() position {
	c := *p
	c.tree = p.tree.Clone()
	c.open = make(map[uint64]openIntent, len(p.open))
	for seq, o := range p.open {
		c.open[seq] = o
	}
	return c
}

// errOpenIntent says that the line of an open intent is not what was recorded.
var errOpenIntent = errors.New("the record of an open intent was changed")

// unknownOutcome builds the outcome of an intent whose process ended first, or
// that nobody waits for any more. It inherits the identifying members from the
// intent's line, byte for byte.
func unknownOutcome(o openIntent, line []byte, run string, result Result, reason string, s stamp) (draft, error) {
	l, fault := SplitLine(line)
	if fault != LineOK || l.Seal.Seq != o.seq || l.Seal.Leaf != o.leaf || l.LeafHash() != o.leaf {
		return draft{}, errOpenIntent
	}
	members := []member{
		textMember("outcome", string(result)), textMember("reason", reason),
		numberMember("intent_seq", o.seq), textMember("run", run),
	}
	var open []byte
	bodyMembers(l.Prefix, func(name string, value []byte) bool {
		switch name {
		case "audit_operation_id", "client_id", "direction", "mcp_name", "method", "policy", "principal",
			"protocol_version", "request_id", "request_id_type", "server_id", "session", "tool_name", "transport":
			if !isCommitment(value) {
				members = append(members, member{name, bytes.Clone(value)})
				return true
			}
			// Without its opening, the value was erased, or is known to nobody.
			if value := opened(&l, name); value != nil {
				commit := committedMember(name, value)
				open = append(open, commit.opening...)
				members = append(members, commit.member)
			}
		}
		return true
	})
	d := record(kindOutcome, s, members...)
	d.open = closeOpenings(open)
	return d, nil
}
