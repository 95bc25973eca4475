package redact

// frame is what is known of an open container, beside its marks.
type frame struct {
	states uint64 // the steps of paths that may match its children
	index  int    // of the next element
	// Of an object that holds a name and a value, as {"name":"password",
	// "value":"x"}: whether the name is that of a secret, and where the value is.
	named              bool
	valuing            bool // its value is being read
	valueFrom, valueTo int
}

// isPairName reports whether a member with this decoded name may hold the name
// of what another member is the value of.
func isPairName(name []byte) bool {
	switch string(name) {
	case "name", "key", "header", "field", "parameter", "variable", "Name", "Key":
		return true
	}
	return false
}

// isPairValue is isPairName for the value.
func isPairValue(name []byte) bool {
	switch string(name) {
	case "value", "val", "Value":
		return true
	}
	return false
}

// pairName takes the name of a pair, the string text[start:end]. A value that
// came before it is replaced now.
func (t *pass) pairName(start, end int, escaped bool) {
	name := t.text[start:end]
	if escaped {
		name = decode(nil, name)
	}
	frames := t.level.frames
	if len(frames) == 0 || t.s.p.judge(name) != secret {
		return
	}
	f := &frames[len(frames)-1]
	f.named = true
	if f.valueTo > f.valueFrom {
		t.replace(f.valueFrom, f.valueTo)
		t.level.unordered = true
	}
}

// arrangeEdits puts edits in order and drops those within another.
func (l *level) arrangeEdits() {
	if !l.unordered {
		return
	}
	sortEdits(l.edits)
	kept, end := l.edits[:0], -1
	for _, e := range l.edits {
		if e.start >= end {
			kept, end = append(kept, e), e.end
		}
	}
	l.edits, l.unordered = kept, false
}
