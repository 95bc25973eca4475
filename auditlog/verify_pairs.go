package auditlog

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// pairedIntent is an intent that waits for its outcome. It stays below the 128
// bytes up to which a map keeps values without allocating each.
type pairedIntent struct {
	operation [16]byte
	at        place
	label     [64]byte // which call it is
	labelLen  uint8
}

// operationKey packs an operation id: the 16 bytes of a UUID, or a hash of
// anything else.
func operationKey(value []byte) (key [16]byte) {
	const dashed = len(`"00000000-0000-0000-0000-000000000000"`)
	if len(value) == dashed && value[9] == '-' && value[14] == '-' && value[19] == '-' && value[24] == '-' {
		var digits [32]byte
		n := copy(digits[:], value[1:9])
		n += copy(digits[n:], value[10:14])
		n += copy(digits[n:], value[15:19])
		n += copy(digits[n:], value[20:24])
		copy(digits[n:], value[25:37])
		lower := true
		for _, c := range digits {
			lower = lower && (c < 'A' || c > 'F')
		}
		if _, err := hex.Decode(key[:], digits[:]); err == nil && lower {
			return key
		}
	}
	h := sha256.Sum256(value)
	copy(key[:], h[:])
	return key
}

func (j *judge) intent(line []byte, s *scanned) {
	in := pairedIntent{operation: operationKey(line[s.facts.operation[0]:s.facts.operation[1]]), at: j.at}
	var buf [256]byte
	in.labelLen = uint8(copy(in.label[:], operationName(buf[:0], line, &s.facts)))
	j.open[s.seal.Seq] = in
}

func (j *judge) outcome(line []byte, s *scanned) {
	operation := line[s.facts.operation[0]:s.facts.operation[1]]
	if !s.facts.hasSeqOf {
		j.find("outcome_orphan", "the outcome does not say which intent it closes")
		return
	}
	in, ok := j.open[s.facts.seqOf]
	switch {
	case ok && in.operation == operationKey(operation):
		delete(j.open, s.facts.seqOf)
	case s.facts.seqOf < j.inc.first || j.holes.has(s.facts.seqOf):
		// The intent is not among the files, or lost, which was reported.
	default:
		j.find("outcome_orphan", "no open intent %d of operation %s", s.facts.seqOf, clip(operation))
		return
	}
	if s.facts.unknown {
		j.report.UnknownOutcomes++
		j.find("outcome_unknown", "%s (operation %s, intent %d): the process ended before the answer was recorded",
			printable(operationName(nil, line, &s.facts)), clip(operation), s.facts.seqOf)
	}
}

// spans is a set of ranges of sequence numbers that grow. If there are too
// many, it has everything, so that doubt never makes a finding.
type spans struct {
	list []span
	all  bool
}

type span struct{ from, to uint64 } // to is not in it

const maxSpans = 1 << 16

func (s *spans) add(from, to uint64) {
	if n := len(s.list); n > 0 && s.list[n-1].to == from {
		s.list[n-1].to = to
		return
	}
	if len(s.list) == maxSpans {
		s.all = true
		return
	}
	s.list = append(s.list, span{from, to})
}

func (s *spans) has(seq uint64) bool {
	if s.all {
		return true
	}
	i, found := slices.BinarySearchFunc(s.list, seq, func(e span, seq uint64) int {
		switch {
		case e.to <= seq:
			return -1
		case e.from > seq:
			return 1
		}
		return 0
	})
	return found && i < len(s.list)
}

// wholeRecord is the field of an erasure that covers a record as a whole.
const wholeRecord = "*"

// missing is a value that is not there, and must be covered by an erasure.
type missing struct {
	name string
	at   place
}

// openingFaults notes what is wrong with a record's openings.
func (j *judge) openingFaults(s *scanned) {
	if s.openings.malformed {
		j.find("not_canonical", "its openings are not in canonical form")
	}
	for _, name := range s.openings.mismatch {
		j.find("opening_mismatch", "the value of %q is not the one that was committed to", name)
	}
	for _, name := range s.openings.unbound {
		j.find("opening_unbound", "there is a value of %q, but no commitment to one", name)
	}
	for _, name := range s.openings.missing {
		j.pending[s.seal.Seq] = append(j.pending[s.seal.Seq], missing{name, j.at})
	}
}

// closeIncarnation ends what can only be judged when no record follows.
func (j *judge) closeIncarnation() {
	inc := j.inc
	if inc == nil {
		return
	}
	inc.size = j.next
	seqs := make([]uint64, 0, len(j.open))
	for seq := range j.open {
		seqs = append(seqs, seq)
	}
	slices.Sort(seqs)
	for _, seq := range seqs {
		in := j.open[seq]
		j.findAt(in.at, "outcome_missing", "%s has no outcome: it is going on, or its process died and no other has opened the log since",
			printable(in.label[:in.labelLen]))
	}
	j.report.OpenIntents += len(j.open)
	clear(j.open)
	for _, list := range j.pending {
		for _, m := range list {
			if m.name == wholeRecord {
				j.findAt(m.at, "content_modified", "the record was erased, but no erasure record says so")
			} else {
				j.findAt(m.at, "opening_missing", "the value of %q is missing, and no erasure record says why", m.name)
			}
			j.report.Verified--
			j.report.Invalid++
		}
	}
	clear(j.pending)
	j.past = append(j.past, inc)
	j.inc = nil
}
