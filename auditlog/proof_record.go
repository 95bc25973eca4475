package auditlog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Proven is what VerifyProof found of a record that is proven.
type Proven struct {
	Head      TreeHead      // the checkpoint it was proven with
	Witnesses []Cosignature // of the policy's witnesses on that checkpoint
	Record    Record        // its members may be shown
	// Disclosed are the committed members whose values the record carries,
	// Withheld those it carries only the commitments of.
	Disclosed, Withheld []string
}

// VerifyProof checks that a record stands in a log, with nothing but the
// record's line, its proof and what the verifier trusts. The line is that of
// the log; its openings may be fewer. A line feed at its end may be missing.
//
// Of the line, all of the body and of the openings is proven, and the seq and
// leaf of the seal. The rest of the seal (chain, key id, epoch, MAC) only the
// log's own verification covers. The error, if any, is ErrProofInvalid with
// the reason.
func VerifyProof(line, proof []byte, policy *TrustPolicy) (*Proven, error) {
	p, err := ParseInclusionProof(proof)
	if err != nil {
		return nil, err
	}
	line = bytes.TrimSuffix(line, []byte("\n"))
	if len(line) > MaxLine {
		return nil, proofFault("the record is longer than %d bytes", MaxLine)
	}
	record, fault := ParseRecord(line)
	if fault != LineOK {
		return nil, proofFault("the record is not one line of a log (%s)", fault)
	}
	l := &record.Line
	leaf := l.LeafHash()
	switch {
	case leaf != l.Seal.Leaf:
		return nil, proofFault("the record was changed: its bytes do not have the hash that its seal states")
	case l.Seal.Seq != p.Index:
		return nil, proofFault("it is record %d, but the proof is of record %d", l.Seal.Seq, p.Index)
	case !canon.IsCanonical(l.Body(), maxLineDepth):
		return nil, proofFault("the record's body is not in canonical form, so that two readers could read it differently")
	}
	out := &Proven{Record: record}
	if out.Disclosed, out.Withheld, err = checkDisclosed(line); err != nil {
		return nil, err
	}
	if out.Head, out.Witnesses, err = p.Check(leaf, policy); err != nil {
		return nil, err
	}
	return out, nil
}

// checkDisclosed checks a record's openings against its commitments.
func checkDisclosed(line []byte) (disclosed, withheld []string, err error) {
	w := newLineWorker(&scanConfig{})
	var s scanned
	splitFast(line, &s, &w.kids)
	s.facts.read(line[:s.prefix])
	if s.facts.broken || s.facts.forbidden {
		return nil, nil, proofFault("the record's body has a member that none may have, or is no object")
	}
	w.checkOpenings(line, &s)
	if f := s.openings; f != nil {
		switch {
		case f.malformed:
			return nil, nil, proofFault("the disclosed members are not in canonical form")
		case f.mismatch != nil:
			return nil, nil, proofFault("the disclosed %s is not what the record commits to", strings.Join(f.mismatch, ", "))
		case f.unbound != nil:
			return nil, nil, proofFault("the record has no commitment to the disclosed %s", strings.Join(f.unbound, ", "))
		}
		withheld = f.missing
	}
	if s.open[1] > 0 {
		ObjectMembers(line[s.open[0]:s.open[1]], func(name, _ []byte) bool {
			disclosed = append(disclosed, string(name))
			return true
		})
	}
	return disclosed, withheld, nil
}

// Disclose returns a record line with only the named openings, without its LF.
// A name that the line has no opening for is an error.
func Disclose(line []byte, names []string) ([]byte, error) {
	l, fault := SplitLine(line)
	if fault != LineOK {
		return nil, fmt.Errorf("the line is not a record (%s); run `mcp-audit verify`", fault)
	}
	var open []byte
	var have []string
	ObjectMembers(l.Open, func(name, value []byte) bool {
		have = append(have, string(name))
		if slices.Contains(names, string(name)) {
			open = append(open, ',', '"')
			open = append(append(open, name...), `":`...)
			open = append(open, value...)
		}
		return true
	})
	for _, name := range names {
		if slices.Contains(have, name) {
			continue
		}
		if len(have) == 0 {
			return nil, fmt.Errorf("record %d has no member that can be disclosed or withheld: the whole record is disclosed", l.Seal.Seq)
		}
		return nil, fmt.Errorf("record %d has no committed member %q; there are %s", l.Seal.Seq, name, strings.Join(have, ", "))
	}
	if len(open) > 0 {
		open[0] = '{'
		open = append(open, '}')
	}
	out := AppendLine(nil, l.Body(), &l.Seal, open)
	return out[:len(out)-1], nil
}
