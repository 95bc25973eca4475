package auditlog

import (
	"bytes"
	"strings"
	"testing"
)

func TestCleanLogsGiveNoFinding(t *testing.T) {
	v, lines := loadVector(t)
	vector := append(bytes.Join(lines, []byte("\n")), '\n')
	catalogue, small := catalogueLog(t), smallLog(t)
	if n := len(catalogue.leaves); n != 72 || len(catalogue.files) != 2 || len(catalogue.notes) != 7 || catalogue.epoch != 2 {
		t.Fatalf("the log under test has %d records, %d files, %d checkpoints, epoch %d", n, len(catalogue.files), len(catalogue.notes), catalogue.epoch)
	}
	cases := []struct {
		name    string
		sources []Source
		opts    VerifyOptions
		records uint64
	}{
		{"vectors", []Source{memorySource("vector", vector)}, VerifyOptions{Secret: []byte(v.Inputs.Secret)}, 3},
		{"catalogue", catalogue.sources(), catalogue.options(), 72},
		{"small", small.sources(), small.options(), 12},
		{"strict", catalogue.sources(), VerifyOptions{Secret: []byte(testSecret), Strict: true}, 72},
		{"origin pinned", catalogue.sources(), VerifyOptions{Secret: []byte(testSecret), Origin: catalogue.origin}, 72},
		{"public key alone", catalogue.sources(), VerifyOptions{PublicKey: catalogue.vkey()}, 72},
		{"an anchor for each checkpoint", catalogue.sources(), VerifyOptions{Secret: []byte(testSecret), Anchors: anchorsOf(catalogue)}, 72},
		{"four jobs", catalogue.sources(), VerifyOptions{Secret: []byte(testSecret), Jobs: 4}, 72},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := verifyTest(t, c.sources, c.opts)
			if len(r.Findings) > 0 || r.Exit != ExitClean || r.Records != c.records || r.Verified != int(c.records) {
				t.Fatalf("%d records, exit %d, findings %+v", r.Records, r.Exit, r.Findings)
			}
		})
	}
}

func anchorsOf(l *testLog) (list []Anchor) {
	for i, n := range l.notes {
		list = append(list, Anchor{Name: "anchor" + string(rune('0'+i)), Note: n})
	}
	return list
}

func TestTheReportSaysWhatNoAnchorCovers(t *testing.T) {
	l := smallLog(t)
	r := verifyTest(t, l.sources(), l.options())
	if got := r.NotCoveredSentence(); got != "records 1..12 are not covered by any external anchor" {
		t.Fatal(got)
	}
	opts := l.options()
	opts.Anchors = []Anchor{{"held", l.notes[0]}}
	r = verifyTest(t, l.sources(), opts)
	if got := r.NotCoveredSentence(); got != "records 6..12 are not covered by any external anchor" || r.Watermarks.AnchoredBy[0].Name != "held" {
		t.Fatal(got, r.Watermarks)
	}
	opts.Anchors = []Anchor{{"held", l.note()}}
	r = verifyTest(t, l.sources(), opts)
	if got := r.NotCoveredSentence(); !strings.HasSuffix(got, "not covered by any external anchor") || r.Exit != 0 || r.NotCovered[0] <= r.NotCovered[1] {
		t.Fatal(got, r.NotCovered)
	}
}
