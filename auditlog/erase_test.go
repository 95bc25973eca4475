package auditlog_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// stores runs a test with a log in each store.
func stores(t *testing.T, test func(t *testing.T, path string)) {
	t.Helper()
	for _, name := range []string{"audit.jsonl", "audit.db"} {
		t.Run(strings.TrimPrefix(filepath.Ext(name), "."), func(t *testing.T) {
			if isDatabase(name) && databases.store == nil {
				t.Skip("there is no SQLite without cgo")
			}
			test(t, filepath.Join(t.TempDir(), name))
		})
	}
}

// committing is a setup whose records commit to members.
func committing(t testing.TB, r auditlog.Rotation, words ...string) setup {
	commit, err := auditlog.ParseCommit(words)
	if err != nil {
		t.Fatal(err)
	}
	return setup{change: func(c *auditlog.Config) { c.Commit, c.Rotation = commit, r }}
}

const planted = "a value that has to be erased"

// callWith records an operation with a value in params and result.
func callWith(t testing.TB, l *auditlog.Log, value string) {
	t.Helper()
	in := anIntent()
	in.Params.Received = fmt.Appendf(nil, `{"name":"read_file","arguments":{"path":%q}}`, value)
	op, err := l.Begin(context.Background(), in)
	if err != nil {
		t.Fatalf("Begin: %v", err)
	}
	out := anOutcome()
	out.Answer.Received = fmt.Appendf(nil, `{"content":[{"type":"text","text":%q}]}`, value)
	if err := op.End(context.Background(), out); err != nil {
		t.Fatalf("End: %v", err)
	}
}

// seqsWith are the numbers of the records whose lines have a text.
func seqsWith(t testing.TB, path, text string) (seqs []uint64) {
	t.Helper()
	for _, name := range files(t, path) {
		for line := range bytes.Lines(plain(t, name)) {
			if l, fault := auditlog.SplitLine(bytes.TrimSuffix(line, []byte("\n"))); fault == auditlog.LineOK && bytes.Contains(line, []byte(text)) {
				seqs = append(seqs, l.Seal.Seq)
			}
		}
	}
	return seqs
}

// nowhere checks that no file of a folder has a text.
func nowhere(t testing.TB, dir, text string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		name := filepath.Join(dir, e.Name())
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".gz") {
			data = plain(t, name)
		}
		if bytes.Contains(data, []byte(text)) {
			t.Errorf("%s has what was erased", e.Name())
		}
	}
}

func erase(t testing.TB, l *auditlog.Log, seq uint64, field string) {
	t.Helper()
	err := l.Erase(context.Background(), auditlog.Erasure{Seq: seq, Field: field, Reason: "request 7", AuthorisedBy: "privacy officer"})
	if err != nil {
		t.Fatalf("Erase %d %s: %v", seq, field, err)
	}
}

func TestParseCommitNamesWhatCanBeCommittedTo(t *testing.T) {
	for _, words := range [][]string{nil, {"none"}, {"payload"}, {"params", "result"}, {"payload", "principal", "mcp_name"}} {
		if _, err := auditlog.ParseCommit(words); err != nil {
			t.Errorf("%q: %v", words, err)
		}
	}
	for _, words := range [][]string{{"none", "payload"}, {"method"}, {"Params"}, {""}} {
		if _, err := auditlog.ParseCommit(words); err == nil {
			t.Errorf("%q is accepted", words)
		}
	}
}

func TestCommittedMembersLieBesideTheRecord(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		l := committing(t, auditlog.Rotation{}, "payload", "principal", "mcp_name").open(t, path)
		callWith(t, l, planted)
		closeLog(t, l)
		verifyAll(t, path)
		for line := range bytes.Lines(plain(t, path)) {
			r, fault := auditlog.ParseRecord(bytes.TrimSuffix(line, []byte("\n")))
			if fault != auditlog.LineOK {
				t.Fatal(fault)
			}
			if r.Kind != "intent" && r.Kind != "outcome" {
				continue
			}
			for _, hidden := range []string{planted, "alice", "read_file"} {
				if bytes.Contains(r.Line.Prefix, []byte(hidden)) {
					t.Errorf("the body has %q: %s", hidden, r.Line.Prefix)
				}
			}
			if r.Text("tool_name") != "read_file" || r.Text("mcp_name") != "read_file" || !bytes.Contains(r.Member("principal"), []byte("alice")) {
				t.Errorf("what is disclosed cannot be read: %s", line)
			}
		}
	})
}

func TestCallOfADeadProcessIsClosedWithItsCommittedNames(t *testing.T) {
	func(path string) {
		s := committing(t, auditlog.Rotation{}, "payload", "principal", "mcp_name")
		l := s.open(t, path)
		if _, err := l.Begin(context.Background(), anIntent()); err != nil {
			t.Fatal(err)
		}
		to := copyLog(t, path)
		closeLog(t, l)
		closeLog(t, s.open(t, to))
		report := verifyAll(t, to, "outcome_unknown", "recovered")
		if report.UnknownOutcomes != 1 {
			t.Errorf("%d outcomes are unknown", report.UnknownOutcomes)
		}
	}(filepath.Join(t.TempDir(), "audit.jsonl"))
}

func TestErasedFieldIsGoneAndTheRestStands(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		l := committing(t, auditlog.Rotation{}, "payload").open(t, path)
		call(t, l)
		callWith(t, l, planted)
		call(t, l)
		for _, seq := range seqsWith(t, path, planted) {
			if e := fieldOf(t, path, seq); e != "" {
				erase(t, l, seq, e)
			}
		}
		// The writer goes on, and so does one that comes later.
		call(t, l)
		closeLog(t, l)
		again := committing(t, auditlog.Rotation{}, "payload").open(t, path)
		call(t, again)
		closeLog(t, again)
		report := verifyAll(t, path, "erased_field")
		if countFindings(report, "erased_field") != 2 {
			t.Errorf("exit %d, %+v", report.Exit, report.Findings)
		}
		nowhere(t, filepath.Dir(path), planted)
	})
}

func TestErasedRecordIsGoneAndTheRestStands(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		l := setup{}.open(t, path)
		call(t, l)
		callWith(t, l, planted)
		for _, seq := range seqsWith(t, path, planted) {
			erase(t, l, seq, auditlog.WholeRecord)
		}
		call(t, l)
		closeLog(t, l)
		report := verifyAll(t, path, "erased_record")
		if countFindings(report, "erased_record") != 2 {
			t.Errorf("exit %d, %+v", report.Exit, report.Findings)
		}
		nowhere(t, filepath.Dir(path), planted)
	})
}

// fieldOf is the payload member of a record that has the planted value.
func fieldOf(t testing.TB, path string, seq uint64) string {
	t.Helper()
	for _, name := range files(t, path) {
		for line := range bytes.Lines(plain(t, name)) {
			r, _ := auditlog.ParseRecord(bytes.TrimSuffix(line, []byte("\n")))
			for _, field := range []string{"params", "result"} {
				if r.Line.Seal.Seq == seq && bytes.Contains(r.Member(field), []byte(planted)) {
					return field
				}
			}
		}
	}
	return ""
}

func countFindings(r *auditlog.Report, kind string) (n int) {
	for _, f := range r.Findings {
		if f.Kind == kind {
			n += f.Count
		}
	}
	return n
}

func TestErasureInAClosedSegmentKeepsTheManifestTrue(t *testing.T) {
	for _, compress := range []bool{false, true} {
		t.Run(fmt.Sprintf("compressed=%v", compress), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "audit.jsonl")
			s := rotating(auditlog.Rotation{Size: 4000, Compress: compress})
			l := s.open(t, path)
			callWith(t, l, planted)
			for len(archives(t, path)) < 2 {
				call(t, l)
			}
			if compress {
				awaitCompressed(t, path)
			}
			seqs := seqsWith(t, path, planted)
			if len(seqs) != 2 {
				t.Fatalf("records %v", seqs)
			}
			for _, seq := range seqs {
				erase(t, l, seq, auditlog.WholeRecord)
			}
			call(t, l)
			closeLog(t, l)
			verifyAll(t, path, "erased_record")
			nowhere(t, filepath.Dir(path), planted)
		})
	}
}

func awaitCompressed(t testing.TB, path string) {
	t.Helper()
	eventually(t, "the first segment is compressed", func() bool {
		list := archives(t, path)
		return len(list) > 0 && strings.HasSuffix(list[0], ".gz")
	})
}

// Another process' writer knows the log as it was before.
func TestErasureBesideAnotherWriter(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		s := committing(t, auditlog.Rotation{}, "payload")
		running := s.open(t, path)
		callWith(t, running, planted)
		seqs := seqsWith(t, path, planted)
		tool := s.open(t, path)
		for _, seq := range seqs {
			erase(t, tool, seq, auditlog.WholeRecord)
		}
		closeLog(t, tool)
		for range 3 {
			call(t, running)
		}
		closeLog(t, running)
		verifyAll(t, path, "erased_record")
		nowhere(t, filepath.Dir(path), planted)
	})
}

// A writer that has not looked since before the erased record reads on over it.
func TestErasureBesideAWriterThatIsBehind(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		s := setup{}
		behind := s.open(t, path)
		other := s.open(t, path)
		callWith(t, other, planted)
		call(t, other)
		for _, seq := range seqsWith(t, path, planted) {
			erase(t, other, seq, auditlog.WholeRecord)
		}
		call(t, other)
		call(t, behind)
		call(t, other)
		closeLog(t, behind)
		closeLog(t, other)
		verifyAll(t, path, "erased_record")
	})
}

func TestErasureThatCannotBe(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		l := committing(t, auditlog.Rotation{}, "payload").open(t, path)
		call(t, l)
		op, err := l.Begin(context.Background(), anIntent())
		if err != nil {
			t.Fatal(err)
		}
		list := records(t, path)
		going := list[len(list)-1].seal.Seq
		ended := seqsWith(t, path, `"kind":"outcome"`)[0]
		before := len(list)
		full := auditlog.Erasure{Seq: ended, Field: "result", Reason: "r", AuthorisedBy: "a"}
		for _, c := range []struct {
			name   string
			change func(e *auditlog.Erasure)
			want   string
		}{
			{"no reason", func(e *auditlog.Erasure) { e.Reason = "" }, "needs a reason"},
			{"nobody", func(e *auditlog.Erasure) { e.AuthorisedBy = "" }, "needs a reason"},
			{"no field", func(e *auditlog.Erasure) { e.Field = "" }, "needs a field"},
			{"member without a commitment", func(e *auditlog.Erasure) { e.Field = "principal" }, "does not commit to"},
			{"the log's own record", func(e *auditlog.Erasure) { e.Seq, e.Field = 0, "*" }, "of kind genesis"},
			{"no such record", func(e *auditlog.Erasure) { e.Seq = 10_000 }, "has no record 10000"},
			{"call that goes on", func(e *auditlog.Erasure) { e.Seq, e.Field = going, "*" }, "still going on"},
			{"long reason", func(e *auditlog.Erasure) { e.Reason = strings.Repeat("x", 2000) }, "longer than"},
		} {
			e := full
			c.change(&e)
			if err := l.Erase(context.Background(), e); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if now := len(records(t, path)); now != before {
			t.Errorf("%d records were written for erasures that cannot be", now-before)
		}
		if err := op.End(context.Background(), anOutcome()); err != nil {
			t.Fatal(err)
		}
		closeLog(t, l)
		verifyAll(t, path)
	})
}

func TestErasureIsDoneOnce(t *testing.T) {
	stores(t, func(t *testing.T, path string) {
		l := setup{}.open(t, path)
		callWith(t, l, planted)
		seq := seqsWith(t, path, planted)[0]
		erase(t, l, seq, auditlog.WholeRecord)
		erase(t, l, seq, auditlog.WholeRecord)
		closeLog(t, l)
		n := 0
		for _, name := range files(t, path) {
			for line := range bytes.Lines(plain(t, name)) {
				n += bytes.Count(line, []byte(`"kind":"erasure"`))
			}
		}
		if n != 1 {
			t.Errorf("%d records of one erasure", n)
		}
		verifyAll(t, path, "erased_record")
	})
}

// Whatever call of an erasure fails, or is the last one before a crash: the log
// goes on, and the erasure is completed by calling it again.
func TestEveryCallOfAnErasureMayFail(t *testing.T) {
	for name, fault := range map[string]error{"EIO": syscall.EIO, "ENOSPC": syscall.ENOSPC, "kill": errKill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			step := 1
			if testing.Short() {
				step = 5
			}
			for n := 0; erasureFails(t, n, fault) && !t.Failed(); n += step {
			}
		})
	}
}

// erasureFails erases a record with call n failing, and completes that without
// faults. It reports whether the erasure came to call n.
func erasureFails(t *testing.T, n int, fault error) bool {
	path := filepath.Join(filepath.Dir(quickPath(t)), "audit.jsonl")
	layer := newFaulty(nil)
	s := setup{fs: layer}
	l := s.open(t, path)
	callWith(t, l, planted)
	call(t, l)
	seq := seqsWith(t, path, planted)[1]
	var from atomic.Int64
	var reached atomic.Bool
	from.Store(-1)
	layer.set(func(i int, op, _ string) error {
		from.CompareAndSwap(-1, int64(i))
		switch at := i - int(from.Load()); {
		case at < n:
			return nil
		case at == n:
			reached.Store(true)
			if errors.Is(fault, errKill) && op == "write" {
				return errShort
			}
			return fault
		case errors.Is(fault, errKill):
			return fault
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = l.Erase(ctx, auditlog.Erasure{Seq: seq, Field: auditlog.WholeRecord, Reason: "r", AuthorisedBy: "a"})
	if !errors.Is(fault, errKill) {
		layer.set(nil)
	}
	_ = l.Close(ctx)
	layer.set(nil)
	again := setup{}.open(t, path)
	erase(t, again, seq, auditlog.WholeRecord)
	call(t, again)
	closeLog(t, again)
	verifyAll(t, path, "erased_record", "outcome_unknown", "io_error", "disk_full")
	if left := seqsWith(t, path, planted); len(left) != 1 {
		t.Errorf("with call %d failing, %d records have the value", n, len(left))
	}
	return reached.Load()
}
