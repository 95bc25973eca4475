package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var cursorKey = []byte("a key of the verifier, 32 bytes!")

// upTo is a log's beginning: its first n records.
func upTo(l *testLog, n int) []Source {
	var list []Source
	for i, lines := range l.files {
		lines = lines[:min(n, len(lines))]
		n -= len(lines)
		if len(lines) == 0 {
			break
		}
		list = append(list, memorySource(fmt.Sprintf("file%d", i), []byte(strings.Join(lines, "\n")+"\n")))
	}
	return list
}

// cursorAt verifies the first n records and returns the cursor, as a file
// gives it back.
func cursorAt(t *testing.T, l *testLog, n int, opts VerifyOptions) *Cursor {
	t.Helper()
	c := verifyTest(t, upTo(l, n), opts).Cursor()
	if c == nil {
		t.Fatalf("no cursor after %d records", n)
	}
	text, err := c.Encode(cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseCursor(text, cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	if again.Records() != uint64(n) || again.Origin() != l.origin {
		t.Fatalf("the cursor is at %d of %s", again.Records(), again.Origin())
	}
	return again
}

// comparable is a report without what a resumed run says otherwise.
func comparableReport(r *Report) Report {
	c := *r
	c.Kinds, c.Records, c.Verified, c.Total, c.Resumed, c.cursor, c.UnknownOutcomes = nil, 0, 0, 0, nil, nil, 0
	c.Findings = slices.Clone(c.Findings)
	for i := range c.Findings {
		// An operation that was open at the cursor has no line any more.
		c.Findings[i].File, c.Findings[i].Line = "", 0
	}
	return c
}

func TestAVerificationGoesOnBehindACursorAtEveryRecord(t *testing.T) {
	full := catalogueLog(t)
	total := int(full.seq)
	for _, anchored := range []bool{false, true} {
		opts := full.options()
		if anchored {
			opts.Anchors = []Anchor{{"held", full.notes[len(full.notes)-1]}}
		}
		want := verifyTest(t, full.sources(), opts)
		for n := 1; n <= total; n++ {
			early := full.options()
			opts.Cursor = cursorAt(t, full, n, early)
			got := verifyTest(t, full.sources(), opts)
			if got.Resumed == nil || got.Resumed.Records != uint64(n) || got.Records != want.Records-uint64(n) || got.CursorUnused != "" {
				t.Fatalf("after %d: %+v, %d records, %q", n, got.Resumed, got.Records, got.CursorUnused)
			}
			if a, b := comparableReport(got), comparableReport(want); !reflect.DeepEqual(a, b) {
				t.Fatalf("after %d:\n%+v\nwant\n%+v", n, a, b)
			}
			next, err := got.Cursor().Encode(cursorKey)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := want.Cursor().Encode(cursorKey)
			if err != nil || !sameCursor(t, next, whole) {
				t.Fatalf("after %d the next cursor is\n%s\nwant\n%s", n, next, whole)
			}
		}
	}
}

// sameCursor compares two cursors but for the order of sets in them.
func sameCursor(t *testing.T, a, b []byte) bool {
	t.Helper()
	x, err := ParseCursor(a, cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	y, err := ParseCursor(b, cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Cursor{x, y} {
		slices.Sort(c.s.Named)
		slices.SortFunc(c.s.Open, func(a, b cursorIntent) int { return int(a.Seq) - int(b.Seq) })
	}
	return reflect.DeepEqual(x, y)
}

// Whatever is done to records behind the cursor is found as without it.
func TestTheCatalogueIsFoundBehindACursor(t *testing.T) {
	const at = 3
	ran := 0
	for _, row := range catalogueRows() {
		if row.change == nil {
			continue
		}
		t.Run(row.row+" "+row.name, func(t *testing.T) {
			l := catalogueLog(t)
			clean := cursorAt(t, l, at, l.options())
			before := slices.Clone(l.files[0][:at])
			row.change(l)
			opts := l.options()
			if row.opts != nil {
				row.opts(l, &opts)
			}
			want := verifyTest(t, l.sources(), opts)
			opts.Cursor, opts.CursorName = clean, "cursor"
			got := verifyTest(t, l.sources(), opts)
			untouched := len(l.files) > 0 && len(l.files[0]) >= at && slices.Equal(before, l.files[0][:at])
			if want.Exit != ExitClean && got.Exit == ExitClean && untouched {
				t.Errorf("%s is not found: full %s, resumed %+v", row.name, kindsFound(want), got.Resumed)
			}
			if untouched && got.Resumed != nil && got.Exit != want.Exit {
				t.Errorf("exit %d (%s), want %d (%s)", got.Exit, kindsFound(got), want.Exit, kindsFound(want))
			}
			ran++
		})
	}
	if ran < 50 {
		t.Errorf("only %d rows ran", ran)
	}
}

func TestACursorHoldsTheLogToWhatItSaw(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testLog)
		want   string
		exit   int
	}{
		"cut behind":     {func(l *testLog) { cutLines(1, 10)(l) }, "tail_truncated", ExitDiverges},
		"made again":     {resignAll, "anchor_mismatch", ExitDiverges},
		"of another log": {func(l *testLog) { *l = *smallLog(l.t) }, "anchor_foreign", ExitDiverges},
		"last file gone": {func(l *testLog) { l.files = l.files[:1] }, "tail_truncated", ExitDiverges},
	} {
		t.Run(name, func(t *testing.T) {
			l := catalogueLog(t)
			opts := l.options()
			opts.Cursor, opts.CursorName = cursorAt(t, l, int(l.seq), l.options()), "my.cursor"
			c.change(l)
			r := verifyTest(t, l.sources(), opts)
			if r.Resumed != nil || r.CursorUnused == "" || !strings.Contains(kindsFound(r), c.want) || r.Exit != c.exit {
				t.Errorf("exit %d, %s, unused %q", r.Exit, kindsFound(r), r.CursorUnused)
			}
			if r.Cursor() != nil {
				t.Error("a cursor was made of a log that is not what was written")
			}
		})
	}
}

func TestAFileThatIsGoneBehindACursorIsSaid(t *testing.T) {
	l := catalogueLog(t)
	opts := l.options()
	opts.Cursor = cursorAt(t, l, int(l.seq), l.options())
	want := verifyTest(t, l.sources()[1:], l.options())
	got := verifyTest(t, l.sources()[1:], opts)
	if got.Resumed == nil || got.Exit != want.Exit || kindsFound(got) != kindsFound(want) || got.First != want.First {
		t.Errorf("exit %d %s from %d, want %d %s from %d", got.Exit, kindsFound(got), got.First, want.Exit, kindsFound(want), want.First)
	}
}

func TestACursorIsOnlyUsedWhereItChecksAsMuch(t *testing.T) {
	l := catalogueLog(t)
	keys := l.options()
	cases := map[string]struct {
		made, used func(*VerifyOptions)
		why        string
	}{
		"strict":        {nil, func(o *VerifyOptions) { o.Strict = true }, "--strict"},
		"keys":          {func(o *VerifyOptions) { *o = VerifyOptions{Now: o.Now} }, nil, "MACs"},
		"public key":    {nil, func(o *VerifyOptions) { o.PublicKey = l.vkey() }, "public key"},
		"origin":        {nil, func(o *VerifyOptions) { o.Origin = l.origin }, "origin"},
		"an old anchor": {nil, func(o *VerifyOptions) { o.Anchors = []Anchor{{"old.note", oldNote(t, l)}} }, "old.note"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			made, used := keys, keys
			if c.made != nil {
				c.made(&made)
			}
			if c.used != nil {
				c.used(&used)
			}
			used.Cursor, used.CursorName = cursorAt(t, l, 60, made), "my.cursor"
			r := verifyTest(t, l.sources(), used)
			if r.Resumed != nil || !strings.Contains(r.CursorUnused, c.why) {
				t.Errorf("resumed %+v, %q", r.Resumed, r.CursorUnused)
			}
			if r.Exit != ExitClean || r.Records != l.seq {
				t.Errorf("exit %d %s, %d records", r.Exit, kindsFound(r), r.Records)
			}
		})
	}
	// An anchor that is one of the log's own checkpoints was compared with them.
	known := keys
	known.Anchors = []Anchor{{"held", l.notes[2]}}
	known.Cursor = cursorAt(t, l, 60, keys)
	if r := verifyTest(t, l.sources(), known); r.Resumed == nil || r.Watermarks.Anchored != l.sizes[2] {
		t.Errorf("resumed %+v, %q, %+v", r.Resumed, r.CursorUnused, r.Watermarks)
	}
	// A forged one of that size is found all the same.
	forged, err := SignTreeHead(TreeHead{l.origin, l.sizes[2], Hash{1}}, l.private)
	if err != nil {
		t.Fatal(err)
	}
	known.Anchors = []Anchor{{"held", forged}}
	if r := verifyTest(t, l.sources(), known); r.Exit != ExitDiverges || !strings.Contains(kindsFound(r), "anchor_mismatch") {
		t.Errorf("a forged anchor: exit %d %s", r.Exit, kindsFound(r))
	}
}

// oldNote is a good checkpoint of a size at which the log has none.
func oldNote(t *testing.T, l *testLog) []byte {
	t.Helper()
	var tree Range
	for _, leaf := range l.leaves[:7] {
		tree.Append(leaf)
	}
	signed, err := SignTreeHead(TreeHead{l.origin, 7, tree.Root()}, l.private)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func TestACursorThatWasTouchedIsRefused(t *testing.T) {
	l := smallLog(t)
	text, err := cursorAt(t, l, int(l.seq), l.options()).Encode(cursorKey)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		for _, bit := range []byte{0x01, 0x20} {
			changed := bytes.Clone(text)
			changed[i] ^= bit
			if _, err := ParseCursor(changed, cursorKey); !errors.Is(err, ErrCursor) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
		}
	}
	for n := range text {
		if _, err := ParseCursor(text[:n], cursorKey); !errors.Is(err, ErrCursor) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := ParseCursor(text, []byte("another key of the verifier, 32!")); !errors.Is(err, ErrCursor) {
		t.Errorf("another key: %v", err)
	}
	if _, err := (&Cursor{}).Encode([]byte("short")); err == nil {
		t.Error("a short key is accepted")
	}
}

func TestEveryByteBehindACursorIsStillChecked(t *testing.T) {
	l := smallLog(t)
	at := 4
	opts := l.options()
	opts.Cursor = cursorAt(t, l, at, l.options())
	text := l.text(0)
	start := len(strings.Join(l.files[0][:at], "\n")) + 1
	for i := start; i < len(text); i++ {
		changed := bytes.Clone(text)
		changed[i] ^= 0x01
		r := verifyTest(t, []Source{memorySource("file0", changed)}, opts)
		if r.Exit == ExitClean {
			t.Fatalf("byte %d of %d: not found", i, len(text))
		}
	}
}

func TestAnOpenOperationIsClosedBehindACursor(t *testing.T) {
	l := smallLog(t)
	seq := l.intent(9, false)
	n := int(l.seq)
	l.now = l.now.Add(time.Second)
	opts := l.options()
	opts.Cursor = cursorAt(t, l, n, opts)
	r := verifyTest(t, l.sources(), opts)
	if kindsFound(r) != "outcome_missing×1" || *r.Findings[0].Seq != seq || !strings.Contains(r.Findings[0].Detail, "read_file") {
		t.Errorf("%+v", r.Findings)
	}
	l.outcome(9, seq, "success")
	if r := verifyTest(t, l.sources(), opts); len(r.Findings) > 0 || r.OpenIntents != 0 || r.Resumed == nil {
		t.Errorf("%+v, %d open", r.Findings, r.OpenIntents)
	}
	l.outcome(9, seq, "success")
	if r := verifyTest(t, l.sources(), opts); !strings.Contains(kindsFound(r), "outcome_orphan") {
		t.Errorf("a second outcome: %s", kindsFound(r))
	}
}

// No bytes but those that Encode wrote make a cursor.
func FuzzParseCursor(f *testing.F) {
	l := smallLog(f)
	r, err := Verify(f.Context(), l.sources(), l.options())
	if err != nil {
		f.Fatal(err)
	}
	good, err := r.Cursor().Encode(cursorKey)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCursor(data, cursorKey)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Errorf("%v is no ErrCursor", err)
			}
			return
		}
		again, err := c.Encode(cursorKey)
		if err != nil || !bytes.Equal(again, data) {
			t.Errorf("a cursor that was not written by Encode: %q", data)
		}
	})
}
