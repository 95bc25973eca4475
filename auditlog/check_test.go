package auditlog_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// parsed is a record as the tests see it.
type parsed struct {
	kind   string
	seal   auditlog.Seal
	body   map[string]any
	prefix string
}

// records reads a log and fails the test at the first line that is no sealed
// record.
func records(t testing.TB, path string) []parsed {
	t.Helper()
	var out []parsed
	for i, line := range bytes.SplitAfter(plain(t, path), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		l, fault := auditlog.SplitLine(bytes.TrimSuffix(line, []byte("\n")))
		if fault != auditlog.LineOK || line[len(line)-1] != '\n' {
			t.Fatalf("line %d: %s: %.80q", i+1, fault, line)
		}
		p := parsed{seal: l.Seal, prefix: string(l.Prefix)}
		if err := json.Unmarshal(l.Body(), &p.body); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if !canon.IsCanonical(l.Body(), 72) {
			t.Errorf("line %d: the body is not canonical: %s", i+1, l.Body())
		}
		p.kind, _ = p.body["kind"].(string)
		out = append(out, p)
	}
	return out
}

// check verifies a log by the letter of the format, independently of the
// writer's own code: sequence, leaves, chain, signed checkpoints, and that
// each intent has exactly one outcome, after it.
func check(t testing.TB, path string) []parsed {
	t.Helper()
	list := records(t, path)
	if len(list) == 0 {
		t.Fatal("the log is empty")
	}
	origin, _ := list[0].body["origin"].(string)
	vkey, _ := list[0].body["vkey"].(string)
	chain := auditlog.GenesisChain(origin)
	var tree auditlog.Range
	open := map[float64]string{}
	for i, r := range list {
		leaf := auditlog.LeafHash([]byte(r.prefix + "}"))
		chain = auditlog.ChainHash(chain, uint64(i), leaf)
		switch {
		case r.seal.Seq != uint64(i):
			t.Fatalf("record %d has seq %d", i, r.seal.Seq)
		case r.seal.Leaf != leaf:
			t.Fatalf("record %d: leaf", i)
		case r.seal.Chain != chain:
			t.Fatalf("record %d: chain", i)
		case i > 0 && (r.kind == "genesis" || r.kind == "chain_break"):
			t.Fatalf("record %d is a second %s", i, r.kind)
		}
		switch r.kind {
		case "intent":
			open[float64(i)] = r.body["audit_operation_id"].(string)
		case "outcome":
			seq := r.body["intent_seq"].(float64)
			if open[seq] == "" || open[seq] != r.body["audit_operation_id"] {
				t.Fatalf("record %d closes intent %v, which is not open: %v", i, seq, r.body)
			}
			delete(open, seq)
		case "checkpoint":
			head, err := auditlog.OpenTreeHead([]byte(r.body["note"].(string)), vkey)
			if err != nil || head.Size != uint64(i) || head.Root != tree.Root() {
				t.Fatalf("record %d: checkpoint %+v, %v", i, head, err)
			}
		}
		tree.Append(leaf)
	}
	report, err := auditlog.Verify(t.Context(), []auditlog.Source{sourceOf(t, path)}, auditlog.VerifyOptions{Strict: true})
	if err != nil {
		t.Fatalf("Verify: %v", err)
	}
	for _, f := range report.Findings {
		if f.Class == "T" || f.Class == "D" {
			t.Errorf("verify: %+v", f)
		}
	}
	return list
}

// openIntents lists the intents of a log that have no outcome.
func openIntents(list []parsed) (open []uint64) {
	closed := map[uint64]bool{}
	for _, r := range list {
		if seq, ok := r.body["intent_seq"].(float64); ok {
			closed[uint64(seq)] = true
		}
	}
	for _, r := range list {
		if r.kind == "intent" && !closed[r.seal.Seq] {
			open = append(open, r.seal.Seq)
		}
	}
	return open
}

// count returns how many records are of a kind.
func count(list []parsed, kind string) (n int) {
	for _, r := range list {
		if r.kind == kind {
			n++
		}
	}
	return n
}
