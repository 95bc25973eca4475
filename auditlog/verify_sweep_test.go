package auditlog

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// stops reports whether a report has a finding of class T, D or I.
func stops(r *Report) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Class != ClassWarning })
}

func verifyBytes(t testing.TB, l *testLog, data []byte, anchors ...[]byte) *Report {
	t.Helper()
	opts := l.options()
	opts.PublicKey = l.vkey()
	for i, n := range anchors {
		opts.Anchors = append(opts.Anchors, Anchor{fmt.Sprint(i), n})
	}
	r := verifyTest(t, []Source{memorySource("log", data)}, opts)
	if len(data) > 0 && r.Total == 0 && !stops(r) {
		t.Fatal("the scan stopped early")
	}
	return r
}

func TestEveryChangedByteIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in full without the race detector")
	}
	l := smallLog(t)
	data := l.text(0)
	if r := verifyBytes(t, l, data, l.notes...); len(r.Findings) > 0 {
		t.Fatalf("%+v", r.Findings)
	}
	for _, mask := range []byte{0x01, 0x20} {
		for i := range data {
			data[i] ^= mask
			if r := verifyBytes(t, l, data); !stops(r) {
				t.Errorf("byte %d ^ %#x is not found: %s", i, mask, kindsFound(r))
			}
			data[i] ^= mask
		}
	}
}

func TestEveryChangedByteOfAnAnchorIsFound(t *testing.T) {
	l := smallLog(t)
	data := l.text(0)
	for _, good := range l.notes {
		n := bytes.Clone(good)
		for _, mask := range []byte{0x01, 0x20} {
			for i := range n {
				n[i] ^= mask
				if r := verifyBytes(t, l, data, n); !stops(r) {
					t.Errorf("byte %d ^ %#x of %q is not found", i, mask, n)
				}
				n[i] ^= mask
			}
		}
	}
}

func TestEveryTruncationIsFoundWithAnAnchor(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in full without the race detector")
	}
	l := smallLog(t)
	data := l.text(0)
	held := l.notes[len(l.notes)-1]
	size := int(l.sizes[len(l.sizes)-1])
	// Cutting exactly the records behind the anchored ones cannot be found.
	end := 0
	for range size {
		end += bytes.IndexByte(data[end:], '\n') + 1
	}
	for n := range data {
		r := verifyBytes(t, l, data[:n], held)
		if stops(r) == (n == end) {
			t.Errorf("cut to %d bytes (anchored: %d): %s", n, end, kindsFound(r))
		}
	}
}

func TestEveryDeletedSwappedOrReplayedLineIsFound(t *testing.T) {
	l := smallLog(t)
	held := l.notes[len(l.notes)-1]
	size := int(l.sizes[len(l.sizes)-1])
	lines := bytes.SplitAfter(l.text(0), []byte("\n"))
	lines = lines[:len(lines)-1]
	for i := range lines {
		cut := slices.Delete(slices.Clone(lines), i, i+1)
		r := verifyBytes(t, l, bytes.Join(cut, nil), held)
		if stops(r) == (i >= size && len(lines) == size+1) {
			t.Errorf("deleted %d: %s", i, kindsFound(r))
		}
		for k := range lines {
			if k < i {
				swapped := slices.Clone(lines)
				swapped[i], swapped[k] = swapped[k], swapped[i]
				if r := verifyBytes(t, l, bytes.Join(swapped, nil), held); !stops(r) {
					t.Errorf("swapped %d and %d: %s", i, k, kindsFound(r))
				}
			}
			replayed := slices.Insert(slices.Clone(lines), k, lines[i])
			if r := verifyBytes(t, l, bytes.Join(replayed, nil), held); !stops(r) {
				t.Errorf("replayed %d at %d: %s", i, k, kindsFound(r))
			}
		}
		replayed := append(slices.Clone(lines), lines[i])
		if r := verifyBytes(t, l, bytes.Join(replayed, nil), held); kindsFound(r) != "duplicate_record×1" {
			t.Errorf("replayed %d at the end: %s", i, kindsFound(r))
		}
	}
}

func TestOneDamagedRecordIsOneFinding(t *testing.T) {
	l := smallLog(t)
	for i := range l.files[0] {
		data := l.text(0)
		start := 0
		for range i {
			start += bytes.IndexByte(data[start:], '\n') + 1
		}
		at := start + bytes.Index(data[start:], []byte(`"nonce":"`)) + 12
		data[at] ^= 0x01
		if r := verifyBytes(t, l, data); kindsFound(r) != "content_modified×1" {
			t.Errorf("record %d: %s", i, kindsFound(r))
		}
	}
}
