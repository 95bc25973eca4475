package auditlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// longLog has one very long record among many short ones.
func longLog(t *testing.T, records, long int) *testLog {
	l := newTestLog(t, "audit.example/long")
	l.genesis()
	for n := range records {
		if n == records/2 {
			l.add("event", body{"params": strings.Repeat("x", long)})
		}
		l.outcome(n, l.intent(n, n%3 == 0), "success")
	}
	l.checkpoint()
	return l
}

func TestReportsDoNotDependOnHowTheWorkIsSpread(t *testing.T) {
	l := longLog(t, 1200, 700<<10)
	lines := l.files[0]
	lines[400] = strings.Replace(lines[400], `"success"`, `"denied"`, 1)
	lines[401] = "{}"
	lines[900], lines[901] = lines[901], lines[900]
	lines[1300] = lines[1299]
	lines[1500] += " "
	lines = append(lines, lines[30], lines[31])
	data := []byte(strings.Join(lines, "\n") + "\n" + strings.Repeat("\n", 20_000) + "torn")
	var want *Report
	for _, jobs := range []int{1, 2, 100} {
		opts := l.options()
		opts.Jobs = jobs
		r := verifyTest(t, []Source{memorySource("log", data)}, opts)
		if want == nil {
			want = r
			for _, kind := range []string{"content_modified", "unsealed_record", "seq_gap", "seq_regression", "duplicate_record", "malformed_line", "torn_tail"} {
				if !strings.Contains(kindsFound(r), kind) {
					t.Errorf("no %s in %s", kind, kindsFound(r))
				}
			}
		}
		if !reflect.DeepEqual(r, want) {
			t.Errorf("%d jobs: %s\n1 job: %s", jobs, kindsFound(r), kindsFound(want))
		}
	}
}

func TestLongLinesAreReadOrPassedOver(t *testing.T) {
	if testing.Short() {
		t.Skip("runs in full without the race detector")
	}
	const long = 6 << 20
	l := longLog(t, 20, long)
	whole := l.text(0)
	at := bytes.Index(whole, []byte("xxxx"))
	cases := []struct {
		name    string
		data    []byte
		maxLine int
		want    string
	}{
		{"within the limit", whole, 0, ""},
		{"beyond the limit, larger than a chunk", whole, 5 << 20, "oversized_line×1 seq_gap×1"},
		{"beyond the limit, smaller than a chunk", whole, 1 << 20, "oversized_line×1 seq_gap×1"},
		{"torn within the limit", whole[:at+5<<20], 0, "torn_tail×1"},
		{"torn beyond the limit", whole[:at+5<<20], 3 << 20, "torn_tail×1"},
		{"first line beyond the limit", append(bytes.Repeat([]byte("x"), 9<<20), '\n'), 8 << 20, "oversized_line×1 genesis_missing×1"},
	}
	for _, c := range cases {
		for _, jobs := range []int{1, 100} {
			t.Run(fmt.Sprintf("%s, %d jobs", c.name, jobs), func(t *testing.T) {
				opts := l.options()
				opts.MaxLine, opts.Jobs = c.maxLine, jobs
				r := verifyTest(t, []Source{memorySource("log", c.data)}, opts)
				var kinds []string
				for _, f := range r.Findings {
					if f.Kind != "outcome_missing" {
						kinds = append(kinds, fmt.Sprintf("%s×%d", f.Kind, f.Count))
					}
				}
				if got := strings.Join(kinds, " "); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		}
	}
}

func TestUnreadableSourceIsAnErrorWithWhatWasFound(t *testing.T) {
	l := smallLog(t)
	broken := errors.New("disk on fire")
	good := l.text(0)
	r, err := Verify(t.Context(), []Source{{Name: "log", Open: func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(good), iotest.ErrReader(broken))), nil
	}}}, l.options())
	if !errors.Is(err, broken) || r == nil || r.Exit != ExitUnreadable {
		t.Errorf("%v, %+v", err, r)
	}
	_, err = Verify(t.Context(), []Source{FileSource(t.TempDir() + "/none")}, l.options())
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Error(err)
	}
	if _, err := Verify(t.Context(), nil, l.options()); err == nil {
		t.Error("no source is accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Verify(ctx, l.sources(), l.options()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestFindingsAreBounded(t *testing.T) {
	l := newTestLog(t, "audit.example/noise")
	l.genesis()
	data := bytes.Repeat([]byte("{}\n\n"), 5*maxFindings)
	r := verifyTest(t, []Source{memorySource("log", append(l.text(0), data...))}, l.options())
	if len(r.Findings) > 2*maxFindings+2 {
		t.Errorf("%d findings", len(r.Findings))
	}
	total := 0
	for _, f := range r.Findings {
		total += f.Count
	}
	if total != 10*maxFindings || r.Unsigned != 5*maxFindings {
		t.Errorf("%d lines in findings, %d unsigned", total, r.Unsigned)
	}
}

func TestAHistoryThatBeginsAtAnAbsurdEpochCostsNothing(t *testing.T) {
	l := catalogueLog(t)
	l.files = l.files[1:]
	for i, line := range l.files[0] {
		l.files[0][i] = strings.Replace(line, `"epoch":1,"mac"`, `"epoch":9007199254740991,"mac"`, 1)
	}
	if r := verifyTest(t, l.sources(), l.options()); !strings.Contains(kindsFound(r), "epoch_violation") {
		t.Errorf("found %s", kindsFound(r))
	}
}
