package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
)

func segmentRows() []tampering {
	return []tampering{
		{row: "29", name: "last segment deleted, anchor held", change: func(l *testLog) { l.files = l.files[:1] }, opts: anchor(-1), want: []string{"tail_truncated"}, exit: 4},
		{row: "30", name: "segments swapped", change: func(l *testLog) { slices.Reverse(l.files) },
			want: []string{"segment_boundary", "seq_regression", "second_genesis"}, exit: 1},
		{row: "31", name: "end of a closed segment cut", change: cutLines(0, 5), want: []string{"seq_gap"}, exit: 1, check: func(t *testing.T, _ *testLog, r *Report) {
			if kindsFound(r) != "outcome_missing×1 outcome_missing×1 seq_gap×1" {
				t.Error(kindsFound(r))
			}
		}},
		{row: "32", name: "first segment gone", change: func(l *testLog) { l.files = l.files[1:] }, opts: func(l *testLog, o *VerifyOptions) {
			o.PublicKey = l.vkey()
		}, want: []string{"partial_history"}, only: true, exit: 3, check: func(t *testing.T, l *testLog, r *Report) {
			noTampering(t, l, r)
			if r.Watermarks.Checkpointed != 71 {
				t.Errorf("checkpointed %d: the range was not taken over", r.Watermarks.Checkpointed)
			}
		}},
		{row: "33", name: "range forged", change: func(l *testLog) {
			l.files = l.files[1:]
			forgeRange(l)
		}, opts: func(l *testLog, o *VerifyOptions) {
			anchor(-1)(l, o)
			o.PublicKey = l.vkey()
		}, want: []string{"anchor_mismatch", "checkpoint_mismatch"}, exit: 1},
		{row: "34", name: "one segment twice", change: func(l *testLog) { l.files = append(l.files, l.files[1]) },
			want: []string{"duplicate_record"}, only: true, exit: 1},
		{row: "34", name: "first segment twice", change: func(l *testLog) { l.files = slices.Insert(l.files, 1, l.files[0]) },
			want: []string{"duplicate_record"}, exit: 1},
		{row: "35", name: "a further segment of another key", change: func(l *testLog) {
			l.k = StaticKey([]byte("another secret, as long"), "k1")
			l.nextSegment()
			l.add("start", body{"version": "x"})
		}, want: []string{"mac_invalid"}, exit: 1},
		{row: "35", name: "segments renumbered", change: func(l *testLog) {
			l.segment = 7
			l.nextSegment()
		}, want: []string{"segment_gap", "segment_boundary"}, exit: 1},
		{row: "", name: "closed segment without final LF", change: nil, check: func(t *testing.T, l *testLog, _ *Report) {
			sources := l.sources()
			sources[0] = memorySource("torn", bytes.TrimSuffix(l.text(0), []byte("\n")))
			if r := verifyTest(t, sources, l.options()); !strings.Contains(kindsFound(r), "torn_segment") || r.Exit != 1 {
				t.Errorf("%s", kindsFound(r))
			}
		}},
		{row: "24", name: "cut within the last line", check: func(t *testing.T, l *testLog, _ *Report) {
			sources := l.sources()
			sources[1] = memorySource("torn", l.text(1)[:len(l.text(1))-40])
			if r := verifyTest(t, sources, l.options()); kindsFound(r) != "torn_tail×1" || r.Exit != 3 {
				t.Errorf("exit %d %s", r.Exit, kindsFound(r))
			}
		}},
	}
}

// forgeRange gives the first file's segment_start other subtree roots, and
// seals everything again with the HMAC keys.
func forgeRange(l *testLog) {
	line, _ := SplitLine([]byte(l.files[0][0]))
	old := bodyView{line.Prefix}.raw("range")
	forged := bytes.Replace(old, old[2:6], []byte("AAAA"), 1)
	chain, _ := bodyView{line.Prefix}.hash("prev_chain")
	for i, text := range l.files[0] {
		line, _ := SplitLine([]byte(text))
		s := line.Seal
		body := line.Body()
		if i == 0 {
			body = bytes.Replace(body, old, forged, 1)
		}
		s.Leaf = LeafHash(body)
		s.Chain = ChainHash(chain, s.Seq, s.Leaf)
		goodMAC(l)(&s)
		chain = s.Chain
		out := AppendLine(nil, body, &s, line.Open)
		l.files[0][i] = string(out[:len(out)-1])
	}
}

func keyRows() []tampering {
	second := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, 32))
	return []tampering{
		{row: "36", name: "rewritten without keys", change: func(l *testLog) { reseal(l, 7, rewriteSeven, nil) }, want: []string{"mac_invalid"}, exit: 1},
		{row: "37", name: "the same, public key alone", change: func(l *testLog) { reseal(l, 7, rewriteSeven, nil) },
			opts: func(l *testLog, o *VerifyOptions) { *o = VerifyOptions{PublicKey: l.vkey()} }, want: []string{"checkpoint_mismatch"}, exit: 1},
		{row: "38", name: "rewritten with the current epoch key", change: func(l *testLog) {
			key := l.epochKey(2)
			reseal(l, 0, rewriteSeven, func(s *Seal) { s.Epoch, s.MAC = 2, newMacer(macKey(key)).mac(s.Chain) })
		}, want: []string{"epoch_violation"}, exit: 1},
		{row: "39", name: "the same, labelled with old epochs", change: func(l *testLog) {
			key := l.epochKey(2)
			reseal(l, 0, rewriteSeven, func(s *Seal) { s.MAC = newMacer(macKey(key)).mac(s.Chain) })
		}, want: []string{"mac_invalid"}, exit: 1, check: func(t *testing.T, _ *testLog, r *Report) {
			if !strings.Contains(r.Findings[0].Detail, "wrong key?") {
				t.Error(r.Findings[0])
			}
		}},
		{row: "40", name: "appended with a random key", change: func(l *testLog) {
			l.k = bytes.Repeat([]byte{1}, 32)
			l.add("start", body{"version": "x"})
		}, want: []string{"mac_invalid"}, only: true, exit: 1},
		{row: "41", name: "old key id after a rotation", change: func(l *testLog) {
			old := l.private
			l.rotate("k2", second, old, second)
			l.now = l.now.Add(time.Second)
			l.addKeyed(jcs(l.base("start", body{"version": "x"})), "", "k1", 0, StaticKey([]byte(l.secret), "k1"))
		}, want: []string{"key_range_violation"}, only: true, exit: 1},
		{row: "", name: "honest rotation", change: func(l *testLog) {
			old := l.private
			l.rotate("k2", second, old, second)
			l.add("start", body{"version": "x"})
			l.checkpoint()
		}, check: func(t *testing.T, l *testLog, r *Report) {
			noFinding(t, l, r)
			if r.Watermarks.Checkpointed != 74 {
				t.Error(r.Watermarks)
			}
		}},
		{row: "", name: "honest rotation, old public key pinned", change: func(l *testLog) {
			old := l.private
			l.rotate("k2", second, old, second)
			l.checkpoint()
		}, opts: func(l *testLog, o *VerifyOptions) {
			*o = VerifyOptions{PublicKey: catalogueLog(l.t).vkey()}
		}, check: noFinding},
		{row: "42", name: "rotation signed by the new key only", change: func(l *testLog) {
			l.rotate("k2", second, second)
		}, want: []string{"sig_invalid"}, only: true, exit: 1},
		{row: "44", name: "no key", opts: func(_ *testLog, o *VerifyOptions) { *o = VerifyOptions{} }, want: []string{"mac_unchecked"}, only: true, exit: 3,
			check: func(t *testing.T, _ *testLog, r *Report) {
				if r.MAC != "not checked" || r.Watermarks.Checkpointed != 71 {
					t.Error(r.MAC, r.Watermarks)
				}
			}},
		{row: "44", name: "public key", opts: func(l *testLog, o *VerifyOptions) { *o = VerifyOptions{PublicKey: l.vkey()} }, check: func(t *testing.T, l *testLog, r *Report) {
			noFinding(t, l, r)
			if r.MAC != "not checked" {
				t.Error(r.MAC)
			}
		}},
	}
}

func checkpointRows() []tampering {
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{3}, 32))
	return []tampering{
		{row: "45", name: "size of a checkpoint changed", change: edit(0, `i0\n10\n`, `i0\n11\n`), want: []string{"content_modified"}, only: true},
		{row: "46", name: "no checkpoints", change: func(l *testLog) {
			*l = *newTestLog(l.t, "audit.example/test")
			l.genesis()
			for n := range 30 {
				l.outcome(n, l.intent(n, false), "success")
			}
		}, opts: func(_ *testLog, o *VerifyOptions) { o.MaxUncheckpointed = 20 }, want: []string{"checkpoint_overdue"}, only: true, exit: 3},
		{row: "47", name: "all sealed again with the HMAC keys", change: func(l *testLog) { reseal(l, 7, rewriteSeven, goodMAC(l)) }, opts: anchor(-1),
			want: []string{"anchor_mismatch", "checkpoint_mismatch"}, exit: 1},
		{row: "48", name: "all made again with all keys", change: func(l *testLog) { resignAll(l) }, opts: func(l *testLog, o *VerifyOptions) {
			o.Anchors = []Anchor{{"old", catalogueLog(l.t).notes[3]}}
		}, want: []string{"anchor_mismatch"}, only: true, exit: 4},
		{row: "49", name: "anchor of another log", opts: func(l *testLog, o *VerifyOptions) {
			foreign := newTestLog(l.t, "audit.example/foreign")
			foreign.genesis()
			o.Anchors = []Anchor{{"foreign", foreign.note()}}
		}, want: []string{"anchor_foreign", "anchor_sig_invalid"}, only: true, exit: 4},
		{row: "49", name: "anchor of another key", opts: func(l *testLog, o *VerifyOptions) {
			l.private = other
			o.Anchors = []Anchor{{"foreign", l.note()}}
		}, want: []string{"anchor_sig_invalid"}, only: true, exit: 4},
		{row: "50", name: "anchor edited", opts: func(l *testLog, o *VerifyOptions) {
			o.Anchors = []Anchor{{"edited", bytes.Replace(l.notes[6], []byte("\n71\n"), []byte("\n70\n"), 1)}}
		}, want: []string{"anchor_sig_invalid"}, only: true, exit: 4},
		{row: "", name: "two anchors of one size", opts: func(l *testLog, o *VerifyOptions) {
			forged, _ := SignTreeHead(TreeHead{l.origin, 71, Hash{1}}, l.private)
			o.Anchors = []Anchor{{"a", l.notes[6]}, {"b", forged}}
		}, want: []string{"anchor_equivocation"}, exit: 4},
		{row: "53", name: "extension line", change: func(l *testLog) {
			head := TreeHead{l.origin, l.seq, l.treeRoot()}
			signer, _ := NoteSigner(l.origin, l.private)
			signed, _ := note.Sign(&note.Note{Text: head.Text() + "extension\n"}, signer)
			l.add("checkpoint", body{"note": string(signed)})
		}, want: []string{"checkpoint_sig_invalid"}, only: true, exit: 1},
		{row: "54", name: "10 000 signatures", opts: badNote(func(n []byte) []byte {
			sig := n[bytes.LastIndex(n, []byte("— ")):]
			return append(n, bytes.Repeat(sig, 10_000)...)
		}), want: []string{"note_malformed"}, only: true, exit: 1},
		{row: "54", name: "17 signatures", opts: badNote(func(n []byte) []byte {
			sig := n[bytes.LastIndex(n, []byte("— ")):]
			return append(n, bytes.Repeat(sig, 16)...)
		}), want: []string{"note_malformed"}, only: true, exit: 1},
		{row: "54", name: "carriage return", opts: badNote(func(n []byte) []byte { return bytes.Replace(n, []byte("\n"), []byte("\r\n"), 1) }),
			want: []string{"note_malformed"}, only: true, exit: 1},
		{row: "54", name: "invalid UTF-8", opts: badNote(func(n []byte) []byte { return append(n, 0xff, '\n') }), want: []string{"note_malformed"}, only: true, exit: 1},
		{row: "54", name: "in the log", change: func(l *testLog) { l.add("checkpoint", body{"note": "no note"}) }, want: []string{"note_malformed"}, only: true, exit: 1},
	}
}

func badNote(f func([]byte) []byte) func(*testLog, *VerifyOptions) {
	return func(l *testLog, o *VerifyOptions) { o.Anchors = []Anchor{{"bad", f(bytes.Clone(l.notes[6]))}} }
}

func (l *testLog) treeRoot() Hash {
	tree := l.tree()
	return tree.Root()
}

// resignAll rewrites a record and makes everything after it again, with every
// key.
func resignAll(l *testLog) {
	var tree Range
	reseal(l, 0, func(seq uint64, body string) string {
		body = rewriteSeven(seq, body)
		if strings.Contains(body, `"kind":"checkpoint"`) {
			signed, err := SignTreeHead(TreeHead{l.origin, seq, tree.Root()}, l.private)
			if err != nil {
				l.t.Fatal(err)
			}
			old := bodyView{[]byte(body[:len(body)-1])}.raw("note")
			body = strings.Replace(body, string(old), jcs(string(signed)), 1)
		}
		if strings.Contains(body, `"kind":"segment_start"`) {
			view := bodyView{[]byte(body[:len(body)-1])}
			var roots []string
			for _, root := range tree.Roots {
				roots = append(roots, root.String())
			}
			body = strings.Replace(body, string(view.raw("range")), jcs(roots), 1)
			line, _ := SplitLine([]byte(l.files[0][len(l.files[0])-1]))
			body = strings.Replace(body, string(view.raw("prev_chain")), jcs(line.Seal.Chain.String()), 1)
		}
		tree.Append(LeafHash([]byte(body)))
		return body
	}, goodMAC(l))
}

func openingRows() []tampering {
	erase := func(l *testLog) uint64 {
		for i, line := range l.files[0] {
			if at := strings.Index(line, `,"open":`); at > 0 && i > 3 {
				l.files[0][i] = line[:at] + "}"
				return uint64(i)
			}
		}
		l.t.Fatal("no opening")
		return 0
	}
	opened := func(l *testLog) (list []int) {
		for i, line := range l.files[0] {
			if strings.Contains(line, `,"open":`) {
				list = append(list, i)
			}
		}
		return list
	}
	record := func(l *testLog, target uint64, field string) {
		l.add("erasure", body{"target": target, "field": field, "reason": "request 7", "authorised_by": "privacy officer"})
	}
	return []tampering{
		{row: "55", name: "opened value altered", change: func(l *testLog) {
			i := opened(l)[1]
			l.files[0][i] = strings.Replace(l.files[0][i], `"name":"read_file"}]`, `"name":"read_filf"}]`, 1)
		}, want: []string{"opening_mismatch"}, only: true, exit: 1},
		{row: "55", name: "salt altered", change: func(l *testLog) {
			i := opened(l)[1]
			l.files[0][i] = strings.Replace(l.files[0][i], `"open":{"params":["A`, `"open":{"params":["B`, 1)
		}, want: []string{"opening_mismatch"}, only: true, exit: 1},
		{row: "56", name: "opening removed", change: func(l *testLog) { erase(l) }, want: []string{"opening_missing"}, only: true, exit: 1},
		{row: "57", name: "openings swapped", change: func(l *testLog) {
			list := opened(l)
			a, b := l.files[0][list[0]], l.files[0][list[1]]
			i, k := strings.Index(a, `,"open":`), strings.Index(b, `,"open":`)
			l.files[0][list[0]], l.files[0][list[1]] = a[:i]+b[k:], b[:k]+a[i:]
		}, want: []string{"opening_mismatch"}, exit: 1},
		{row: "58", name: "opening added", change: func(l *testLog) {
			i := opened(l)[0]
			l.files[0][i] = strings.Replace(l.files[0][i], `,"open":{`, `,"open":{"method":["AAAAAAAAAAAAAAAAAAAAAA",1],`, 1)
		}, want: []string{"opening_unbound"}, only: true, exit: 1},
		{row: "", name: "openings not canonical", change: func(l *testLog) {
			i := opened(l)[0]
			l.files[0][i] = strings.Replace(l.files[0][i], `,"open":{`, `,"open":{ `, 1)
		}, want: []string{"not_canonical"}, exit: 1},
		{row: "59", name: "legitimate erasure", change: func(l *testLog) { record(l, erase(l), "params") }, want: []string{"erased_field"}, only: true,
			check: func(t *testing.T, l *testLog, r *Report) {
				noTampering(t, l, r)
				if r.Exit != 0 || !strings.Contains(r.Findings[0].Detail, "privacy officer") || r.Findings[0].Line == 0 {
					t.Errorf("exit %d %+v", r.Exit, r.Findings)
				}
			}},
		{row: "59", name: "whole record erased", change: func(l *testLog) {
			line := l.files[0][middle]
			l.files[0][middle] = `{"erased":true` + line[strings.LastIndex(line, sealStart):]
			record(l, middle, "*")
		}, want: []string{"erased_record"}, check: noTampering},
		{row: "59", name: "whole record erased, no erasure record", change: func(l *testLog) {
			line := l.files[0][middle]
			l.files[0][middle] = `{"erased":true` + line[strings.LastIndex(line, sealStart):]
		}, want: []string{"content_modified"}, exit: 1},
		{row: "60", name: "mass erasure", change: func(l *testLog) {
			for range 3 {
				record(l, erase(l), "params")
			}
		}, opts: func(_ *testLog, o *VerifyOptions) { o.MaxErasures = 2 }, want: []string{"erased_field"}, exit: 1},
	}
}

func timeRows() []tampering {
	return []tampering{
		{row: "61", name: "clock set back", change: func(l *testLog) {
			l.now = l.now.Add(-time.Hour)
			l.add("start", body{"version": "x"})
			l.now = l.now.Add(time.Hour)
		}, want: []string{"time_regression"}, only: true},
		{row: "62", name: "dated into the future", change: func(l *testLog) {
			l.now = l.now.Add(time.Hour)
			l.add("start", body{"version": "x"})
			l.now = l.now.Add(-time.Hour)
		}, want: []string{"time_future"}, only: true},
		{row: "63", name: "gap record", change: func(l *testLog) {
			l.add("gap", body{"from": "2026-05-25T12:00:00.000000000Z", "to": "2026-05-25T12:01:00.000000000Z", "count": 17, "reason": "disk full"})
		}, want: []string{"gap"}, only: true, check: func(t *testing.T, _ *testLog, r *Report) {
			if !strings.Contains(r.Findings[0].Detail, "17 messages") || r.Exit != 0 {
				t.Error(r.Findings)
			}
		}},
		{row: "", name: "warnings count under strict", change: func(l *testLog) { l.add("novelty", nil) },
			opts: func(_ *testLog, o *VerifyOptions) { o.Strict = true }, want: []string{"unknown_kind"}, only: true, exit: 1},
		{row: "", name: "orphan outcome", change: func(l *testLog) { l.outcome(77, 3, "success") }, want: []string{"outcome_orphan"}, only: true, exit: 1},
		{row: "", name: "second outcome", change: func(l *testLog) { l.outcome(0, 2, "success") }, want: []string{"outcome_orphan"}, only: true, exit: 1},
		{row: "", name: "outcome of another operation", change: func(l *testLog) { l.outcome(78, l.intent(77, false), "success") },
			want: []string{"outcome_orphan"}, exit: 1},
		{row: "", name: "no outcome", change: func(l *testLog) { l.intent(77, false) }, want: []string{"outcome_missing"}, only: true,
			check: func(t *testing.T, _ *testLog, r *Report) {
				if r.Exit != 0 || r.OpenIntents != 1 || !strings.Contains(r.Findings[0].Detail, "read_file") {
					t.Error(r.Exit, r.Findings)
				}
			}},
		{row: "", name: "unknown outcome", change: func(l *testLog) { l.outcome(77, l.intent(77, false), "unknown") }, want: []string{"outcome_unknown"}, only: true,
			check: func(t *testing.T, _ *testLog, r *Report) {
				if r.Exit != 0 || r.UnknownOutcomes != 1 || !strings.Contains(r.Findings[0].Detail, "tools/call read_file on files") || !strings.Contains(r.Findings[0].Detail, operationID(77)) {
					t.Error(r.Exit, r.Findings)
				}
			}},
		{row: "", name: "line over the limit", change: func(l *testLog) { l.files[0] = slices.Insert(l.files[0], 5, strings.Repeat("x", 5000)) },
			opts: func(_ *testLog, o *VerifyOptions) { o.MaxLine = 4000 }, want: []string{"oversized_line"}, only: true, exit: 1},
		{row: "", name: "member seal in a sealed body", change: func(l *testLog) {
			l.addBody(jcs(l.base("start", body{"seal": "x"})), "")
		}, want: []string{"extra_member"}, exit: 1},
		{row: "", name: "a member behind the seal", change: func(l *testLog) {
			line := l.files[0][middle]
			l.files[0][middle] = line[:len(line)-1] + `,"note":1}`
		}, want: []string{"extra_member"}, only: true, exit: 1},
		{row: "", name: "sealed body that is not canonical", change: func(l *testLog) {
			l.addBody(strings.Replace(jcs(l.base("start", nil)), `,`, `, `, 1), "")
		}, want: []string{"not_canonical"}, exit: 1},
		{row: "", name: "sealed payload that is not canonical, strict", change: func(l *testLog) {
			l.addBody(strings.Replace(jcs(l.base("event", nil)), `:`, `: `, 1), "")
		}, opts: func(_ *testLog, o *VerifyOptions) { o.Strict = true }, want: []string{"not_canonical"}, exit: 1},
	}
}

func TestStrictSignaturesKnowsTheOneSpelling(t *testing.T) {
	l := smallLog(t)
	signed := l.notes[0]
	if !strictSignatures(signed) {
		t.Fatal("a good note is refused")
	}
	// The last character before "=" carries two bits that mean nothing.
	at := bytes.LastIndexByte(signed, '=') - 1
	v := bytes.IndexByte([]byte(b64Alphabet), signed[at])
	loose := bytes.Clone(signed)
	loose[at] = b64Alphabet[v|1]
	if _, err := base64.StdEncoding.DecodeString(string(loose[at-2 : at+2])); err != nil {
		t.Fatal(err)
	}
	if strictSignatures(loose) {
		t.Fatal("another spelling of a signature is accepted")
	}
}

const b64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
