package auditlog

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// ErrProofInvalid is returned, wrapped with the reason, for a proof that does
// not hold. Its text is the finding's name.
var ErrProofInvalid = errors.New("proof_invalid")

// proofFault makes an error of a proof that does not hold.
func proofFault(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProofInvalid, fmt.Errorf(format, args...))
}

// The bounds of a proof: 63 hashes are enough for any tree.
const (
	maxProofHashes = 63
	maxProofBytes  = maxNoteBytes + 64<<10
	proofHeader    = "c2sp.org/tlog-proof@v1"
)

// InclusionProof says that a log has a record at an index, under a signed
// checkpoint (C2SP tlog-proof).
type InclusionProof struct {
	// Extra is opaque data that nothing authenticates. nil: none.
	Extra []byte
	// Index is the record's seq.
	Index uint64
	// Path are the hashes from the leaf's sibling up to the root's child.
	Path []Hash
	// Checkpoint is the signed note, with all its signatures.
	Checkpoint []byte
}

// Text is the proof in its one spelling.
func (p *InclusionProof) Text() []byte {
	var b bytes.Buffer
	b.WriteString(proofHeader + "\n")
	if p.Extra != nil {
		b.WriteString("extra " + base64.StdEncoding.EncodeToString(p.Extra) + "\n")
	}
	fmt.Fprintf(&b, "index %d\n", p.Index)
	appendHashLines(&b, p.Path)
	b.WriteByte('\n')
	b.Write(p.Checkpoint)
	return b.Bytes()
}

// ParseInclusionProof reads a proof. Only the spelling of Text is accepted; no
// signature or hash is checked.
func ParseInclusionProof(text []byte) (*InclusionProof, error) {
	lines, checkpoint, err := splitProof(text)
	if err != nil {
		return nil, err
	}
	if lines[0] != proofHeader {
		return nil, proofFault("the first line is not %q", proofHeader)
	}
	lines = lines[1:]
	p := &InclusionProof{Checkpoint: checkpoint}
	if len(lines) > 0 {
		if data, ok := strings.CutPrefix(lines[0], "extra "); ok {
			if p.Extra, err = base64.StdEncoding.Strict().DecodeString(data); err != nil || len(p.Extra) == 0 {
				return nil, proofFault("the extra data is not base64")
			}
			lines = lines[1:]
		}
	}
	if len(lines) == 0 {
		return nil, proofFault("there is no index line")
	}
	if p.Index, err = numberLine(lines[0], "index "); err != nil {
		return nil, err
	}
	p.Path, err = hashLines(lines[1:])
	return p, err
}

// Check checks the proof for a leaf: that the checkpoint is what the policy
// demands, and that its tree has the leaf at the index.
func (p *InclusionProof) Check(leaf Hash, policy *TrustPolicy) (TreeHead, []Cosignature, error) {
	head, witnesses, err := policy.OpenCheckpoint(p.Checkpoint)
	if err != nil {
		return TreeHead{}, nil, proofFault("its checkpoint is not trusted: %w", err)
	}
	if p.Index >= head.Size {
		return TreeHead{}, nil, proofFault("its checkpoint covers %d records, which do not include record %d", head.Size, p.Index)
	}
	if tlog.CheckRecord(tlogHashes(p.Path), int64(head.Size), tlog.Hash(head.Root), int64(p.Index), tlog.Hash(leaf)) != nil {
		return TreeHead{}, nil, proofFault("the checkpoint's tree has another record %d than this one: the record, the proof or the checkpoint was changed", p.Index)
	}
	return head, witnesses, nil
}

// ConsistencyProof says that the log behind a checkpoint begins with the
// records of an older, smaller one. Its text is what a witness is sent (C2SP
// tlog-witness, add-checkpoint).
type ConsistencyProof struct {
	Old        uint64 // size of the older checkpoint
	Path       []Hash // RFC 6962, section 2.1.2
	Checkpoint []byte // the newer signed note
}

// Text is the proof in its one spelling.
func (p *ConsistencyProof) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "old %d\n", p.Old)
	appendHashLines(&b, p.Path)
	b.WriteByte('\n')
	b.Write(p.Checkpoint)
	return b.Bytes()
}

// ParseConsistencyProof reads a proof. Only the spelling of Text is accepted;
// no signature or hash is checked.
func ParseConsistencyProof(text []byte) (*ConsistencyProof, error) {
	lines, checkpoint, err := splitProof(text)
	if err != nil {
		return nil, err
	}
	p := &ConsistencyProof{Checkpoint: checkpoint}
	if p.Old, err = numberLine(lines[0], "old "); err != nil {
		return nil, err
	}
	p.Path, err = hashLines(lines[1:])
	return p, err
}

// CheckPath checks the hashes alone: that the tree of head begins with the one
// of size p.Old and the given root. From the empty tree nothing is to be shown.
func (p *ConsistencyProof) CheckPath(old Hash, head TreeHead) error {
	switch {
	case p.Old > head.Size:
		return proofFault("the older checkpoint has %d records, more than the %d of the newer one", p.Old, head.Size)
	case p.Old == 0:
		if len(p.Path) > 0 || old != emptyRoot {
			return proofFault("a proof from the empty tree has no hashes")
		}
		return nil
	}
	if tlog.CheckTree(tlogTree(p.Path), int64(head.Size), tlog.Hash(head.Root), int64(p.Old), tlog.Hash(old)) != nil {
		return proofFault("the tree of %d records does not continue the one of %d: the log was rewritten, or the proof is of other checkpoints", head.Size, p.Old)
	}
	return nil
}

// Check checks that both checkpoints are what the policy demands and that the
// newer continues the older. The heads are the older's and the newer's.
func (p *ConsistencyProof) Check(old []byte, policy *TrustPolicy) (from, to TreeHead, err error) {
	if from, _, err = policy.OpenCheckpoint(old); err != nil {
		return from, to, proofFault("the older checkpoint is not trusted: %w", err)
	}
	if to, _, err = policy.OpenCheckpoint(p.Checkpoint); err != nil {
		return from, to, proofFault("the newer checkpoint is not trusted: %w", err)
	}
	switch {
	case from.Origin != to.Origin:
		return from, to, proofFault("the checkpoints are of different logs, %q and %q", from.Origin, to.Origin)
	case from.Size != p.Old:
		return from, to, proofFault("the proof begins at %d records, but the older checkpoint has %d", p.Old, from.Size)
	}
	return from, to, p.CheckPath(from.Root, to)
}

// splitProof cuts a proof at its first empty line: the lines before it, at
// least one, and the checkpoint behind.
func splitProof(text []byte) (lines []string, checkpoint []byte, err error) {
	if len(text) > maxProofBytes {
		return nil, nil, proofFault("the proof is larger than %d KiB", maxProofBytes>>10)
	}
	head, checkpoint, ok := bytes.Cut(text, []byte("\n\n"))
	if !ok || len(checkpoint) == 0 {
		return nil, nil, proofFault("there is no checkpoint behind an empty line")
	}
	if bytes.HasPrefix(text, []byte("\n")) {
		return nil, nil, proofFault("it begins with an empty line")
	}
	return strings.Split(string(head), "\n"), checkpoint, nil
}

func numberLine(line, name string) (uint64, error) {
	digits, ok := strings.CutPrefix(line, name)
	n, err := strconv.ParseUint(digits, 10, 63)
	if !ok || err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, proofFault("the line %.40q is not %sand a decimal number", line, name)
	}
	return n, nil
}

func hashLines(lines []string) ([]Hash, error) {
	if len(lines) > maxProofHashes {
		return nil, proofFault("there are %d hashes, more than %d", len(lines), maxProofHashes)
	}
	path := make([]Hash, 0, len(lines))
	for _, line := range lines {
		raw, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil || len(raw) != HashSize || strings.ContainsAny(line, "\r\n") {
			return nil, proofFault("the line %.60q is not a hash in base64", line)
		}
		path = append(path, Hash(raw))
	}
	return path, nil
}

func appendHashLines(b *bytes.Buffer, path []Hash) {
	for _, h := range path {
		b.WriteString(base64.StdEncoding.EncodeToString(h[:]))
		b.WriteByte('\n')
	}
}

func tlogHashes(path []Hash) tlog.RecordProof {
	out := make(tlog.RecordProof, len(path))
	for i, h := range path {
		out[i] = tlog.Hash(h)
	}
	return out
}

func tlogTree(path []Hash) tlog.TreeProof { return tlog.TreeProof(tlogHashes(path)) }
