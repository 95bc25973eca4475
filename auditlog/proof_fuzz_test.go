package auditlog_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// FuzzVerifyProof gives the verifier any record and any proof: nothing panics,
// every refusal has its reason, and only the worked example's record is proven.
func FuzzVerifyProof(f *testing.F) {
	v, lines := readProofVector(f)
	policy := policyOf(f, v.Keys.VKey)
	for _, line := range lines {
		f.Add(line, []byte(v.Proof))
	}
	f.Add([]byte("{}"), []byte("c2sp.org/tlog-proof@v1\nindex 0\n\na\n0\n"))
	f.Add(lines[1], []byte("c2sp.org/tlog-proof@v1\nextra AA==\nindex 1\n\n"+v.Checkpoint.Note))
	good, fault := auditlog.SplitLine(lines[1])
	if fault != auditlog.LineOK {
		f.Fatal(fault)
	}
	f.Fuzz(func(t *testing.T, line, proof []byte) {
		p, err := auditlog.VerifyProof(line, proof, policy)
		if err != nil {
			if !errors.Is(err, auditlog.ErrProofInvalid) || len(err.Error()) < len("proof_invalid: x") {
				t.Fatalf("%v", err)
			}
			return
		}
		if !bytes.Equal(p.Record.Line.Body(), good.Body()) {
			t.Fatalf("proven: %s", line)
		}
	})
}

// FuzzProofText checks that a proof that can be read has exactly one spelling.
func FuzzProofText(f *testing.F) {
	v, _ := readProofVector(f)
	f.Add([]byte(v.Proof))
	f.Add([]byte("old 3\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n" + v.Checkpoint.Note))
	f.Add([]byte("index 0\n\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if p, err := auditlog.ParseInclusionProof(text); err == nil && !bytes.Equal(p.Text(), text) {
			t.Fatalf("%q is read as %q", text, p.Text())
		}
		if p, err := auditlog.ParseConsistencyProof(text); err == nil && !bytes.Equal(p.Text(), text) {
			t.Fatalf("%q is read as %q", text, p.Text())
		}
	})
}

// FuzzPolicy gives the parser any policy. One that demands witnesses never
// trusts a checkpoint that none cosigned.
func FuzzPolicy(f *testing.F) {
	v, _ := readProofVector(f)
	witness := cosignerVKey(f, "witness.example/a", 20)
	for _, text := range []string{
		"", "quorum none\n", "log " + v.Keys.VKey + "\nquorum none\n",
		"log " + v.Keys.VKey + "\nwitness A " + witness + "\nquorum A\n",
		"log " + v.Keys.VKey + "\nwitness A " + witness + "\ngroup g all A\ngroup h any g\nquorum h\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := auditlog.ParsePolicy(text)
		if err != nil {
			return
		}
		_, witnesses, err := p.OpenCheckpoint([]byte(v.Checkpoint.Note))
		if err == nil && !strings.Contains(string(text), "none") {
			t.Fatalf("%q trusts a checkpoint without a witness: %v", text, witnesses)
		}
	})
}
