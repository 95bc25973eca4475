package auditlog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The classes of findings (docs/log-format.md, section "verify").
const (
	ClassTampered   = "T" // the log is not what was written
	ClassDiverges   = "D" // the log differs from an anchor that the verifier holds
	ClassIncomplete = "I" // the log cannot be judged in full
	ClassWarning    = "W" // a fact that the reader of the log should know
)

// findingClass lists every finding whose class is not T.
var findingClass = map[string]string{
	"tail_truncated": ClassDiverges, "anchor_mismatch": ClassDiverges, "anchor_equivocation": ClassDiverges,
	"anchor_ahead": ClassDiverges, "anchor_foreign": ClassDiverges, "anchor_sig_invalid": ClassDiverges, "anchor_invalid": ClassDiverges,

	"torn_tail": ClassIncomplete, "partial_history": ClassIncomplete, "stale_tail": ClassIncomplete,
	"checkpoint_overdue": ClassIncomplete, "mac_unchecked": ClassIncomplete,

	"chain_break": ClassWarning, "gap": ClassWarning, "erased_field": ClassWarning, "erased_record": ClassWarning,
	"outcome_missing": ClassWarning, "outcome_unknown": ClassWarning, "unknown_kind": ClassWarning,
	"time_regression": ClassWarning, "time_future": ClassWarning,
}

// tamperedFindings lists the findings of class T: those of verification, then
// those with which only a start or the check of a proof refuses.
var tamperedFindings = []string{
	"content_modified", "not_canonical", "extra_member",
	"seal_malformed", "unsealed_record", "malformed_line", "downgrade", "oversized_line",
	"seq_gap", "seq_regression", "duplicate_record", "fork", "chain_broken",
	"mac_invalid", "unknown_key", "key_range_violation", "epoch_violation", "sig_invalid",
	"genesis_missing", "second_genesis", "foreign_log",
	"segment_boundary", "segment_gap", "segment_missing", "segment_unclosed",
	"torn_segment", "empty_segment", "empty_log", "manifest_mismatch",
	"checkpoint_sig_invalid", "checkpoint_mismatch", "note_malformed",
	"opening_mismatch", "opening_missing", "opening_unbound", "outcome_orphan",
	"schema_mismatch", "index_corrupt", "derived_column_mismatch",

	"state_invalid", "state_missing", "log_missing", "log_replaced", "lock_replaced", "proof_invalid",
}

// FindingNames lists all findings, sorted: those of Verify, and those with
// which a start or the check of a proof refuses.
func FindingNames() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for _, name := range slices.Concat(tamperedFindings, slices.Collect(maps.Keys(findingClass))) {
			if !yield(name) {
				return
			}
		}
	})
}

// ClassOf is the class of a finding: T unless the log format says otherwise.
func ClassOf(kind string) string {
	if class, ok := findingClass[kind]; ok {
		return class
	}
	return ClassTampered
}

// Finding is one thing that verification found, or a run of equal ones on
// consecutive lines.
type Finding struct {
	Kind  string `json:"finding"`
	Class string `json:"class"`
	// File is the source's name, Line the first line's number in it, from 1.
	// Line is zero for a finding about a file as a whole, both are for one
	// about the log as a whole.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	// Seq is that of the record on the first line, if it has a valid seal.
	Seq *uint64 `json:"seq,omitempty"`
	// Count is the number of lines (at least 1).
	Count  int    `json:"count"`
	Detail string `json:"detail"`
}

// maxFindings bounds how many runs of one kind a report lists. What is beyond
// is counted in one further finding.
const maxFindings = 1000

// place is where in the sources something was found. The zero place is the log
// as a whole.
type place struct {
	file int // index of the source
	line int // from 1; 0: none
	seq  uint64
	// whole says that the source as a whole is meant.
	whole bool
	// sealed says that seq is the number in the line's seal.
	sealed bool
}

// findings collects and groups. It is not safe for concurrent use.
type findings struct {
	names []string
	all   []foundAt
	kinds map[string]*kindRun
	worst [4]bool // T, D, I, W
}

type foundAt struct {
	Finding
	file int
	last int // the last line of the run
}

type kindRun struct {
	at       int // index of the newest run in all
	runs     int
	overflow int // index of the finding that counts the rest, or -1
}

func newFindings(sources []Source) *findings {
	f := &findings{kinds: map[string]*kindRun{}}
	for _, s := range sources {
		f.names = append(f.names, s.Name)
	}
	return f
}

// single lists the findings that name something of their own on each line, so
// that runs of them are not joined.
var single = map[string]bool{
	"outcome_unknown": true, "outcome_missing": true, "chain_break": true, "gap": true,
	"anchor_mismatch": true, "anchor_foreign": true, "anchor_sig_invalid": true, "tail_truncated": true, "note_malformed": true,
	"anchor_equivocation": true, "opening_missing": true,
}

// add notes a finding. detail is only rendered for the first of a run.
func (f *findings) add(kind string, at place, format string, args ...any) {
	f.addAs(kind, ClassOf(kind), at, format, args...)
}

func (f *findings) addAs(kind, class string, at place, format string, args ...any) {
	f.worst[strings.Index("TDIW", class)] = true
	run := f.kinds[kind]
	if run == nil {
		run = &kindRun{at: -1, overflow: -1}
		f.kinds[kind] = run
	}
	if run.at >= 0 && at.line > 0 && !single[kind] {
		if last := &f.all[run.at]; last.file == at.file && (last.last == at.line || last.last+1 == at.line) && last.Line > 0 {
			if last.last != at.line {
				last.Count++
			}
			last.last = at.line
			return
		}
	}
	if run.runs >= maxFindings {
		if run.overflow < 0 {
			run.overflow = len(f.all)
			f.all = append(f.all, foundAt{Finding: Finding{Kind: kind, Class: class, Detail: fmt.Sprintf("further findings of this kind, beyond the first %d", maxFindings)}, file: len(f.names)})
		}
		f.all[run.overflow].Count++
		return
	}
	run.runs++
	run.at = len(f.all)
	found := foundAt{Finding: Finding{Kind: kind, Class: class, Count: 1, Line: at.line, Detail: fmt.Sprintf(format, args...)}, file: at.file, last: at.line}
	if at.line > 0 || at.whole {
		found.File = f.names[at.file]
	} else {
		found.file = len(f.names)
	}
	if at.sealed {
		seq := at.seq
		found.Seq = &seq
	}
	f.all = append(f.all, found)
}

// amend replaces the detail of the first finding of a kind.
func (f *findings) amend(kind, format string, args ...any) {
	for i := range f.all {
		if f.all[i].Kind == kind {
			f.all[i].Detail = fmt.Sprintf(format, args...)
			return
		}
	}
}

// has reports whether a finding of a kind was made.
func (f *findings) has(kind string) bool { return f.kinds[kind] != nil }

// list is what was found, in the order of the sources and lines; findings
// about the whole log come last.
func (f *findings) list() []Finding {
	slices.SortStableFunc(f.all, func(a, b foundAt) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.Line, b.Line))
	})
	list := make([]Finding, len(f.all))
	for i, found := range f.all {
		list[i] = found.Finding
	}
	return list
}

// exit is the exit code of the findings: 1 for T (with strict also for W), 4
// for D, 3 for I, 0 for none of these.
func (f *findings) exit(strict bool) int {
	switch {
	case f.worst[0] || strict && f.worst[3]:
		return ExitTampered
	case f.worst[1]:
		return ExitDiverges
	case f.worst[2]:
		return ExitIncomplete
	}
	return ExitClean
}
