package auditlog

import "context"

// suspect is a record whose place is taken or behind the log's end at that
// point. What it is, a second reading of the log tells.
type suspect struct {
	at    place
	inc   int // which incarnation it stands in
	leaf  Hash
	first bool // a genesis or chain_break
}

// restart is a file that began an incarnation, or the history that is there.
type restart struct {
	file int
	next uint64
}

// maxSuspects bounds the memory for them; those beyond are not told apart.
const maxSuspects = 1 << 17

func (j *judge) suspect(s *scanned) {
	if !s.leafOK && !s.erased {
		j.find("content_modified", "the record's bytes are not those that were sealed")
	}
	j.bad = true
	if len(j.suspects) == maxSuspects {
		j.tooMany++
		j.find("seq_regression", "record %d stands behind later ones", s.seal.Seq)
		return
	}
	j.suspects = append(j.suspects, suspect{
		at: j.at, inc: len(j.restarts), leaf: s.seal.Leaf,
		first: s.facts.kind == codeGenesis || s.facts.kind == codeChainBreak,
	})
}

// settleSuspects reads the log again to tell whether an accepted record has a
// suspect's place, and whether it is the same one.
func (j *judge) settleSuspects(ctx context.Context, sources []Source) error {
	if len(j.suspects) == 0 {
		return nil
	}
	again := &secondReading{restarts: j.restarts, want: make(map[secondKey]Hash, len(j.suspects)), got: map[secondKey]bool{}}
	for _, s := range j.suspects {
		again.want[secondKey{s.inc, s.at.seq}] = Hash{}
	}
	if err := scanSources(ctx, sources, &scanConfig{jobs: 1, maxLine: j.opts.MaxLine}, again); err != nil {
		return err
	}
	for _, s := range j.suspects {
		key := secondKey{s.inc, s.at.seq}
		accepted, ok := again.want[key], again.got[key]
		switch {
		case ok && accepted == s.leaf:
			j.findAt(s.at, "duplicate_record", "record %d is in the log already", s.at.seq)
			continue
		case ok:
			j.findAt(s.at, "fork", "another record %d is in the log already", s.at.seq)
		default:
			j.findAt(s.at, "seq_regression", "record %d stands behind later ones", s.at.seq)
		}
		if s.first {
			j.findAt(s.at, "second_genesis", "a second beginning stands in the middle of the log")
		}
	}
	return nil
}

type secondKey struct {
	inc int
	seq uint64
}

// secondReading notes the leaves of accepted records, by the rule of the first
// reading: a record is accepted unless its seq is below the expected one.
type secondReading struct {
	restarts []restart
	want     map[secondKey]Hash
	got      map[secondKey]bool
	file     int
	first    bool
	inc      int
	next     uint64
}

func (r *secondReading) beginFile(file int) error {
	r.file, r.first = file, true
	return nil
}

func (r *secondReading) endFile(int, int64, int64, Hash) error { return nil }

func (r *secondReading) line(_ []byte, s, _ *scanned) error {
	if r.first {
		r.first = false
		if r.inc < len(r.restarts) && r.restarts[r.inc].file == r.file {
			r.next = r.restarts[r.inc].next
			r.inc++
		}
	}
	if !s.sealed() || s.seal.Seq < r.next {
		return nil
	}
	r.next = s.seal.Seq + 1
	key := secondKey{r.inc, s.seal.Seq}
	if _, wanted := r.want[key]; wanted {
		r.want[key] = s.seal.Leaf
		r.got[key] = true
	}
	return nil
}
