package auditlog_test

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// proofVector is the worked example's proof of record 1.
type proofVector struct {
	Proof string `json:"tlog_proof_record_1"`
	Keys  struct {
		VKey string `json:"vkey"`
	} `json:"keys"`
	Checkpoint struct {
		Note string `json:"note"`
	} `json:"checkpoint"`
}

func readProofVector(t testing.TB) (v proofVector, lines [][]byte) {
	t.Helper()
	if err := json.Unmarshal(read(t, "testdata/evidence-vector.json"), &v); err != nil {
		t.Fatal(err)
	}
	return v, bytes.Split(bytes.TrimSuffix(read(t, "testdata/evidence-vector.jsonl"), []byte("\n")), []byte("\n"))
}

func policyOf(t testing.TB, vkey string) *auditlog.TrustPolicy {
	t.Helper()
	p, err := auditlog.PolicyOf(vkey)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func seqIs(seq uint64) func(*auditlog.Record) bool {
	return func(r *auditlog.Record) bool { return r.Line.Seal.Seq == seq }
}

func TestProofOfTheWorkedExampleIsReproducedByteForByte(t *testing.T) {
	v, lines := readProofVector(t)
	proven, warnings, err := auditlog.Prove(t.Context(), []auditlog.Source{auditlog.FileSource("testdata/evidence-vector.jsonl")},
		auditlog.ProveOptions{Match: seqIs(1), Checkpoints: [][]byte{[]byte(v.Checkpoint.Note)}, Work: t.TempDir()})
	if err != nil || len(warnings) > 0 || len(proven) != 1 {
		t.Fatal(proven, warnings, err)
	}
	if got := string(proven[0].Proof.Text()); got != v.Proof {
		t.Errorf("proof:\n%s\nwant:\n%s", got, v.Proof)
	}
	if !bytes.Equal(proven[0].Line, lines[1]) {
		t.Errorf("line %s", proven[0].Line)
	}
	p, err := auditlog.VerifyProof(lines[1], []byte(v.Proof), policyOf(t, v.Keys.VKey))
	if err != nil || p.Head.Size != 3 || fmt.Sprint(p.Disclosed) != "[params]" || len(p.Withheld) > 0 {
		t.Errorf("%+v %v", p, err)
	}
}

func TestAnyChangedByteOfAProofIsRefused(t *testing.T) {
	v, lines := readProofVector(t)
	policy := policyOf(t, v.Keys.VKey)
	for i := range v.Proof {
		for _, flip := range []byte{0x01, 0x20, 0x80, 0x40} {
			changed := []byte(v.Proof)
			changed[i] ^= flip
			if _, err := auditlog.VerifyProof(lines[1], changed, policy); !errors.Is(err, auditlog.ErrProofInvalid) {
				t.Fatalf("byte %d ^ %#x: %v", i, flip, err)
			}
		}
	}
	for n := range len(v.Proof) {
		if _, err := auditlog.VerifyProof(lines[1], []byte(v.Proof[:n]), policy); !errors.Is(err, auditlog.ErrProofInvalid) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
}

// The seal's chain, key id, epoch and MAC are bound by the chain, not by the
// leaf; all other bytes of a record are proven.
func TestAnyChangedByteOfAProvenRecordIsRefused(t *testing.T) {
	v, lines := readProofVector(t)
	policy := policyOf(t, v.Keys.VKey)
	line := lines[1]
	chain := bytes.Index(line, []byte(`"chain":"`)) + len(`"chain":"`)
	mac := bytes.Index(line[chain:], []byte(`"mac":"`)) + chain + len(`"mac":"`)
	for i := range line {
		if i >= chain && i < chain+43 || i >= chain+43 && i < mac+43 {
			continue
		}
		for _, flip := range []byte{0x01, 0x20, 0x80} {
			changed := bytes.Clone(line)
			changed[i] ^= flip
			if _, err := auditlog.VerifyProof(changed, []byte(v.Proof), policy); !errors.Is(err, auditlog.ErrProofInvalid) {
				t.Fatalf("byte %d ^ %#x: %v\n%s", i, flip, err, changed)
			}
		}
	}
}

func TestWrongProofsAreRefusedWithTheReason(t *testing.T) {
	v, lines := readProofVector(t)
	policy := policyOf(t, v.Keys.VKey)
	stranger := auditlogVKey(t, "audit.example/gateway-1/i0", 7)
	foreign := auditlogVKey(t, "audit.example/other/i0", 7)
	edit := func(old, with string) string { return strings.Replace(v.Proof, old, with, 1) }
	_, signed, _ := strings.Cut(v.Proof, "\n\n")
	cases := []struct {
		name   string
		line   []byte
		proof  string
		policy *auditlog.TrustPolicy
		want   string
	}{
		{"another record", lines[2], v.Proof, policy, "it is record 2, but the proof is of record 1"},
		{"edited record", bytes.Replace(lines[1], []byte("alice"), []byte("mallo"), 1), v.Proof, policy, "the record was changed"},
		{"edited disclosure", bytes.Replace(lines[1], []byte("docs/"), []byte("DOCS/"), 1), v.Proof, policy, "the disclosed params is not what the record commits to"},
		{"added disclosure", bytes.Replace(lines[1], []byte(`"open":{`), []byte(`"open":{"error":["gIGCg4SFhoeIiYqLjI2Ojw",1],`), 1), v.Proof, policy, "no commitment to the disclosed error"},
		{"another index", lines[2], edit("index 1", "index 2"), policy, "has another record 2 than this one"},
		{"index beyond", lines[1], edit("index 1", "index 3"), policy, "it is record 1, but the proof is of record 3"},
		{"missing hash", lines[1], edit("hTcc4MnoNQyw8qfrwVxESouab09lWXVV2e79StknJis=\n", ""), policy, "has another record 1"},
		{"further hash", lines[1], edit("\n\n", "\nhTcc4MnoNQyw8qfrwVxESouab09lWXVV2e79StknJis=\n\n"), policy, "has another record 1"},
		{"another key", lines[1], v.Proof, policyOf(t, stranger), "its checkpoint is not trusted"},
		{"another log's key", lines[1], v.Proof, policyOf(t, foreign), `the trusted key is that of "audit.example/other/i0"`},
		{"unsigned", lines[1], strings.Replace(v.Proof, signed, signed[:strings.Index(signed, "\n\n")+2], 1), policy, "not trusted"},
		{"extension line", lines[1], edit("qI4b/GJJcKQPHhWIsvqPcGt2mJOgm3yVLxibcJvolzc=\n", "qI4b/GJJcKQPHhWIsvqPcGt2mJOgm3yVLxibcJvolzc=\nmore\n"), policy, "exactly three lines"},
		{"leading zero", lines[1], edit("index 1", "index 01"), policy, "decimal number"},
		{"no proof", lines[1], "", policy, "no checkpoint"},
		{"64 hashes", lines[1], edit("index 1\n", "index 1\n"+strings.Repeat("hTcc4MnoNQyw8qfrwVxESouab09lWXVV2e79StknJis=\n", 64)), policy, "more than 63"},
		{"empty record", nil, v.Proof, policy, "not one line of a log"},
		{"two records", append(append(bytes.Clone(lines[1]), '\n'), lines[1]...), v.Proof, policy, "not one line of a log"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := auditlog.VerifyProof(c.line, []byte(c.proof), c.policy)
			if !errors.Is(err, auditlog.ErrProofInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestExtraDataIsCarriedAndNotTrusted(t *testing.T) {
	v, lines := readProofVector(t)
	p, err := auditlog.ParseInclusionProof([]byte(v.Proof))
	if err != nil {
		t.Fatal(err)
	}
	p.Extra = []byte("context")
	text := p.Text()
	if !bytes.HasPrefix(text, []byte("c2sp.org/tlog-proof@v1\nextra Y29udGV4dA==\nindex 1\n")) {
		t.Fatalf("%s", text)
	}
	if again, err := auditlog.ParseInclusionProof(text); err != nil || string(again.Extra) != "context" {
		t.Fatal(again, err)
	}
	if _, err := auditlog.VerifyProof(lines[1], text, policyOf(t, v.Keys.VKey)); err != nil {
		t.Error(err)
	}
	if _, err := auditlog.ParseInclusionProof(bytes.Replace(text, []byte("Y29"), []byte("Y!9"), 1)); !errors.Is(err, auditlog.ErrProofInvalid) {
		t.Error(err)
	}
}

func TestDisclosureIsByChoice(t *testing.T) {
	v, lines := readProofVector(t)
	policy := policyOf(t, v.Keys.VKey)
	hidden, err := auditlog.Disclose(lines[1], nil)
	if err != nil || bytes.Contains(hidden, []byte("docs/")) {
		t.Fatalf("%s %v", hidden, err)
	}
	p, err := auditlog.VerifyProof(hidden, []byte(v.Proof), policy)
	if err != nil || len(p.Disclosed) != 0 || fmt.Sprint(p.Withheld) != "[params]" {
		t.Fatalf("%+v %v", p, err)
	}
	shown, err := auditlog.Disclose(lines[1], []string{"params"})
	if err != nil || !bytes.Equal(shown, lines[1]) {
		t.Fatalf("%s %v", shown, err)
	}
	for line, name := range map[int]string{1: "result", 0: "params"} {
		if _, err := auditlog.Disclose(lines[line], []string{name}); err == nil {
			t.Errorf("record %d: %s", line, name)
		}
	}
}

// auditlogVKey makes a verifier key from a seed of equal bytes.
func auditlogVKey(t testing.TB, name string, seed byte) string {
	t.Helper()
	vkey, err := auditlog.VKey(name, seededKey(seed).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return vkey
}

func seededKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

// leavesOf makes n leaves and the reader of them.
func leavesOf(n int) ([]auditlog.Hash, auditlog.Leaves) {
	leaves := make([]auditlog.Hash, n)
	for i := range leaves {
		leaves[i] = auditlog.LeafHash(fmt.Appendf(nil, "record %d", i))
	}
	return leaves, sliceLeaves(leaves)
}

// headOf signs the tree of leaves.
func headOf(t testing.TB, origin string, leaves []auditlog.Hash, seed byte) (auditlog.TreeHead, []byte) {
	t.Helper()
	var tree auditlog.Range
	for _, l := range leaves {
		tree.Append(l)
	}
	head := auditlog.TreeHead{Origin: origin, Size: tree.Size, Root: tree.Root()}
	note, err := auditlog.SignTreeHead(head, seededKey(seed))
	if err != nil {
		t.Fatal(err)
	}
	return head, note
}

func TestProofsOfAllSizesAgreeWithTheirChecker(t *testing.T) {
	const most = 130
	leaves, read := leavesOf(most)
	tiles := auditlog.NewTiles(nil, t.TempDir())
	policy := policyOf(t, auditlogVKey(t, "audit.example/i0", 3))
	roots := make([]auditlog.Hash, most+1)
	notes := make([][]byte, most+1)
	for n := 1; n <= most; n++ {
		if testing.Short() && n > 17 && n%32 > 1 {
			var tree auditlog.Range // only what later sizes compare with
			for _, l := range leaves[:n] {
				tree.Append(l)
			}
			roots[n] = tree.Root()
			_, notes[n] = headOf(t, "audit.example/i0", leaves[:n], 3)
			continue
		}
		head, note := headOf(t, "audit.example/i0", leaves[:n], 3)
		roots[n], notes[n] = head.Root, note
		if err := tiles.Grow(t.Context(), note, read); err != nil {
			t.Fatal(n, err)
		}
		tree := tiles.Tree(head)
		for i := range n {
			path, err := tree.Inclusion(uint64(i))
			if err != nil {
				t.Fatal(n, i, err)
			}
			plain := make(tlog.RecordProof, len(path))
			for k, h := range path {
				plain[k] = tlog.Hash(h)
			}
			if err := tlog.CheckRecord(plain, int64(n), tlog.Hash(head.Root), int64(i), tlog.Hash(leaves[i])); err != nil {
				t.Fatal(n, i, err)
			}
			if i%13 != n%13 {
				continue // checking signatures takes the time
			}
			p := auditlog.InclusionProof{Index: uint64(i), Path: path, Checkpoint: note}
			if _, _, err := p.Check(leaves[i], policy); err != nil {
				t.Fatal(n, i, err)
			}
			if _, _, err := p.Check(leaves[(i+1)%most], policy); !errors.Is(err, auditlog.ErrProofInvalid) {
				t.Fatal(n, i, "another leaf was accepted")
			}
		}
		for old := 1; old <= n; old++ {
			path, err := tree.Consistency(uint64(old))
			if err != nil {
				t.Fatal(n, old, err)
			}
			c := auditlog.ConsistencyProof{Old: uint64(old), Path: path, Checkpoint: note}
			if err := c.CheckPath(roots[old], head); err != nil {
				t.Fatal(n, old, err)
			}
			if old%13 == n%13 {
				if _, _, err := c.Check(notes[old], policy); err != nil {
					t.Fatal(n, old, err)
				}
			}
			again, err := auditlog.ParseConsistencyProof(c.Text())
			if err != nil || !bytes.Equal(again.Text(), c.Text()) {
				t.Fatal(n, old, err)
			}
			if root, err := tree.RootAt(uint64(old)); err != nil || root != roots[old] {
				t.Fatal(n, old, err)
			}
			if old < n {
				if err := c.CheckPath(roots[old+1], head); !errors.Is(err, auditlog.ErrProofInvalid) {
					t.Fatal(n, old, "another root was accepted")
				}
			}
		}
	}
}

func TestAnyChangedByteOfAConsistencyProofIsRefused(t *testing.T) {
	leaves, read := leavesOf(77)
	policy := policyOf(t, auditlogVKey(t, "audit.example/i0", 3))
	_, old := headOf(t, "audit.example/i0", leaves[:21], 3)
	head, note := headOf(t, "audit.example/i0", leaves, 3)
	tiles := auditlog.NewTiles(nil, t.TempDir())
	if err := tiles.Grow(t.Context(), note, read); err != nil {
		t.Fatal(err)
	}
	path, err := tiles.Tree(head).Consistency(21)
	if err != nil {
		t.Fatal(err)
	}
	p := auditlog.ConsistencyProof{Old: 21, Path: path, Checkpoint: note}
	text := p.Text()
	verify := func(old, text []byte) error {
		p, err := auditlog.ParseConsistencyProof(text)
		if err == nil {
			_, _, err = p.Check(old, policy)
		}
		return err
	}
	if err := verify(old, text); err != nil {
		t.Fatal(err)
	}
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 0x01
		if err := verify(old, changed); !errors.Is(err, auditlog.ErrProofInvalid) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	for i := range old {
		changed := bytes.Clone(old)
		changed[i] ^= 0x01
		if err := verify(changed, text); !errors.Is(err, auditlog.ErrProofInvalid) {
			t.Fatalf("byte %d of the older checkpoint: %v", i, err)
		}
	}
	leaves[5] = auditlog.LeafHash([]byte("rewritten"))
	_, rewritten := headOf(t, "audit.example/i0", leaves[:21], 3)
	if err := verify(rewritten, text); !errors.Is(err, auditlog.ErrProofInvalid) || !strings.Contains(err.Error(), "does not continue") {
		t.Error(err)
	}
	_, foreign := headOf(t, "audit.example/i1", leaves[:21], 3)
	if err := verify(foreign, text); !errors.Is(err, auditlog.ErrProofInvalid) {
		t.Error(err)
	}
}

func TestPolicies(t *testing.T) {
	log := auditlogVKey(t, "audit.example/i0", 3)
	var w [4]string
	for i := range w {
		w[i] = cosignerVKey(t, fmt.Sprintf("witness.example/%d", i), byte(20+i))
	}
	leaves, _ := leavesOf(5)
	_, plain := headOf(t, "audit.example/i0", leaves, 3)
	cosigned := func(by ...int) []byte {
		note := bytes.Clone(plain)
		text, _, _ := bytes.Cut(plain, []byte("\n\n"))
		for _, i := range by {
			line, err := auditlog.Cosign(append(bytes.Clone(text), '\n'), fmt.Sprintf("witness.example/%d", i), seededKey(byte(20+i)), time.Unix(1700000000+int64(i), 0))
			if err != nil {
				t.Fatal(err)
			}
			note = append(note, line...)
		}
		return note
	}
	base := "log " + log + "\n" + "witness A " + w[0] + "\nwitness B " + w[1] + " https://b.example/\n\twitness  C\t" + w[2] + "\n  # Kommentar: ü\n\n"
	for _, c := range []struct {
		policy string
		note   []byte
		ok     bool
		n      int
	}{
		{base + "quorum none\n", plain, true, 0},
		{base + "quorum none", cosigned(1), true, 1},
		{base + "quorum A\n", plain, false, 0},
		{base + "quorum A\n", cosigned(0), true, 1},
		{base + "quorum A\n", cosigned(1, 2), false, 0},
		{base + "group g 2 A B C\nquorum g\n", cosigned(0), false, 0},
		{base + "group g 2 A B C\nquorum g\n", cosigned(2, 0), true, 2},
		{base + "group g any A B\ngroup h all g C\nquorum h\n", cosigned(0, 1), false, 0},
		{base + "group g any A B\ngroup h all g C\nquorum h\n", cosigned(2, 1, 3), true, 2},
		{"log " + auditlogVKey(t, "audit.example/i0", 4) + "\nquorum none\n", plain, false, 0},
	} {
		p, err := auditlog.ParsePolicy([]byte(c.policy))
		if err != nil {
			t.Fatal(c.policy, err)
		}
		_, list, err := p.OpenCheckpoint(c.note)
		if (err == nil) != c.ok || len(list) != c.n {
			t.Errorf("%s: %v %v", c.policy, list, err)
		}
	}
	// The signature of a witness that is known must hold, whether needed or not.
	p, err := auditlog.ParsePolicy([]byte(base + "quorum none\n"))
	if err != nil {
		t.Fatal(err)
	}
	broken := cosigned(0)
	last := bytes.LastIndexByte(broken, ' ')
	raw, _ := base64.StdEncoding.DecodeString(strings.TrimSpace(string(broken[last+1:])))
	for _, at := range []int{4 + 7, 4 + 8, len(raw) - 1} {
		bad := bytes.Clone(raw)
		bad[at] ^= 1
		changed := append(bytes.Clone(broken[:last+1]), base64.StdEncoding.EncodeToString(bad)+"\n"...)
		if _, _, err := p.OpenCheckpoint(changed); err == nil {
			t.Errorf("byte %d of a cosignature was changed unseen", at)
		}
	}
}

func TestMalformedPoliciesAreRefusedWithTheirLine(t *testing.T) {
	log := "log " + auditlogVKey(t, "audit.example/i0", 3) + "\n"
	a, b := cosignerVKey(t, "witness.example/a", 20), cosignerVKey(t, "witness.example/b", 21)
	two := log + "witness A " + a + "\nwitness B " + b + "\n"
	for policy, want := range map[string]string{
		"":                                 "no quorum line",
		log:                                "no quorum line",
		two + "quorum C\n":                 "line 4",
		two + "quorum A\nquorum A\n":       "line 5",
		two + "quorum\n":                   "quorum takes one name",
		two + "group g 0 A B\nquorum g\n":  "not all, any or a number from 1 to 2",
		two + "group g 3 A B\nquorum g\n":  "not all, any or a number from 1 to 2",
		two + "group g 02 A B\nquorum g\n": "not all, any or a number from 1 to 2",
		two + "group g 1 A A\nquorum g\n":  "already a member",
		two + "group g any A\ngroup h any A B\nquorum h\n":                                 "already a member",
		two + "group g any none\nquorum g\n":                                               "not defined on a line before",
		two + "group none any A\nquorum none\n":                                            "reserved",
		two + "group A any B\nquorum A\n":                                                  "defined twice",
		two + "witness C " + a + "\nquorum A\n":                                            "listed twice",
		log + log + "quorum none\n":                                                        "listed twice",
		log + "witness A " + strings.TrimPrefix(log, "log ")[:len(log)-5] + "\nquorum A\n": "not a witness's",
		log + "witness A " + a + " https://a b\nquorum A\n":                                "witness takes",
		"log " + a + "\nquorum none\n":                                                     "not a verifier key",
		two + "quorum A\rx\n":                                                              "0x0d",
		two + "trust A\n":                                                                  "not known",
		two + "quorum B\ngroup g any A\x00\n":                                              "0x00",
	} {
		if _, err := auditlog.ParsePolicy([]byte(policy)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", policy, err, want)
		}
	}
}

func cosignerVKey(t testing.TB, name string, seed byte) string {
	t.Helper()
	vkey, err := auditlog.CosignerVKey(name, seededKey(seed).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return vkey
}
