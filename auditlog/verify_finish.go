package auditlog

import "time"

// finish closes what is open and makes the report.
func (j *judge) finish() *Report {
	r := &j.report
	for code, n := range j.kinds {
		if n > 0 {
			r.Kinds[kindNames[code]] += n
		}
	}
	last := j.inc
	j.closeIncarnation()
	if r.Records == 0 && last == nil {
		j.findAt(place{}, "empty_log", "there is no record")
	}
	j.explainPartial()
	j.finishManifest()
	j.finishAnchors()
	if limit := j.opts.MaxSilence; limit > 0 && j.hasTime {
		if age := time.Duration(j.now - j.lastTime); age > limit {
			j.findAt(place{}, "stale_tail", "the newest record is %s old, more than %s: the log may have been cut", age.Round(time.Second), limit)
		}
	}
	j.finishMAC()
	if limit := j.opts.MaxErasures; limit != 0 && j.erasures > max(limit, 0) {
		j.f.addAs("erased_field", ClassTampered, place{}, "%d erasures, more than the %d that are allowed", j.erasures, max(limit, 0))
	}
	if last != nil {
		j.watermarks(last)
	}
	r.NotCovered = [2]uint64{r.Watermarks.Anchored + 1, r.Watermarks.Records}
	r.OriginPinned = j.pin.origin != ""
	r.Findings = j.f.list()
	r.Exit = j.f.exit(j.opts.Strict)
	return r
}

// finishMAC says what an unchecked MAC means. A public key stands in for it,
// if at least one checkpoint was checked with it.
func (j *judge) finishMAC() {
	j.report.MAC = MACUnchecked
	if j.keys.available() {
		if j.macChecked {
			j.report.MAC = MACChecked
		}
		return
	}
	signed := false
	for _, inc := range j.past {
		signed = signed || inc.checkpointed > 0
	}
	switch {
	case j.pin.public == nil:
		j.findAt(place{}, "mac_unchecked", "no MAC key was given: only the chain was checked, and checkpoints with the key that the log itself names")
	case !signed:
		j.findAt(place{}, "mac_unchecked", "no MAC key was given, and no checkpoint in the log is signed with the public key")
	}
}

func (j *judge) watermarks(last *incarnation) {
	r := &j.report
	r.Origin, r.First = last.origin, last.first
	w := &r.Watermarks
	w.Records, w.Checkpointed = last.size, last.checkpointed
	for _, a := range j.anchors {
		if !a.compared || a.cursor {
			continue
		}
		switch {
		case !a.external:
			if a.head.Origin == last.origin {
				w.Beside = a.head.Size
			}
			continue
		case a.head.Origin == last.origin:
			w.Anchored = max(w.Anchored, a.head.Size)
		}
		by := AnchoredBy{Name: a.name, Origin: a.head.Origin, Size: a.head.Size, Witnesses: a.cosigned}
		if a.until != 0 {
			by.Until = time.Unix(0, a.until).UTC()
		}
		w.AnchoredBy = append(w.AnchoredBy, by)
	}
}
