package auditlog

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// tampering is one row of the tamper catalogue: what is done to the log under
// test, and which findings must follow.
type tampering struct {
	row    string
	name   string
	change func(l *testLog)                          // of the files
	opts   func(l *testLog, o *VerifyOptions)        // beyond the keys
	want   []string                                  // any of them
	only   bool                                      // and no other finding
	exit   int                                       // 0: what the finding's class says
	check  func(t *testing.T, l *testLog, r *Report) // further demands
}

const middle = 21 // a line of file 0 in the middle of the log, without openings

// cutLines removes lines from the end of a file.
func cutLines(file, n int) func(*testLog) {
	return func(l *testLog) { l.files[file] = l.files[file][:len(l.files[file])-n] }
}

// edit replaces a text in the first line of a file that has it.
func edit(file int, old, with string) func(*testLog) {
	return func(l *testLog) {
		for i, line := range l.files[file] {
			if i > 2 && strings.Contains(line, old) {
				l.files[file][i] = strings.Replace(line, old, with, 1)
				return
			}
		}
		l.t.Fatalf("no line has %q", old)
	}
}

// editLine changes the middle line.
func editLine(f func(string) string) func(*testLog) {
	return func(l *testLog) { l.files[0][middle] = f(l.files[0][middle]) }
}

// anchor gives the verifier the checkpoint of a number, from the end if below 0.
func anchor(n int) func(*testLog, *VerifyOptions) {
	return func(l *testLog, o *VerifyOptions) {
		if n < 0 {
			n += len(l.notes)
		}
		o.Anchors = []Anchor{{"held", l.notes[n]}}
	}
}

// reseal seals all records from one on again, after bodies were changed. mac
// says which MAC a record gets; nil keeps the old one.
func reseal(l *testLog, from uint64, change func(seq uint64, body string) string, mac func(s *Seal)) {
	chain := GenesisChain(l.origin)
	seq := uint64(0)
	l.leaves = nil
	for f, lines := range l.files {
		for i, text := range lines {
			line, fault := SplitLine([]byte(text))
			if fault != LineOK {
				l.t.Fatal(fault)
			}
			s := line.Seal
			body := string(line.Body())
			if seq >= from {
				body = change(seq, body)
				s.Seq, s.Leaf = seq, LeafHash([]byte(body))
				s.Chain = ChainHash(chain, seq, s.Leaf)
				if mac != nil {
					mac(&s)
				}
				out := AppendLine(nil, []byte(body), &s, line.Open)
				l.files[f][i] = string(out[:len(out)-1])
			}
			l.leaves = append(l.leaves, s.Leaf)
			chain = s.Chain
			seq++
		}
	}
	l.chain, l.seq = chain, seq
}

func (l *testLog) epochKey(epoch uint64) []byte {
	key := StaticKey([]byte(l.secret), "k1")
	for e := uint64(1); e <= epoch; e++ {
		key = evolveKey(key, l.origin, e)
	}
	return key
}

// goodMAC seals a record with the right key of its epoch.
func goodMAC(l *testLog) func(*Seal) {
	return func(s *Seal) { s.MAC = newMacer(macKey(l.epochKey(s.Epoch))).mac(s.Chain) }
}

func rewriteSeven(seq uint64, body string) string {
	if seq == 7 {
		return strings.Replace(body, `"success"`, `"denied"`, 1)
	}
	return body
}

func same(_ uint64, body string) string { return body }

func catalogueRows() []tampering {
	return slices.Concat(recordRows(), orderRows(), tailRows(), segmentRows(), keyRows(), checkpointRows(), openingRows(), timeRows())
}

func TestTamperCatalogue(t *testing.T) {
	for _, row := range catalogueRows() {
		t.Run(row.row+" "+row.name, func(t *testing.T) { row.run(t, (*testLog).sources) })
	}
}

// run does the row's manipulation and requires its findings, of sources that
// are made of the manipulated log.
func (row tampering) run(t *testing.T, sources func(*testLog) []Source) {
	l := catalogueLog(t)
	if row.change != nil {
		row.change(l)
	}
	opts := l.options()
	if row.opts != nil {
		row.opts(l, &opts)
	}
	r := verifyTest(t, sources(l), opts)
	fitsSchema(t, r)
	found := slices.ContainsFunc(r.Findings, func(f Finding) bool { return slices.Contains(row.want, f.Kind) })
	// A database tells the same once more, of its columns.
	others := slices.DeleteFunc(slices.Clone(r.Findings), func(f Finding) bool { return f.Kind == "derived_column_mismatch" })
	if !found && len(row.want) > 0 || row.only && len(others) != 1 {
		t.Fatalf("want %v, got %s\n%+v", row.want, kindsFound(r), r.Findings)
	}
	if want := row.exitCode(); want >= 0 && r.Exit != want {
		t.Errorf("exit %d, want %d: %s", r.Exit, want, kindsFound(r))
	}
	if row.check != nil {
		row.check(t, l, r)
	}
}

// exitCode is the exit code that a row demands, or -1.
func (row tampering) exitCode() int {
	switch {
	case row.exit > 0:
		return row.exit
	case len(row.want) == 0:
		return -1
	}
	return map[string]int{
		ClassTampered: ExitTampered, ClassDiverges: ExitDiverges, ClassIncomplete: ExitIncomplete, ClassWarning: ExitClean,
	}[ClassOf(row.want[0])]
}

func recordRows() []tampering {
	return []tampering{
		{row: "1", name: "a value flipped", change: edit(0, `"success"`, `"denied"`), want: []string{"content_modified"}, only: true, exit: 1},
		{row: "2", name: "only the time stamp changed", change: edit(0, `:05.000000000Z`, `:06.000000000Z`), want: []string{"content_modified"}, only: true},
		{row: "3", name: "a space inserted", change: edit(0, `"kind":"outcome"`, `"kind": "outcome"`), want: []string{"content_modified"}},
		{row: "4", name: "a member added", change: edit(0, `{"audit_operation_id"`, `{"a":1,"audit_operation_id"`), want: []string{"content_modified"}},
		{row: "5", name: "a case variant added", change: edit(0, `"params":`, `"PARAMS":1,"params":`), want: []string{"content_modified"}},
		{row: "6", name: "a record of the reference system", change: editLine(func(string) string {
			return `{"id":"01KSFJ35VE44H269154RKJGA9A","timestamp":"2026-05-25T12:34:57.51825Z","method":"tools/call","signature":"4f","integrity":{"version":2}}`
		}), want: []string{"downgrade"}},
		{row: "7", name: "key id changed", change: edit(0, `"key_id":"k1","epoch"`, `"key_id":"k2","epoch"`), want: []string{"unknown_key"}, only: true},
		{row: "8", name: "a second seal", change: editLine(func(s string) string {
			return s[:len(s)-1] + s[strings.LastIndex(s, sealStart):]
		}), want: []string{"content_modified", "not_canonical"}},
		{row: "9", name: "a leading zero", change: editLine(func(s string) string {
			return strings.Replace(s, `"seq":21,"leaf"`, `"seq":021,"leaf"`, 1)
		}), want: []string{"seal_malformed", "unsealed_record"}},
		{row: "10", name: "blank lines", change: func(l *testLog) { l.files[0] = slices.Insert(l.files[0], middle, "", "") },
			want: []string{"malformed_line"}, only: true},
		{row: "11", name: "byte order mark", change: func(l *testLog) { l.files[0][0] = "\xef\xbb\xbf" + l.files[0][0] },
			want: []string{"content_modified", "not_canonical"}},
		{row: "67", name: "exported with other escapes", change: func(l *testLog) {
			for f := range l.files {
				for i, line := range l.files[f] {
					l.files[f][i] = strings.ReplaceAll(line, "→", `\u2192`)
				}
			}
		}, want: []string{"content_modified"}, exit: 1},
		{row: "12", name: "a hole of NUL bytes", change: editLine(func(s string) string { return strings.Repeat("\x00", len(s)) }),
			want: []string{"malformed_line"}},
	}
}

func orderRows() []tampering {
	return []tampering{
		{row: "13", name: "a record deleted", change: func(l *testLog) { l.files[0] = slices.Delete(l.files[0], middle, middle+1) }, want: []string{"seq_gap"}},
		{row: "14", name: "a run deleted", change: func(l *testLog) { l.files[0] = slices.Delete(l.files[0], middle, middle+9) }, want: []string{"seq_gap"}},
		{row: "15", name: "two swapped", change: func(l *testLog) {
			f := l.files[0]
			f[middle], f[middle+1] = f[middle+1], f[middle]
		}, want: []string{"seq_gap"}},
		{row: "16", name: "one written twice", change: func(l *testLog) {
			l.files[1] = slices.Insert(l.files[1], 20, l.files[1][10])
		}, want: []string{"duplicate_record"}, only: true, exit: 1},
		{row: "16", name: "genesis written twice", change: func(l *testLog) {
			l.files[1] = slices.Insert(l.files[1], 20, l.files[0][0])
		}, want: []string{"duplicate_record"}, only: true, exit: 1},
		{row: "17", name: "two records with one seq", change: func(l *testLog) {
			other := catalogueLog(l.t)
			reseal(other, 7, rewriteSeven, goodMAC(other))
			l.files[0] = slices.Insert(l.files[0], 8, other.files[0][7])
		}, want: []string{"fork"}, only: true, exit: 1},
		{row: "18", name: "another log of the same secret", change: func(l *testLog) {
			other := newTestLog(l.t, "audit.example/other")
			other.genesis()
			l.files = other.files
		}, opts: func(_ *testLog, o *VerifyOptions) { o.Origin = "audit.example/test/i0" }, want: []string{"foreign_log"}, exit: 1},
		{row: "18", name: "another log, public key given", change: func(l *testLog) {
			other := newTestLog(l.t, "audit.example/other")
			other.genesis()
			other.checkpoint()
			l.files = other.files
		}, opts: func(l *testLog, o *VerifyOptions) { *o = VerifyOptions{PublicKey: l.vkey()} }, want: []string{"foreign_log"}, exit: 1},
		{row: "19", name: "a second genesis", change: func(l *testLog) {
			other := newTestLog(l.t, "audit.example/test")
			other.now = l.now
			other.genesis()
			other.add("start", body{"version": "again"})
			l.files[1] = append(l.files[1], other.files[0]...)
		}, want: []string{"second_genesis"}},
		{row: "19", name: "a second genesis that goes on counting", change: func(l *testLog) { l.genesis() }, want: []string{"second_genesis"}, only: true},
	}
}

func tailRows() []tampering {
	return []tampering{
		{row: "20", name: "tail cut, keys only", change: cutLines(1, 3), check: func(t *testing.T, _ *testLog, r *Report) {
			if r.Exit != ExitClean || r.NotCoveredSentence() != "records 1..69 are not covered by any external anchor" {
				t.Errorf("exit %d, %s, %s", r.Exit, r.NotCoveredSentence(), kindsFound(r))
			}
		}},
		{row: "21", name: "tail cut, anchor held", change: cutLines(1, 3), opts: anchor(-1), want: []string{"tail_truncated"}, exit: 4},
		{row: "21", name: "tail cut, checkpoint file beside", change: cutLines(1, 3), opts: func(l *testLog, o *VerifyOptions) {
			o.Beside = []Anchor{{"beside", l.notes[6]}}
		}, want: []string{"tail_truncated"}, exit: 4},
		{row: "22", name: "closed segment cut", change: cutLines(1, 3), opts: func(_ *testLog, o *VerifyOptions) { o.Closed = true }, want: []string{"segment_unclosed"}, exit: 1},
		{row: "22", name: "closed segment whole", change: func(l *testLog) {
			l.add("segment_end", body{"segment": l.segment})
		}, opts: func(_ *testLog, o *VerifyOptions) { o.Closed = true }, check: noFinding},
		{row: "23", name: "tail cut, verified 48 h later", change: cutLines(1, 3), opts: func(l *testLog, o *VerifyOptions) {
			o.MaxSilence = 30 * time.Minute
			o.Now = func() time.Time { return l.now.Add(48 * time.Hour) }
		}, want: []string{"stale_tail"}, only: true, exit: 3},
		{row: "25", name: "emptied", check: func(t *testing.T, l *testLog, _ *Report) {
			r := verifyTest(t, []Source{memorySource("empty", nil)}, l.options())
			if kindsFound(r) != "empty_log×1" || r.Exit != ExitTampered {
				t.Errorf("exit %d, %s", r.Exit, kindsFound(r))
			}
		}},
		{row: "26", name: "cut, then a chain break", change: func(l *testLog) {
			cutLines(1, 10)(l)
			l.chainBreak(72, 10)
			l.add("start", body{"version": "again"})
		}, want: []string{"chain_break"}, check: func(t *testing.T, _ *testLog, r *Report) {
			broken := r.Findings[len(r.Findings)-1]
			if broken.Kind != "chain_break" || !strings.Contains(broken.Detail, "62 to 71") || !strings.Contains(broken.Detail, "alice") || r.Exit != 0 {
				t.Errorf("exit %d, %+v", r.Exit, r.Findings)
			}
		}},
		{row: "26", name: "chain break, old anchor held", change: func(l *testLog) {
			cutLines(1, 10)(l)
			l.chainBreak(62, 0)
		}, opts: anchor(-1), want: []string{"tail_truncated"}, exit: 4},
		{row: "26", name: "chain break alone, old anchor held", change: func(l *testLog) {
			l.chainBreak(62, 10)
			l.files = l.files[2:]
		}, opts: anchor(-1), want: []string{"tail_truncated"}, exit: 4},
		{row: "26", name: "chain break skips an incarnation", change: func(l *testLog) {
			l.origin = "audit.example/test/i1"
			l.chainBreak(72, 0)
		}, want: []string{"foreign_log"}},
	}
}

func noFinding(t *testing.T, _ *testLog, r *Report) {
	t.Helper()
	if len(r.Findings) > 0 || r.Exit != 0 {
		t.Errorf("exit %d, %+v", r.Exit, r.Findings)
	}
}

func noTampering(t *testing.T, _ *testLog, r *Report) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Class == ClassTampered {
			t.Errorf("class T: %+v", f)
		}
	}
}
