package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Record is one record of a log, as any JSON tool reads it.
type Record struct {
	Kind        string          `json:"kind"`
	Timestamp   time.Time       `json:"timestamp"`
	OperationID string          `json:"audit_operation_id"`
	Direction   string          `json:"direction"`
	Transport   string          `json:"transport"`
	Revision    string          `json:"protocol_version"`
	Method      string          `json:"method"`
	RequestID   *string         `json:"request_id"`
	IDType      string          `json:"request_id_type"`
	Tool        string          `json:"tool_name"`
	Client      string          `json:"client_id"`
	Server      string          `json:"server_id"`
	Principal   map[string]any  `json:"principal"`
	Policy      map[string]any  `json:"policy"`
	Outcome     string          `json:"outcome"`
	Reason      string          `json:"reason"`
	HTTPStatus  int             `json:"http_status"`
	Params      json.RawMessage `json:"params"`
	Result      json.RawMessage `json:"result"`
	Error       json.RawMessage `json:"error"`
	IntentSeq   *uint64         `json:"intent_seq"`
	Duration    *int64          `json:"duration_ms"`
	Digest      string          `json:"request_sha256"`
	Count       int             `json:"count"`
	Seal        struct {
		Seq   uint64 `json:"seq"`
		Chain string `json:"chain"`
		Leaf  string `json:"leaf"`
	} `json:"seal"`
	Line string `json:"-"`
}

// Traffic reports whether the record is about a message.
func (r Record) Traffic() bool {
	return r.Kind == "intent" || r.Kind == "outcome" || r.Kind == "event"
}

// ReadLog reads every record of a log; a line that is no JSON object fails the
// test.
func ReadLog(t testing.TB, path string) []Record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return ParseLog(t, data)
}

// ParseLog is ReadLog of bytes.
func ParseLog(t testing.TB, data []byte) []Record {
	t.Helper()
	var records []Record
	for i, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("line %d of the log is no record: %v\n%.300s", i+1, err, line)
		}
		r.Line = string(line)
		records = append(records, r)
	}
	return records
}

// Records reads the log of a site.
func (c *Caddy) Records(t testing.TB) []Record {
	t.Helper()
	return ReadLog(t, c.Log)
}

// Select returns the records that a condition holds for.
func Select(records []Record, condition func(Record) bool) []Record {
	var found []Record
	for _, r := range records {
		if condition(r) {
			found = append(found, r)
		}
	}
	return found
}

// Operation is an intent and its outcome.
type Operation struct {
	Intent, Outcome Record
}

// Operations checks that every intent has exactly one outcome that comes after
// it, and returns the pairs in the order of their intents.
func Operations(t testing.TB, records []Record) []Operation {
	t.Helper()
	var operations []Operation
	index := make(map[string]int)
	for _, r := range records {
		switch r.Kind {
		case "intent":
			if _, dup := index[r.OperationID]; dup {
				t.Errorf("operation %s has two intents", r.OperationID)
			}
			index[r.OperationID] = len(operations)
			operations = append(operations, Operation{Intent: r})
		case "outcome":
			i, ok := index[r.OperationID]
			if !ok {
				t.Errorf("outcome %d has no intent before it", r.Seal.Seq)
				continue
			}
			if operations[i].Outcome.Kind != "" {
				t.Errorf("operation %s has two outcomes", r.OperationID)
			}
			if r.IntentSeq == nil || *r.IntentSeq != operations[i].Intent.Seal.Seq {
				t.Errorf("outcome %d does not name its intent", r.Seal.Seq)
			}
			operations[i].Outcome = r
		}
	}
	for _, o := range operations {
		if o.Outcome.Kind == "" {
			t.Errorf("%s %s (record %d) has no outcome", o.Intent.Method, o.Intent.Tool, o.Intent.Seal.Seq)
		}
	}
	return operations
}

// Operation waits until the log holds an intent for which the condition holds
// and its outcome, and returns them.
func (c *Caddy) Operation(t testing.TB, what string, condition func(Record) bool) Operation {
	t.Helper()
	var found Operation
	Eventually(t, "an intent and an outcome of "+what, func() bool {
		data, err := os.ReadFile(c.Log)
		if err != nil || len(data) == 0 || data[len(data)-1] != '\n' {
			return false
		}
		found = Operation{}
		for _, r := range ParseLog(t, data) {
			switch {
			case r.Kind == "intent" && condition(r):
				found.Intent = r
			case r.Kind == "outcome" && r.OperationID == found.Intent.OperationID:
				found.Outcome = r
			}
		}
		return found.Outcome.Kind != ""
	})
	return found
}

// CheckChain checks that the seals number the records without a gap.
func CheckChain(t testing.TB, records []Record) {
	t.Helper()
	for i, r := range records {
		if r.Seal.Seq != uint64(i) {
			t.Fatalf("record %d of the file has seq %d", i, r.Seal.Seq)
		}
	}
}

// Finding is a finding of mcp-audit verify.
type Finding struct {
	Finding string  `json:"finding"`
	Class   string  `json:"class"`
	File    string  `json:"file"`
	Line    int     `json:"line"`
	Seq     *uint64 `json:"seq"`
	Count   int     `json:"count"`
	Detail  string  `json:"detail"`
}

// Report is what mcp-audit verify --json prints.
type Report struct {
	Origin     string          `json:"origin"`
	Records    uint64          `json:"records"`
	Kinds      map[string]int  `json:"kinds"`
	MAC        string          `json:"mac"`
	Watermarks json.RawMessage `json:"watermarks"`
	Findings   []Finding       `json:"findings"`
	Exit       int             `json:"exit"`
	Text       string          `json:"-"`
}

// Has reports whether there is a finding of one of the kinds.
func (r Report) Has(kinds ...string) bool {
	for _, f := range r.Findings {
		for _, kind := range kinds {
			if f.Finding == kind {
				return true
			}
		}
	}
	return false
}

func (r Report) String() string {
	text := fmt.Sprintf("exit %d, %d records", r.Exit, r.Records)
	for _, f := range r.Findings {
		seq := ""
		if f.Seq != nil {
			seq = fmt.Sprintf(" seq %d", *f.Seq)
		}
		text += fmt.Sprintf("\n  %s %s line %d%s ×%d %s", f.Class, f.Finding, f.Line, seq, f.Count, f.Detail)
	}
	return text
}

// CLI returns a command of the mcp-audit program with a home in dir.
func CLI(t testing.TB, dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(Find(t).CLI, args...)
	cmd.Env = Environment(dir)
	cmd.Dir = dir
	return cmd
}

// Verify runs mcp-audit verify --json.
func Verify(t testing.TB, args ...string) Report {
	t.Helper()
	stdout, stderr, code := Run(t, CLI(t, os.TempDir(), append([]string{"verify", "--json"}, args...)...))
	var report Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("mcp-audit verify --json %q exited %d and printed no report: %v\n%s%s", args, code, err, stdout, stderr)
	}
	CheckReport(t, stdout)
	if report.Exit != code {
		t.Errorf("mcp-audit verify exited %d, its report says %d", code, report.Exit)
	}
	report.Text = stdout
	return report
}

// VerifyLog verifies a log with the keys beside it.
func VerifyLog(t testing.TB, log string, args ...string) Report {
	t.Helper()
	return Verify(t, append([]string{log, "--keys", filepath.Join(filepath.Dir(log), "keys.json")}, args...)...)
}

// VerifyClean verifies a log that must be clean, but for the named warnings.
func VerifyClean(t testing.TB, log string, warnings ...string) Report {
	t.Helper()
	report := VerifyLog(t, log)
	if report.Exit != 0 {
		t.Errorf("verify: %s", report)
	}
	for _, f := range report.Findings {
		expected := false
		for _, w := range warnings {
			expected = expected || f.Finding == w
		}
		if !expected {
			t.Errorf("verify found %s: %s", f.Finding, report)
		}
	}
	for _, w := range warnings {
		if !report.Has(w) {
			t.Errorf("verify does not name %s: %s", w, report)
		}
	}
	return report
}
