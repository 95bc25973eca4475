package auditlog

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// judge takes the lines of a log in order and decides what they mean. All that
// depends on more than one line is decided here, on one goroutine, so that a
// report does not depend on how the work was spread.
type judge struct {
	opts      VerifyOptions
	sources   []Source
	keys      *macKeys
	f         *findings
	report    Report
	now       int64
	pin       pinned
	witnesses []*Cosigner

	file, lineNo int
	at           place
	bad          bool // the line has a finding of class T
	lastFolded   bool // the line before was taken into the chain
	began        bool // the record began an incarnation or a partial history
	ended        bool // the file's segment_end was seen
	endedFile    bool // that of the file before was

	inc  *incarnation
	past []*incarnation

	resumed bool     // the first source begins behind a cursor
	base    int64    // bytes before it in its file
	skipped []string // file names of the sources before
	heads   []cursorHead

	next       uint64
	chain      Hash
	chainKnown bool
	tree       Range
	treeKnown  bool
	segment    uint64
	hasSegment bool

	keyID      string // current, "" until it is known
	named      map[string]bool
	epoch      uint64
	slack      uint64 // lost or damaged records that may have changed key or epoch
	slackSpent uint64
	seal       *sealer
	macChecked bool
	macFailed  bool

	open     map[uint64]pairedIntent
	holes    spans
	pending  map[uint64][]missing
	erasures int

	lastTime, sinceCheckpoint int64
	hasTime, overdue          bool

	files    []fileFacts // one a source
	manifest *Manifest
	retired  map[uint64]retired // by segment

	kinds    [kindCount]int
	anchors  []*heldAnchor
	waiting  []*heldAnchor // of this incarnation, by size, not reached yet
	suspects []suspect
	restarts []restart
	tooMany  int // suspects beyond the bound
}

// incarnation is what the log says under one origin.
type incarnation struct {
	origin string // "" if its beginning is missing or damaged
	name   string
	number int
	first  uint64 // seq of the first record
	size   uint64 // number of records at its end
	vkeys  []string
	// checkpointed is the size that the newest valid checkpoint states.
	checkpointed uint64
	// What a chain_break says of the incarnation before.
	prevOrigin string
	prevSize   uint64
	prevRoot   Hash
	broken     bool // begun by chain_break
	records    uint64
}

func newJudge(sources []Source, opts VerifyOptions) (*judge, error) {
	pin, err := newPinned(&opts)
	if err != nil {
		return nil, err
	}
	witnesses, err := parseWitnesses(opts.Witnesses)
	if err != nil {
		return nil, err
	}
	j := &judge{
		witnesses: witnesses,
		opts:      opts, sources: sources, keys: newMACKeys(&opts), f: newFindings(sources), pin: pin,
		now: opts.Now().UnixNano(), named: map[string]bool{},
		open: map[uint64]pairedIntent{}, pending: map[uint64][]missing{}, retired: map[uint64]retired{},
	}
	for _, s := range sources {
		j.files = append(j.files, newFileFacts(s.Name))
	}
	j.readManifest()
	j.report.Kinds = map[string]int{}
	j.readAnchors()
	return j, nil
}

// splitOrigin takes an origin apart: name and number of the incarnation.
func splitOrigin(origin string) (name string, number int, ok bool) {
	at := strings.LastIndex(origin, "/i")
	if at < 0 {
		return origin, 0, false
	}
	n, err := strconv.Atoi(origin[at+2:])
	if err != nil || n < 0 || strconv.Itoa(n) != origin[at+2:] {
		return origin, 0, false
	}
	return origin[:at], n, true
}

// find notes a finding on the current line.
func (j *judge) find(kind, format string, args ...any) {
	j.findAt(j.at, kind, format, args...)
	if ClassOf(kind) == ClassTampered {
		j.bad = true
	}
}

func (j *judge) findAt(at place, kind, format string, args ...any) {
	if ClassOf(kind) == ClassTampered && j.report.FirstError == "" {
		where := ""
		if at.line > 0 {
			where = fmt.Sprintf("%s line %d: ", j.sources[at.file].Name, at.line)
		}
		j.report.FirstError = where + kind + ": " + fmt.Sprintf(format, args...)
	}
	j.f.add(kind, at, format, args...)
}

func (j *judge) beginFile(file int) error {
	if file == 0 && j.resumed {
		j.file = file
		return nil
	}
	j.endedFile = j.ended
	j.file, j.lineNo, j.ended, j.lastFolded = file, 0, false, false
	return nil
}

func (j *judge) endFile(file int, torn, size int64, sum Hash) error {
	if file == 0 {
		size += j.base
	}
	f := &j.files[file]
	f.size, f.sum, f.ended = size, sum, j.ended
	last := file == len(j.sources)-1
	at := place{file: file, line: j.lineNo + 1}
	switch {
	case size == 0 && len(j.sources) > 1:
		j.findAt(at, "empty_segment", "the file is empty")
	case torn > 0 && last:
		j.findAt(at, "torn_tail", "the last %d bytes do not end in a line feed: a write that was interrupted or is going on", torn)
	case torn > 0:
		j.findAt(at, "torn_segment", "the last %d bytes do not end in a line feed, but another file follows", torn)
	}
	if last && j.opts.Closed && !j.ended && j.inc != nil {
		j.findAt(at, "segment_unclosed", "the file does not end with segment_end")
	}
	return nil
}

// line implements lineSink.
func (j *judge) line(line []byte, s, before *scanned) error {
	j.lineNo++
	j.report.Total++
	j.bad, j.began = false, false
	j.at = place{file: j.file, line: j.lineNo, seq: s.seal.Seq, sealed: s.sealed()}
	folded := false
	if s.sealed() {
		if before != nil && !j.lastFolded {
			before = nil
		}
		folded = j.record(line, s, before)
	} else {
		j.unsealed(s)
	}
	j.lastFolded = folded
	switch {
	case !j.bad:
		j.report.Verified++
	case s.fault == LineUnsealed:
		j.report.Unsigned++
	default:
		j.report.Invalid++
	}
	return nil
}

var faultDetail = map[LineFault]string{
	LineMalformed: "the line is no JSON object",
	LineUnsealed:  "the line is a JSON object without a seal",
	LineDowngrade: "the line is a record of an older format, which proves less",
	LineBadSeal:   "the line's seal is not in the one form that is allowed",
	lineOversized: "the line is longer than the limit and was passed over",
}

func (j *judge) unsealed(s *scanned) {
	j.find(string(s.fault), "%s", faultDetail[s.fault])
	if j.lineNo == 1 && j.inc == nil {
		j.find("genesis_missing", "the log does not begin with a sealed genesis, chain_break or segment_start")
		j.unknownBeginning()
	}
}

// record judges a line with a valid seal. It reports whether the record was
// taken into the chain.
func (j *judge) record(line []byte, s, before *scanned) (folded bool) {
	first := j.lineNo == 1
	if first || j.inc == nil {
		j.firstRecord(line, s)
	}
	if s.seal.Seq < j.next {
		j.suspect(s)
		return false
	}
	if s.fault == LineExtraMember || s.facts.forbidden {
		j.find("extra_member", "the line has a top-level member that no record has")
	}
	damaged := j.content(s)
	j.sequence(s, before)
	j.keyAndEpoch(s)
	if j.ended {
		j.find("segment_boundary", "a record follows segment_end in one file")
	}
	if !damaged && !s.facts.broken {
		j.kind(line, s)
	} else {
		j.damagedRecord(line, s)
	}
	if s.openings != nil {
		j.openingFaults(s)
	}
	j.form(line, s)
	j.fold(s)
	j.noteFile(line, s)
	return true
}

// content compares the record with its leaf.
func (j *judge) content(s *scanned) (damaged bool) {
	switch {
	case s.leafOK:
	case s.erased:
		j.pending[s.seal.Seq] = append(j.pending[s.seal.Seq], missing{name: wholeRecord, at: j.at})
	default:
		j.find("content_modified", "the record's bytes are not those that were sealed")
	}
	return !s.leafOK
}

// sequence compares the record's place with the one before.
func (j *judge) sequence(s, before *scanned) {
	if s.seal.Seq > j.next {
		missing := s.seal.Seq - j.next
		if missing == 1 {
			j.find("seq_gap", "record %d is missing before it", j.next)
		} else {
			j.find("seq_gap", "%d records are missing before it (%d to %d)", missing, j.next, s.seal.Seq-1)
		}
		j.holes.add(j.next, s.seal.Seq)
		j.slack += missing
		j.treeKnown, j.chainKnown = false, false
		j.waiting = j.passed(s.seal.Seq)
		return
	}
	if !j.chainKnown {
		return
	}
	ok := s.chainOK
	if before == nil || !s.chained {
		ok = s.seal.Chain == ChainHash(j.chain, s.seal.Seq, s.seal.Leaf)
	}
	if !ok {
		j.find("chain_broken", "the record does not continue the chain of the record before")
	}
}

// form checks the exact form of the body where that is asked for.
func (j *judge) form(line []byte, s *scanned) {
	if s.canonical == unknown && j.bad {
		s.canonical = no
		body := append(append(make([]byte, 0, s.prefix+1), line[:s.prefix]...), '}')
		if canon.IsCanonical(body, maxLineDepth) {
			s.canonical = yes
		}
	}
	if s.canonical == no {
		j.find("not_canonical", "the record's body is not in canonical form")
	}
}

// fold takes the record into the chain and the tree, by its stored values.
func (j *judge) fold(s *scanned) {
	j.next = s.seal.Seq + 1
	j.chain, j.chainKnown = s.seal.Chain, true
	if j.treeKnown {
		j.tree.Append(s.seal.Leaf)
	}
	j.report.Records++
	j.inc.records++
	if s.leafOK {
		j.clock(s)
	}
	if len(j.waiting) > 0 && j.waiting[0].head.Size <= j.next {
		j.reachAnchors()
	}
}

// The tolerances of a record's clock.
const (
	regressionLimit = 5e9   // 5 s, in nanoseconds
	futureLimit     = 300e9 // 5 min
)

func (j *judge) clock(s *scanned) {
	if !s.facts.hasTime {
		return
	}
	t := s.facts.time
	if j.hasTime && j.lastTime-t > regressionLimit {
		j.find("time_regression", "its time is %s before that of the record before", seconds(j.lastTime-t))
	}
	if t-j.now > futureLimit {
		j.find("time_future", "its time is %s ahead of now", seconds(t-j.now))
	}
	j.lastTime, j.hasTime = t, true
}

// keyAndEpoch checks key id, epoch and MAC.
func (j *judge) keyAndEpoch(s *scanned) {
	if j.keyID == "" && s.seal.Epoch > maxEpochSteps {
		j.find("epoch_violation", "it is of epoch %d, which is beyond any that can occur", s.seal.Epoch)
		return
	}
	if j.keyID == "" {
		j.keyID, j.epoch = s.seal.KeyID, s.seal.Epoch
		j.named[j.keyID] = true
	}
	if s.seal.KeyID != j.keyID {
		known := j.keys.known(s.seal.KeyID, j.named[s.seal.KeyID])
		if known && j.slack > 0 {
			// The rotation may be among the records that are lost.
			j.keyID, j.epoch = s.seal.KeyID, s.seal.Epoch
		} else {
			if known {
				j.find("key_range_violation", "it is sealed with key id %q where %q is valid", s.seal.KeyID, j.keyID)
			} else {
				j.find("unknown_key", "it is sealed with key id %q, which is not known", s.seal.KeyID)
			}
			return
		}
	}
	if s.seal.Epoch != j.epoch {
		ahead := s.seal.Epoch - j.epoch
		if s.seal.Epoch < j.epoch || ahead > j.slack || j.slackSpent+ahead > maxEpochSteps {
			j.find("epoch_violation", "it is of epoch %d where epoch %d is current", s.seal.Epoch, j.epoch)
			return
		}
		j.slackSpent += ahead
		j.epoch = s.seal.Epoch
	}
	j.slack = 0
	if j.keys.available() {
		j.checkMAC(s)
	}
}

func (j *judge) checkMAC(s *scanned) {
	ok, done := s.macOK, s.macDone
	if !done {
		sealer := j.sealer()
		if sealer == nil {
			j.find("unknown_key", "it is sealed with key id %q, for which there is no key", j.keyID)
			return
		}
		ok = sealer.checks(&Line{Seal: s.seal})
	}
	if !ok {
		hint := ""
		if !j.macChecked {
			hint = "; wrong key?"
		}
		j.find("mac_invalid", "its MAC was not made with the key %q%s", j.keyID, hint)
		j.macFailed = true
	}
	j.macChecked = true
}

// sealer is the MAC key of the current epoch, or nil.
func (j *judge) sealer() *sealer {
	if j.seal == nil || j.seal.keyID != j.keyID || j.seal.epoch > j.epoch {
		key := j.keys.epochZero(j.keyID)
		if key == nil {
			return nil
		}
		j.seal = &sealer{keyID: j.keyID, key: key, mac: newMacer(macKey(key))}
	}
	for j.seal.epoch < j.epoch {
		j.seal.evolve(j.inc.origin)
	}
	return j.seal
}
