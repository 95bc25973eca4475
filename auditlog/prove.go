package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// ProveOptions says what Prove and ProveConsistency look for, and where they
// may work.
type ProveOptions struct {
	// Match picks the records to prove. Where several incarnations of a log
	// have such records, those of the newest count.
	Match func(*Record) bool
	// VKey is the public key that the checkpoint must be signed with. "": the
	// one that the log itself names.
	VKey string
	// Checkpoints are signed notes beside those in the log: the checkpoint file
	// and the receipts of witnesses. Those that are of no use are passed over.
	Checkpoints [][]byte
	// Only: no checkpoint in the log is used, only those of Checkpoints.
	Only bool
	// Tiles is where the tiles of an origin lie, for records whose files are
	// gone. They are only read. nil: there are none.
	Tiles func(origin string) string
	// Work is a folder for the hashes of the log while it is read, 33 bytes a
	// record. Whoever calls removes it.
	Work string
}

// ProvenRecord is a record's line, without its LF, and its proof.
type ProvenRecord struct {
	Line  []byte
	Kind  string
	Proof *InclusionProof
	Head  TreeHead
	VKey  string // that the checkpoint was checked with
}

// ErrNoCheckpoint is returned, wrapped, if no checkpoint covers a record.
var ErrNoCheckpoint = errors.New("no signed checkpoint covers it")

// ErrNoRecord is returned if no record is the one that was asked for.
var ErrNoRecord = errors.New("there is no such record in the log")

// maxProven bounds the records that one call proves.
const maxProven = 16

// Prove proves that records stand in a log, whose sources are its files,
// oldest first. It reads them once, in bounded memory, and checks each record's
// place, bytes and chain. Faults of other records do not prevent a proof, which
// is only made if the signed checkpoint's tree has the record; the warnings
// name them.
func Prove(ctx context.Context, sources []Source, o ProveOptions) (proven []ProvenRecord, warnings []string, err error) {
	s := &proveScan{o: o}
	if err := s.read(ctx, sources); err != nil {
		return nil, nil, err
	}
	if len(s.hits) == 0 {
		return nil, s.warnings, ErrNoRecord
	}
	part := s.hitsIn
	for _, line := range s.hits {
		r, err := s.prove(part, line)
		if err != nil {
			return nil, s.warnings, err
		}
		proven = append(proven, r)
	}
	return proven, s.warnings, nil
}

// ProveConsistency proves that a log continues an older checkpoint of it, up
// to the newest one. vkey is the key that both were checked with.
func ProveConsistency(ctx context.Context, sources []Source, old []byte, o ProveOptions) (p *ConsistencyProof, vkey string, warnings []string, err error) {
	head, err := ReadTreeHead(old)
	if err != nil {
		return nil, "", nil, fmt.Errorf("the older checkpoint: %w", err)
	}
	s := &proveScan{o: o}
	if err := s.read(ctx, sources); err != nil {
		return nil, "", nil, err
	}
	for _, part := range s.parts {
		if part.origin != head.Origin {
			continue
		}
		policy, err := part.trust(o.VKey)
		if err != nil {
			return nil, "", s.warnings, err
		}
		note, to, err := s.newest(part, policy, head.Size)
		if err != nil {
			return nil, "", s.warnings, fmt.Errorf("the older checkpoint has %d records: %w", head.Size, err)
		}
		path, err := part.tiles.Tree(to).Consistency(head.Size)
		if err != nil {
			return nil, "", s.warnings, err
		}
		p := &ConsistencyProof{Old: head.Size, Path: path, Checkpoint: note}
		_, _, err = p.Check(old, policy)
		return p, part.signer(note, o.VKey), s.warnings, err
	}
	return nil, "", s.warnings, fmt.Errorf("the older checkpoint is of %q, of which there is no record among the files", head.Origin)
}

// proveScan reads a log for its proofs. It is not safe for concurrent use.
type proveScan struct {
	o        ProveOptions
	parts    []*provePart // one for each incarnation
	hits     [][]byte
	hitsIn   *provePart
	warnings []string
	faults   int
}

// provePart is what was read of one incarnation.
type provePart struct {
	origin   string
	vkeys    []string // that the log names, the newest last
	tiles    *Tiles
	w        *tileWriter
	chain    Hash
	hasChain bool
	notes    [][]byte // the newest checkpoint in the log
}

func (s *proveScan) read(ctx context.Context, sources []Source) error {
	for _, src := range sources {
		if err := s.file(ctx, src); err != nil {
			return err
		}
	}
	for _, part := range s.parts {
		if err := part.w.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (s *proveScan) file(ctx context.Context, src Source) (err error) {
	in, err := src.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	lines := NewReader(in, 0)
	for n := 1; ; n++ {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.Name, err)
		}
		if err := s.line(line, n == 1, fmt.Sprintf("%s line %d", src.Name, n)); err != nil {
			return err
		}
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (s *proveScan) line(line []byte, first bool, at string) error {
	r, fault := ParseRecord(line)
	if fault != LineOK && fault != LineExtraMember {
		return fmt.Errorf("%s is no record (%s), so the records behind it cannot be proven from these files; run `mcp-audit verify`", at, fault)
	}
	if first {
		if err := s.begin(&r, at); err != nil {
			return err
		}
	}
	if len(s.parts) == 0 {
		return fmt.Errorf("%s does not begin a log; give all files of the log, oldest first", at)
	}
	part := s.parts[len(s.parts)-1]
	seal := &r.Line.Seal
	if seal.Seq != part.w.size {
		return fmt.Errorf("%s has record %d where record %d should be; give all files of the log, oldest first, and run `mcp-audit verify` if they are", at, seal.Seq, part.w.size)
	}
	erased := r.Line.Erased()
	switch intact := r.Line.LeafHash() == seal.Leaf; {
	case !intact && !erased:
		s.warn("%s: record %d was changed (content_modified)", at, seal.Seq)
	case part.hasChain && seal.Chain != ChainHash(part.chain, seal.Seq, seal.Leaf):
		s.warn("%s: record %d does not continue the chain (chain_broken)", at, seal.Seq)
	case erased:
	default:
		s.facts(part, &r)
	}
	part.chain, part.hasChain = seal.Chain, true
	return part.w.append(seal.Leaf)
}

// facts takes what is needed of an intact record.
func (s *proveScan) facts(part *provePart, r *Record) {
	switch r.Kind {
	case kindCheckpoint:
		part.notes = [][]byte{[]byte(r.Text("note"))}
	case "key_rotation":
		part.vkeys = append(part.vkeys, r.Text("new_vkey"))
	}
	if s.o.Match == nil || !s.o.Match(r) {
		return
	}
	if s.hitsIn != part {
		s.hits, s.hitsIn = nil, part
	}
	if len(s.hits) < maxProven {
		s.hits = append(s.hits, bytes.Clone(r.Raw))
	}
}

// maxProveWarnings is how many faults are named.
const maxProveWarnings = 10

func (s *proveScan) warn(format string, args ...any) {
	switch s.faults++; {
	case s.faults <= maxProveWarnings:
		s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
	case s.faults == maxProveWarnings+1:
		s.warnings = append(s.warnings, "there are further faults; run `mcp-audit verify`")
	}
}

// begin takes the first record of a file.
func (s *proveScan) begin(r *Record, at string) error {
	origin := r.Text("origin")
	if n := len(s.parts); n > 0 && (origin == s.parts[n-1].origin || origin == "") {
		return nil
	}
	if origin == "" {
		return fmt.Errorf("%s does not begin a log: it names no origin; give all files of the log, oldest first", at)
	}
	t := &Tiles{fs: fsys.OS(), dir: filepath.Join(s.o.Work, strconv.Itoa(len(s.parts)))}
	if s.o.Tiles != nil {
		t.base = s.o.Tiles(origin)
	}
	part := &provePart{origin: origin, tiles: t}
	if vkey := r.Text("vkey"); vkey != "" {
		part.vkeys = []string{vkey}
	}
	var err error
	if part.w, err = t.writer(r.Line.Seal.Seq); err != nil {
		return fmt.Errorf("%s begins with record %d, and the tiles that hold the hashes of the records before are not at hand (%w); give all files of the log", at, r.Line.Seal.Seq, err)
	}
	if part.w.size == 0 {
		part.chain, part.hasChain = GenesisChain(origin), true
	}
	s.parts = append(s.parts, part)
	return nil
}

// trust is the policy that a part's checkpoints must satisfy: one of the keys
// that the log names, or the one that the caller holds.
func (p *provePart) trust(vkey string) (*TrustPolicy, error) {
	keys := p.vkeys
	if vkey != "" {
		keys = []string{vkey}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("the files of %s do not name its public key; give it with --pub", p.origin)
	}
	policy, err := PolicyOf(keys[0])
	if err != nil {
		return nil, err
	}
	for _, key := range keys[1:] {
		// A rotation may come back to a key, or name one that is none.
		if more, err := policy.WithLog(key); err == nil {
			policy = more
		}
	}
	return policy, nil
}

// signer is the key that a trusted note is signed with.
func (p *provePart) signer(note []byte, vkey string) string {
	for _, key := range p.vkeys {
		if _, err := OpenTreeHead(note, key); err == nil && vkey == "" {
			return key
		}
	}
	return vkey
}

// newest picks the checkpoint to prove with: the newest that states at least
// size records and that the log's key signed. One that witnesses cosigned goes
// before one that none did.
func (s *proveScan) newest(part *provePart, policy *TrustPolicy, size uint64) ([]byte, TreeHead, error) {
	notes := slices.Clone(s.o.Checkpoints)
	if !s.o.Only {
		notes = append(notes, part.notes...)
	}
	var best []byte
	var head TreeHead
	ahead, unsigned := 0, 0
	for _, n := range notes {
		h, err := ReadTreeHead(n)
		if err != nil || h.Origin != part.origin || h.Size < size {
			continue
		}
		if h.Size > part.w.size {
			ahead++
			continue
		}
		if _, _, err := policy.OpenCheckpoint(n); err != nil {
			unsigned++
			continue
		}
		switch {
		case best == nil, signatures(n) > 1 && signatures(best) == 1,
			h.Size > head.Size && (signatures(n) > 1) == (signatures(best) > 1):
			best, head = n, h
		}
	}
	if best == nil {
		why := ""
		switch {
		case unsigned > 0:
			why = "; one that does is not signed with the log's key"
		case ahead > 0:
			why = fmt.Sprintf("; one states more than the %d records that there are: give all files of the log", part.w.size)
		}
		return nil, head, fmt.Errorf("%w%s; sign one with `mcp-audit checkpoint`", ErrNoCheckpoint, why)
	}
	return mergeSignatures(best, notes, policy), head, nil
}

func (s *proveScan) prove(part *provePart, line []byte) (ProvenRecord, error) {
	l, fault := SplitLine(line)
	if fault != LineOK {
		return ProvenRecord{}, fmt.Errorf("the record is damaged (%s); run `mcp-audit verify`", fault)
	}
	policy, err := part.trust(s.o.VKey)
	if err != nil {
		return ProvenRecord{}, err
	}
	note, head, err := s.newest(part, policy, l.Seal.Seq+1)
	if err != nil {
		return ProvenRecord{}, fmt.Errorf("record %d cannot be proven: %w", l.Seal.Seq, err)
	}
	path, err := part.tiles.Tree(head).Inclusion(l.Seal.Seq)
	if err != nil {
		return ProvenRecord{}, fmt.Errorf("record %d cannot be proven: %w; run `mcp-audit verify`", l.Seal.Seq, err)
	}
	p := &InclusionProof{Index: l.Seal.Seq, Path: path, Checkpoint: note}
	checked, err := VerifyProof(line, p.Text(), policy)
	if err != nil {
		return ProvenRecord{}, fmt.Errorf("record %d cannot be proven: %w; run `mcp-audit verify`", l.Seal.Seq, err)
	}
	return ProvenRecord{Line: line, Kind: checked.Record.Kind, Proof: p, Head: head, VKey: part.signer(note, s.o.VKey)}, nil
}

// signatures counts the signature lines of a note.
func signatures(signed []byte) int { return strings.Count(string(signed), "\n— ") }

// mergeSignatures adds to a note the signatures that others have under the
// same text, as far as there is room.
func mergeSignatures(signed []byte, others [][]byte, policy *TrustPolicy) []byte {
	text, sigs, _ := strings.Cut(string(signed), "\n\n")
	lines := strings.SplitAfter(strings.TrimSuffix(sigs, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	for _, other := range others {
		head, more, ok := strings.Cut(string(other), "\n\n")
		if !ok || head != text {
			continue
		}
		if _, _, err := policy.OpenCheckpoint(other); err != nil {
			continue
		}
		for line := range strings.Lines(more) {
			if strings.HasPrefix(line, "— ") && len(lines) < maxNoteSignatures && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	return []byte(text + "\n\n" + strings.Join(lines, ""))
}
