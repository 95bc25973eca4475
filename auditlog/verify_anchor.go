package auditlog

import (
	"encoding/base64"
	"slices"
	"strings"
)

// heldAnchor is a checkpoint that the verifier holds.
type heldAnchor struct {
	name     string
	note     []byte
	external bool // not from beside the log
	cursor   bool // it stands for a cursor, which has no signature
	head     TreeHead
	readable bool // head is valid

	done     bool          // judged
	valid    bool          // its signature was found valid
	compared bool          // its root was compared
	until    int64         // time of the newest record it covers, Unix nanoseconds
	cosigned []Cosignature // by witnesses that the verifier knows
}

func (j *judge) readAnchors() {
	for _, a := range j.opts.Anchors {
		j.readAnchor(a, true)
	}
	for _, a := range j.opts.Beside {
		j.readAnchor(a, false)
	}
}

func (j *judge) readAnchor(a Anchor, external bool) {
	h := &heldAnchor{name: a.Name, note: a.Note, external: external}
	if err := checkNoteShape(a.Note); err != nil {
		j.findAt(place{}, "note_malformed", "%s: %v", a.Name, err)
		return
	}
	if !strictSignatures(a.Note) {
		j.findAt(place{}, "note_malformed", "%s: a signature is not strict base64", a.Name)
		return
	}
	var err error
	h.head, err = ReadTreeHead(a.Note)
	h.readable = err == nil
	j.anchors = append(j.anchors, h)
}

// strictSignatures reports whether all signature lines of a note are in the
// one spelling of their bytes, so that no byte of a note can change unseen.
func strictSignatures(signed []byte) bool {
	_, sigs, _ := strings.Cut(string(signed), "\n\n")
	for line := range strings.Lines(sigs) {
		rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "— ")
		if !ok {
			return false
		}
		_, text, ok := strings.Cut(rest, " ")
		if !ok {
			return false
		}
		if _, err := base64.StdEncoding.Strict().DecodeString(text); err != nil {
			return false
		}
	}
	return true
}

// startAnchors prepares the anchors of the incarnation that begins.
func (j *judge) startAnchors() {
	j.waiting = j.waiting[:0]
	for _, a := range j.anchors {
		if a.readable && !a.done && a.head.Origin == j.inc.origin && a.head.Size >= j.inc.first {
			j.waiting = append(j.waiting, a)
		}
	}
	slices.SortStableFunc(j.waiting, func(a, b *heldAnchor) int {
		switch {
		case a.head.Size < b.head.Size:
			return -1
		case a.head.Size > b.head.Size:
			return 1
		}
		return 0
	})
	if len(j.waiting) > 0 && j.waiting[0].head.Size <= j.next {
		j.reachAnchors()
	}
}

// reachAnchors compares the anchors of the current size.
func (j *judge) reachAnchors() {
	for len(j.waiting) > 0 && j.waiting[0].head.Size <= j.next {
		a := j.waiting[0]
		j.waiting = j.waiting[1:]
		if a.head.Size == j.next && j.treeKnown && j.checkAnchor(a, j.inc) {
			j.compareAnchor(a, j.tree.Root())
		}
	}
}

// passed drops the anchors whose size lies among missing records.
func (j *judge) passed(seq uint64) []*heldAnchor {
	i := 0
	for i < len(j.waiting) && j.waiting[i].head.Size <= seq {
		i++
	}
	return j.waiting[i:]
}

func (j *judge) compareAnchor(a *heldAnchor, root Hash) {
	a.done, a.compared, a.until = true, a.head.Root == root, j.lastTime
	if a.compared && !a.cursor && a.head.Origin == j.currentOrigin() {
		j.agreed(a.head.Size, root)
	}
	if !a.compared {
		j.findAt(place{}, "anchor_mismatch", "%s: the first %d records are not those that it states", a.name, a.head.Size)
	}
}

func (j *judge) currentOrigin() string {
	if j.inc == nil {
		return ""
	}
	return j.inc.origin
}

// checkAnchor checks an anchor's signature with the keys of an incarnation.
func (j *judge) checkAnchor(a *heldAnchor, inc *incarnation) bool {
	if a.valid {
		return true
	}
	keys := j.anchorKeys(inc)
	if len(keys) == 0 {
		a.done = true
		j.findAt(place{}, "partial_history", "%s cannot be checked: the log's beginning, which names its public key, is not among the files; give the key with --pub", a.name)
		return false
	}
	for _, vkey := range keys {
		if head, err := OpenTreeHead(a.note, vkey); err == nil && head == a.head {
			a.valid = j.checkWitnesses(a, vkey)
			a.done = !a.valid
			return a.valid
		}
	}
	a.done = true
	j.findAt(place{}, "anchor_sig_invalid", "%s: it has no valid signature of the log %s", a.name, orUnknown(inc.origin))
	return false
}

// anchorKeys are the keys that an anchor of an incarnation may be signed with:
// those that its log names, or, where its beginning is missing, those that the
// verifier holds.
func (j *judge) anchorKeys(inc *incarnation) []string {
	if len(inc.vkeys) > 0 || inc.origin == "" {
		return inc.vkeys
	}
	return j.heldKeys(inc.origin)
}

// heldKeys are the verifier's own public keys under an origin.
func (j *judge) heldKeys(origin string) (vkeys []string) {
	if j.pin.public != nil {
		if vkey, err := VKey(origin, j.pin.public); err == nil {
			vkeys = append(vkeys, vkey)
		}
		return vkeys
	}
	if j.opts.Keys != nil {
		for _, key := range j.opts.Keys.PublicKeys() {
			if vkey, err := VKey(origin, key.Key); err == nil {
				vkeys = append(vkeys, vkey)
			}
		}
	}
	return vkeys
}

// finishAnchors judges the anchors whose size was not reached.
func (j *judge) finishAnchors() {
	for _, a := range j.anchors {
		if !a.done {
			j.finishAnchor(a)
		}
	}
	for i, a := range j.anchors {
		for _, b := range j.anchors[:i] {
			if a.valid && b.valid && !a.cursor && !b.cursor && a.head.Origin == b.head.Origin && a.head.Size == b.head.Size && a.head.Root != b.head.Root {
				j.findAt(place{}, "anchor_equivocation", "%s and %s are both signed, but state different records for size %d", b.name, a.name, a.head.Size)
			}
		}
	}
}

func (j *judge) finishAnchor(a *heldAnchor) {
	if !a.readable {
		j.findAt(place{}, "anchor_sig_invalid", "%s: it does not state exactly origin, size and root", a.name)
		return
	}
	name, number, _ := splitOrigin(a.head.Origin)
	for _, inc := range j.past {
		if inc.origin != a.head.Origin {
			continue
		}
		if !j.checkAnchor(a, inc) {
			return
		}
		if a.head.Size > inc.size {
			j.findAt(place{}, "tail_truncated", "%s states %d records of %s, but the log has %d", a.name, a.head.Size, inc.origin, inc.size)
		}
		return
	}
	var last, first *incarnation
	if len(j.past) > 0 {
		first, last = j.past[0], j.past[len(j.past)-1]
	}
	switch {
	case last == nil || last.name == "":
		// Nothing to compare with; the log's own findings say so.
		if last == nil {
			j.findAt(place{}, "tail_truncated", "%s states %d records, but the log has none", a.name, a.head.Size)
		}
	case name != last.name:
		if j.claimsOurKey(a) {
			j.findAt(place{}, "anchor_sig_invalid", "%s: its signature names the log %s, but its text is of %q", a.name, last.origin, a.head.Origin)
			return
		}
		j.findAt(place{}, "anchor_foreign", "%s is of another log, %q", a.name, a.head.Origin)
	case first.prevOrigin == a.head.Origin:
		j.comparePrevious(a, first)
	case number > last.number:
		if j.checkAnchor(a, &incarnation{origin: a.head.Origin, vkeys: j.rename(last, a.head.Origin)}) {
			j.findAt(place{}, "tail_truncated", "%s is of %s, but the log ends with %s", a.name, a.head.Origin, last.origin)
		}
	case number < first.number && a.external:
		j.findAt(place{}, "partial_history", "%s is of %s, whose records are not among the files", a.name, a.head.Origin)
	}
}

// claimsOurKey reports whether a signature of the anchor names one of the
// log's own keys.
func (j *judge) claimsOurKey(a *heldAnchor) bool {
	for _, inc := range j.past {
		if inc.origin != "" && strings.Contains(string(a.note), "\n— "+inc.origin+" ") {
			return true
		}
	}
	return false
}

// rename gives an incarnation's public keys the name of another one: they stay
// the same over a chain break unless the operator changed them.
func (j *judge) rename(inc *incarnation, origin string) (vkeys []string) {
	for _, vkey := range inc.vkeys {
		if _, key, err := ParseVKey(vkey); err == nil {
			if vkey, err := VKey(origin, key); err == nil {
				vkeys = append(vkeys, vkey)
			}
		}
	}
	return append(vkeys, j.heldKeys(origin)...)
}

// comparePrevious compares an anchor of the incarnation before the first file
// with what its chain_break says of it.
func (j *judge) comparePrevious(a *heldAnchor, first *incarnation) {
	if !j.checkAnchor(a, &incarnation{origin: a.head.Origin, vkeys: j.rename(first, a.head.Origin)}) {
		return
	}
	switch {
	case a.head.Size > first.prevSize:
		j.findAt(place{}, "tail_truncated", "%s states %d records of %s, but the chain break follows %d", a.name, a.head.Size, a.head.Origin, first.prevSize)
	case a.head.Size == first.prevSize:
		j.compareAnchor(a, first.prevRoot)
		a.until = 0
	case a.external:
		j.findAt(place{}, "partial_history", "%s is of %s, whose records are not among the files", a.name, a.head.Origin)
	}
}
