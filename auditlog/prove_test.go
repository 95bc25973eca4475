package auditlog_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// grownLog is a log with calls, checkpoints and another incarnation if broken.
func grownLog(t *testing.T, calls int) (path, vkey string) {
	t.Helper()
	path = quickPath(t)
	l := setup{}.open(t, path)
	for i := range calls {
		op, err := l.Begin(context.Background(), anIntent())
		if err != nil {
			t.Fatal(err)
		}
		if err := op.End(context.Background(), anOutcome()); err != nil {
			t.Fatal(err)
		}
		if i%50 == 49 {
			if _, err := l.Checkpoint(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	vkey = l.Status().VKey
	closeLog(t, l)
	return path, vkey
}

func sources(t *testing.T, path string) []auditlog.Source {
	t.Helper()
	list, err := jsonl.Sources(path)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestEveryCoveredRecordIsProvenWithThePublicKeyAlone(t *testing.T) {
	path, vkey := grownLog(t, 120)
	policy := policyOf(t, vkey)
	lines := bytes.Split(bytes.TrimSuffix(read(t, path), []byte("\n")), []byte("\n"))
	var all []auditlog.ProvenRecord
	for from := 0; from < len(lines); from += 16 {
		some, warnings, err := auditlog.Prove(t.Context(), sources(t, path), auditlog.ProveOptions{
			Work: t.TempDir(),
			Match: func(r *auditlog.Record) bool {
				return int(r.Line.Seal.Seq) >= from && int(r.Line.Seal.Seq) < min(from+16, len(lines)-1)
			},
		})
		if err != nil || len(warnings) > 0 {
			t.Fatal(warnings, err)
		}
		all = append(all, some...)
	}
	if len(all) != len(lines)-1 {
		t.Fatalf("%d of %d", len(all), len(lines))
	}
	for i, r := range all {
		p, err := auditlog.VerifyProof(lines[i], r.Proof.Text(), policy)
		if err != nil || p.Head.Size != uint64(len(lines)-1) || r.VKey != vkey {
			t.Fatal(i, err)
		}
		if _, err := auditlog.VerifyProof(lines[(i+1)%len(lines)], r.Proof.Text(), policy); err == nil {
			t.Fatal(i, "the next record passes for it")
		}
	}
	// The last record is the checkpoint itself, which covers those before it.
	_, _, err := auditlog.Prove(t.Context(), sources(t, path), auditlog.ProveOptions{Work: t.TempDir(), Match: seqIs(uint64(len(lines) - 1))})
	if !errors.Is(err, auditlog.ErrNoCheckpoint) || !strings.Contains(err.Error(), "mcp-audit checkpoint") {
		t.Error(err)
	}
	if _, _, err := auditlog.Prove(t.Context(), sources(t, path), auditlog.ProveOptions{Work: t.TempDir(), Match: seqIs(1 << 40)}); !errors.Is(err, auditlog.ErrNoRecord) {
		t.Error(err)
	}
}

func TestProofsOfADamagedLog(t *testing.T) {
	path, vkey := grownLog(t, 60)
	whole := read(t, path)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	prove := func(seq uint64, o auditlog.ProveOptions, lines ...[]byte) ([]auditlog.ProvenRecord, []string, error) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "audit.jsonl")
		if err := os.WriteFile(file, bytes.Join(lines, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		o.Match, o.Work = seqIs(seq), t.TempDir()
		return auditlog.Prove(t.Context(), []auditlog.Source{auditlog.FileSource(file)}, o)
	}
	with := func(at int, line []byte) [][]byte {
		out := append([][]byte{}, lines...)
		out[at] = line
		return out
	}
	edited := bytes.Replace(lines[20], []byte("alice"), []byte("mallo"), 1)
	if bytes.Equal(edited, lines[20]) {
		edited = bytes.Replace(lines[21], []byte("alice"), []byte("mallo"), 1)
	}
	l, _ := auditlog.SplitLine(bytes.TrimSuffix(edited, []byte("\n")))
	at := int(l.Seal.Seq)

	// Another record was changed: it is named, and the proof holds.
	proven, warnings, err := prove(5, auditlog.ProveOptions{}, with(at, edited)...)
	if err != nil || len(proven) != 1 || len(warnings) != 1 || !strings.Contains(warnings[0], "content_modified") {
		t.Errorf("%v %v", warnings, err)
	}
	// The record itself was: it cannot be proven.
	if _, warnings, err = prove(uint64(at), auditlog.ProveOptions{}, with(at, edited)...); !errors.Is(err, auditlog.ErrNoRecord) || len(warnings) == 0 {
		t.Errorf("%v %v", warnings, err)
	}
	// It was sealed anew, as who holds the MAC key can: the signed tree has another.
	s := l.Seal
	s.Leaf = l.LeafHash()
	forged := auditlog.AppendLine(nil, l.Body(), &s, nil)
	if _, _, err = prove(uint64(at), auditlog.ProveOptions{}, with(at, forged)...); err == nil {
		t.Error("a forged record was proven")
	}
	if _, _, err = prove(5, auditlog.ProveOptions{}, with(at, forged)...); !errors.Is(err, auditlog.ErrTreeDiffers) {
		t.Errorf("a tree with a forged record: %v", err)
	}
	// One is missing, or torn: the hashes behind it cannot be known.
	for _, line := range [][]byte{nil, []byte("{}\n"), lines[at][:40]} {
		if _, _, err = prove(5, auditlog.ProveOptions{}, with(at, line)...); err == nil || !strings.Contains(err.Error(), "mcp-audit verify") {
			t.Errorf("%.20s: %v", line, err)
		}
	}
	// A torn end is a write under way.
	if _, _, err = prove(5, auditlog.ProveOptions{}, append(append([][]byte{}, lines...), []byte(`{"a`))...); err != nil {
		t.Error(err)
	}
	// Another key than the log's own, and a checkpoint of another log.
	stranger := auditlogVKey(t, "audit.example/test/i0", 7)
	if _, _, err = prove(5, auditlog.ProveOptions{VKey: stranger}, lines...); !errors.Is(err, auditlog.ErrNoCheckpoint) || !strings.Contains(err.Error(), "not signed with the log's key") {
		t.Error(err)
	}
	leaves, _ := leavesOf(300)
	_, foreign := headOf(t, "audit.example/test/i0", leaves[:100], 7)
	if _, _, err = prove(5, auditlog.ProveOptions{Checkpoints: [][]byte{foreign}, Only: true}, lines...); !errors.Is(err, auditlog.ErrNoCheckpoint) {
		t.Error(err)
	}
	if p, _, err := prove(5, auditlog.ProveOptions{Checkpoints: [][]byte{foreign}, VKey: vkey}, lines...); err != nil || len(p) != 1 {
		t.Error(err)
	}
	// The beginning is missing.
	if _, _, err = prove(40, auditlog.ProveOptions{}, lines[10:]...); err == nil || !strings.Contains(err.Error(), "oldest first") {
		t.Error(err)
	}
}

// Tiles keep the hashes of records whose file is gone.
func TestTilesProveBeyondTheLogsBeginning(t *testing.T) {
	path, vkey := grownLog(t, 200)
	lines := bytes.SplitAfter(read(t, path), []byte("\n"))
	note := read(t, path+".checkpoint")
	head, err := auditlog.OpenTreeHead(note, vkey)
	if err != nil {
		t.Fatal(err)
	}
	dir := auditlog.TilesDir(path, head.Origin)
	leaves := auditlog.LeavesOf(head.Origin, func() ([]auditlog.Source, error) { return jsonl.Sources(path) })
	if err := auditlog.NewTiles(nil, dir).Grow(t.Context(), note, leaves); err != nil {
		t.Fatal(err)
	}
	// A file that begins in the middle begins with a record that names its
	// origin; the seal is all that is looked at.
	const first = 150
	l, fault := auditlog.SplitLine(bytes.TrimSuffix(lines[first], []byte("\n")))
	if fault != auditlog.LineOK {
		t.Fatal(fault)
	}
	start := auditlog.AppendLine(nil, []byte(`{"kind":"segment_start","origin":"`+head.Origin+`"}`), &l.Seal, nil)
	rest := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(rest, bytes.Join(append([][]byte{start}, lines[first+1:]...), nil), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tiles := range []bool{true, false} {
		o := auditlog.ProveOptions{Match: seqIs(300), Work: t.TempDir(), VKey: vkey}
		if tiles {
			o.Tiles = func(string) string { return dir }
		}
		proven, _, err := auditlog.Prove(t.Context(), []auditlog.Source{auditlog.FileSource(rest)}, o)
		if tiles != (err == nil) {
			t.Fatal(tiles, err)
		}
		if !tiles {
			if !strings.Contains(err.Error(), "tiles") {
				t.Error(err)
			}
			continue
		}
		if _, err := auditlog.VerifyProof(lines[300], proven[0].Proof.Text(), policyOf(t, vkey)); err != nil {
			t.Error(err)
		}
	}
	if before := files(t, dir); len(before) == 0 {
		t.Error("the tiles are gone")
	}
}

func TestConsistencyOverALog(t *testing.T) {
	path, vkey := grownLog(t, 120)
	var notes [][]byte
	for _, r := range records(t, path) {
		if r.kind == "checkpoint" {
			notes = append(notes, []byte(r.body["note"].(string)))
		}
	}
	if len(notes) < 3 {
		t.Fatal(len(notes))
	}
	for _, old := range notes {
		p, key, _, err := auditlog.ProveConsistency(t.Context(), sources(t, path), old, auditlog.ProveOptions{Work: t.TempDir()})
		if err != nil || key != vkey {
			t.Fatal(err)
		}
		if _, to, err := p.Check(old, policyOf(t, vkey)); err != nil || !bytes.Equal(p.Checkpoint, notes[len(notes)-1]) {
			t.Error(to, err)
		}
	}
	leaves, _ := leavesOf(20)
	for name, origin := range map[string]string{"not trusted": "audit.example/test/i0", "no record among the files": "audit.example/test/i4"} {
		_, forged := headOf(t, origin, leaves, 7)
		if _, _, _, err := auditlog.ProveConsistency(t.Context(), sources(t, path), forged, auditlog.ProveOptions{Work: t.TempDir()}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// LeavesOf finds its place in a file without reading it from the beginning.
func TestLeavesAreFoundByHalving(t *testing.T) {
	path, vkey := grownLog(t, 1500)
	head, err := auditlog.OpenTreeHead(read(t, path+".checkpoint"), vkey)
	if err != nil {
		t.Fatal(err)
	}
	list := records(t, path)
	leaves := auditlog.LeavesOf(head.Origin, func() ([]auditlog.Source, error) { return jsonl.Sources(path) })
	for _, from := range []int{0, 1, 17, 2999, len(list) - 1} {
		to := min(from+5, len(list))
		var got []auditlog.Hash
		if err := leaves(t.Context(), uint64(from), uint64(to), func(h auditlog.Hash) error {
			got = append(got, h)
			return nil
		}); err != nil {
			t.Fatal(from, err)
		}
		for i, h := range got {
			if h != list[from+i].seal.Leaf {
				t.Fatal(from, i)
			}
		}
		if len(got) != to-from {
			t.Fatal(from, len(got))
		}
	}
	if err := leaves(t.Context(), uint64(len(list)), uint64(len(list)+1), func(auditlog.Hash) error { return nil }); !errors.Is(err, auditlog.ErrLeafMissing) {
		t.Error(err)
	}
	other := auditlog.LeavesOf("audit.example/other/i0", func() ([]auditlog.Source, error) { return jsonl.Sources(path) })
	if err := other(t.Context(), 0, 1, func(auditlog.Hash) error { return nil }); !errors.Is(err, auditlog.ErrLeafMissing) {
		t.Error(err)
	}
}

// After a change of the log's key, its checkpoints are signed with the new one.
func TestProofAfterAChangeOfTheKey(t *testing.T) {
	const origin = "audit.example/rotated/i0"
	first, second := auditlogVKey(t, origin, 3), auditlogVKey(t, origin, 4)
	var text []byte
	var leaves []auditlog.Hash
	chain := auditlog.GenesisChain(origin)
	add := func(body string) {
		s := auditlog.Seal{Seq: uint64(len(leaves)), Leaf: auditlog.LeafHash([]byte(body)), KeyID: "k1"}
		s.Chain = auditlog.ChainHash(chain, s.Seq, s.Leaf)
		chain = s.Chain
		leaves = append(leaves, s.Leaf)
		text = auditlog.AppendLine(text, []byte(body), &s, nil)
	}
	add(`{"kind":"genesis","origin":"` + origin + `","vkey":"` + first + `"}`)
	add(`{"kind":"event"}`)
	add(`{"kind":"key_rotation","new_vkey":"` + second + `"}`)
	_, note := headOf(t, origin, leaves, 4)
	_, old := headOf(t, origin, leaves[:2], 3)
	// Closed and compressed, as retention leaves it.
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".000000.20260525T123456Z.gz", b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := auditlog.ProveOptions{Match: seqIs(1), Checkpoints: [][]byte{note, old}, Work: t.TempDir()}
	proven, _, err := auditlog.Prove(t.Context(), sources(t, path), o)
	if err != nil || proven[0].VKey != second || proven[0].Head.Size != 3 {
		t.Fatal(proven, err)
	}
	if _, err := auditlog.VerifyProof(proven[0].Line, proven[0].Proof.Text(), policyOf(t, second)); err != nil {
		t.Error(err)
	}
	o.Work = t.TempDir()
	p, vkey, _, err := auditlog.ProveConsistency(t.Context(), sources(t, path), old, o)
	if err != nil || vkey != second || p.Old != 2 {
		t.Error(vkey, err)
	}
}

func BenchmarkVerifyProof(b *testing.B) {
	v, lines := readProofVector(b)
	policy, err := auditlog.PolicyOf(v.Keys.VKey)
	if err != nil {
		b.Fatal(err)
	}
	proof := []byte(v.Proof)
	for b.Loop() {
		if _, err := auditlog.VerifyProof(lines[1], proof, policy); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTilesGrow(b *testing.B) {
	leaves, read := leavesOf(100_000)
	_, note := headOf(b, "audit.example/i0", leaves, 3)
	for i := 0; b.Loop(); i++ {
		if err := auditlog.NewTiles(nil, filepath.Join(b.TempDir(), fmt.Sprint(i))).Grow(b.Context(), note, read); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(leaves)), "ns/leaf")
}
