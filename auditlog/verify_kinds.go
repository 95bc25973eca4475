package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// kind applies the rules of the record's kind. The body's bytes agree with
// its leaf.
func (j *judge) kind(line []byte, s *scanned) {
	code := s.facts.kind
	j.count(line, s)
	if code.opensFile() && !j.began {
		j.misplaced(line, s)
	}
	if code != codeCheckpoint {
		j.sinceCheckpoint++
		j.checkOverdue()
	}
	switch code {
	case codeIntent:
		j.intent(line, s)
	case codeOutcome:
		j.outcome(line, s)
	case codeCheckpoint:
		j.checkpoint(bodyView{line[:s.prefix]}, s.seal.Seq)
	case codeEpochEnd:
		j.epoch++
	case codeKeyRotation:
		j.keyRotation(bodyView{line[:s.prefix]}, s)
	case codeSegmentEnd:
		j.ended = true
		j.segmentNumber(bodyView{line[:s.prefix]}, 0)
	case codeRetention:
		j.retention(bodyView{line[:s.prefix]}, s.seal.Seq)
	case codeErasure:
		j.erasure(bodyView{line[:s.prefix]}, s)
	case codeGap:
		b := bodyView{line[:s.prefix]}
		n, _ := b.number("count")
		j.find("gap", "%d messages were forwarded without a record from %s to %s; reason %q", n, b.text("from"), b.text("to"), b.text("reason"))
	case codeUnknown:
		if !s.erased {
			j.find("unknown_kind", "its kind %q is not known to this version", clip(line[s.facts.kindText[0]:s.facts.kindText[1]]))
		}
	}
}

func clip(b []byte) string {
	const most = 64
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// count counts the record under its kind. A log cannot make the report grow
// by inventing kinds.
func (j *judge) count(line []byte, s *scanned) {
	if s.facts.kind != codeUnknown {
		j.kinds[s.facts.kind]++
		return
	}
	name := clip(line[s.facts.kindText[0]:s.facts.kindText[1]])
	if name == "" || j.report.Kinds[name] == 0 && len(j.report.Kinds) > 64 {
		name = "(other)"
	}
	j.report.Kinds[name]++
}

// damagedRecord does what can be done with a record whose bytes are not those
// that were sealed, so that one damaged record is one finding: whatever it may
// have been is allowed for later.
func (j *judge) damagedRecord(line []byte, s *scanned) {
	if s.erased {
		j.report.Kinds["(erased)"]++
	} else {
		j.report.Kinds["(damaged)"]++
	}
	j.slack++
	j.holes.add(s.seal.Seq, s.seal.Seq+1)
	j.sinceCheckpoint++
	switch s.facts.kind {
	case codeOutcome:
		delete(j.open, s.facts.seqOf)
	case codeEpochEnd:
		j.epoch++
		j.slack--
	case codeSegmentEnd:
		j.ended = true
	case codeSegmentStart:
		if j.lineNo == 1 {
			j.hasSegment = false
		}
	}
}

// misplaced judges a genesis, chain_break or segment_start that did not begin
// what was read.
func (j *judge) misplaced(line []byte, s *scanned) {
	if s.facts.kind != codeSegmentStart {
		j.find("second_genesis", "a %s stands in the middle of the log", kindNames[s.facts.kind])
		return
	}
	if j.lineNo != 1 {
		j.find("segment_boundary", "a segment_start stands in the middle of a file")
		return
	}
	j.segmentStart(bodyView{line[:s.prefix]}, s)
}

// segmentStart compares the beginning of a file with the end of the one before.
func (j *judge) segmentStart(b bodyView, s *scanned) {
	if origin := b.text("origin"); j.inc.origin != "" && origin != j.inc.origin {
		j.find("foreign_log", "the file is of %q, but the files before are of %q", origin, j.inc.origin)
	}
	j.segmentNumber(b, 1)
	size, ok := b.number("size")
	chain, chained := b.hash("prev_chain")
	tree, err := rangeMember(b.raw("range"), s.seal.Seq)
	switch {
	case !ok || size != s.seal.Seq || !chained || err != nil:
		j.find("segment_boundary", "segment_start does not state the records before it")
	case !j.chainKnown:
		// Records are missing before it, which was found already. What it
		// states lets the comparison of checkpoints go on.
		j.tree, j.treeKnown = tree, true
	case chain != j.chain:
		j.find("segment_boundary", "segment_start does not continue the chain of the file before")
	case j.treeKnown && !slices.Equal(tree.Roots, j.tree.Roots):
		j.find("segment_boundary", "segment_start does not state the tree of the records before it")
	case !j.treeKnown:
		j.tree, j.treeKnown = tree, true
	}
	if j.chainKnown && !j.endedFile {
		j.find("segment_boundary", "the file before does not end with segment_end")
	}
}

// segmentNumber compares a segment's number with the current one plus step.
func (j *judge) segmentNumber(b bodyView, step uint64) {
	n, ok := b.number("segment")
	switch {
	case !ok:
		j.find("segment_boundary", "the segment's number is missing")
	case !j.hasSegment:
	case n > j.segment+step:
		j.find("segment_gap", "it is segment %d, but the one before is %d", n, j.segment)
	case n != j.segment+step:
		j.find("segment_boundary", "it is segment %d, but the one before is %d", n, j.segment)
	}
	if ok {
		j.segment, j.hasSegment = n, true
	}
}

// checkpoint checks a signed note over all records before this one.
func (j *judge) checkpoint(b bodyView, seq uint64) {
	signed := []byte(b.text("note"))
	if err := checkNoteShape(signed); err != nil {
		j.find("note_malformed", "the checkpoint's note: %v", err)
		return
	}
	if len(j.inc.vkeys) == 0 {
		// No key to check with is known; that the log is partial or damaged
		// was reported.
		return
	}
	head, err := OpenTreeHead(signed, j.inc.vkeys[len(j.inc.vkeys)-1])
	switch {
	case err != nil:
		j.find("checkpoint_sig_invalid", "the checkpoint's note: %v", err)
		return
	case head.Size != seq:
		j.find("checkpoint_mismatch", "the checkpoint states %d records, but %d are before it", head.Size, seq)
		return
	case !j.treeKnown:
		// After a gap roots cannot be compared.
		j.sinceCheckpoint = 0
		return
	case head.Root != j.tree.Root() || j.tree.Size != seq:
		j.find("checkpoint_mismatch", "the checkpoint's root is not that of the records before it")
		return
	}
	j.inc.checkpointed = head.Size
	j.agreed(head.Size, head.Root)
	j.sinceCheckpoint, j.overdue = 0, false
}

func (j *judge) checkOverdue() {
	if limit := j.opts.MaxUncheckpointed; limit > 0 && !j.overdue && j.sinceCheckpoint > int64(limit) {
		j.overdue = true
		j.find("checkpoint_overdue", "more than %d records have no valid checkpoint behind them", limit)
	}
}

// keyRotation checks a rotation's note and goes over to the new key.
func (j *judge) keyRotation(b bodyView, s *scanned) {
	kid, vkey := b.text("new_key_id"), b.text("new_vkey")
	if err := j.checkRotation(b, s.seal.Seq, kid, vkey); err != nil {
		j.find("sig_invalid", "the key rotation: %v", err)
	} else if name, key, err := ParseVKey(vkey); err == nil && name == j.inc.origin {
		j.inc.vkeys = append(j.inc.vkeys, vkey)
		j.report.VKey = vkey
		if j.pin.public != nil {
			j.pin.public = key
		}
	}
	if ValidKeyID(kid) {
		j.keyID, j.epoch, j.seal = kid, 0, nil
		j.named[kid] = true
	}
}

func (j *judge) checkRotation(b bodyView, seq uint64, kid, vkey string) error {
	if len(j.inc.vkeys) == 0 {
		return errors.New("the public key before it is not known")
	}
	signed := []byte(b.text("note"))
	if err := checkNoteShape(signed); err != nil {
		return err
	}
	want := fmt.Sprintf("auditlog/v3/key_rotation\n%s\n%d\n%s\n%s\n%s\n", j.inc.origin, seq, j.keyID, kid, vkey)
	for _, key := range []string{j.inc.vkeys[len(j.inc.vkeys)-1], vkey} {
		verifier, err := note.NewVerifier(key)
		if err != nil {
			return errors.New("it names no valid public key")
		}
		text, err := openNote(signed, verifier)
		if err != nil {
			return fmt.Errorf("%w %s", err, key)
		}
		if text != want {
			return errors.New("its note does not state this rotation")
		}
	}
	return nil
}

// erasure matches an erasure record with what is missing.
func (j *judge) erasure(b bodyView, s *scanned) {
	target, ok := b.number("target")
	field := b.text("field")
	if !ok || target >= s.seal.Seq {
		return
	}
	if intent, ok := b.number("intent_seq"); ok && field == wholeRecord && j.erasedAt(target) {
		delete(j.open, intent)
	}
	if j.report.Resumed != nil && target < j.report.Resumed.Records {
		// The record is not read again; that it was erased is said all the same.
		j.pending[target] = append(j.pending[target], missing{field, place{seq: target, sealed: true}})
	}
	var left []missing
	for _, m := range j.pending[target] {
		if m.name != field && field != wholeRecord {
			left = append(left, m)
			continue
		}
		kind, what := "erased_field", m.name
		if m.name == wholeRecord {
			kind, what = "erased_record", "the whole record"
		}
		j.erasures++
		j.findAt(m.at, kind, "%s was erased (record %d, %s); authorised by %q, reason %q",
			what, s.seal.Seq, b.text("timestamp"), b.text("authorised_by"), b.text("reason"))
	}
	if len(left) == 0 {
		delete(j.pending, target)
	} else {
		j.pending[target] = left
	}
}

// erasedAt reports whether a record was found erased as a whole.
func (j *judge) erasedAt(seq uint64) bool {
	for _, m := range j.pending[seq] {
		if m.name == wholeRecord {
			return true
		}
	}
	return false
}

// seconds renders a span of nanoseconds for a detail.
func seconds(ns int64) string { return time.Duration(ns).Round(time.Second).String() }

// operationName says in a few words which call a record is about.
func operationName(dst, line []byte, f *facts) []byte {
	for i, at := range f.label {
		value := line[at[0]:at[1]]
		if len(value) <= 2 || i == 2 && bytes.Equal(value, line[f.label[1][0]:f.label[1][1]]) {
			continue
		}
		switch {
		case i == 3:
			dst = append(dst, " on "...)
		case len(dst) > 0:
			dst = append(dst, ' ')
		}
		dst = append(dst, value[1:len(value)-1]...)
	}
	return dst
}

// printable makes text from a log fit for a line of output.
func printable(b []byte) string {
	return strings.ToValidUTF8(string(b), "�")
}
