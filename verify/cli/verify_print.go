package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// maxPrinted is the number of findings that the text lists.
const maxPrinted = 100

// printReport prints a report as text. Faults of the log also name the first
// of them on errs, as the reference system does.
func printReport(w, errs io.Writer, log logFiles, r *auditlog.Report, opts *auditlog.VerifyOptions) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s: %s\n", name, fmt.Sprintf(format, args...))
	}
	line("log", "%s", strings.Join(log.files, ", "))
	origin := r.Origin
	switch {
	case origin == "":
		origin = "unknown"
	case !r.OriginPinned:
		origin += " (unpinned: the log says so itself)"
	}
	line("origin", "%s", origin)
	line("records", "%d%s", r.Records, kindsText(r.Kinds))
	line("verified", "%d", r.Verified)
	line("invalid", "%d", r.Invalid)
	line("legacy", "%d", r.Legacy)
	line("unsigned", "%d", r.Unsigned)
	line("mac", "%s", r.MAC)
	w1 := r.Watermarks
	line("checkpointed", "%d of %d%s", w1.Checkpointed, w1.Records, checkpointKey(r, opts))
	if w1.Beside > 0 {
		line("beside", "%d of %d, in the checkpoint file beside the log, which is no external anchor", w1.Beside, w1.Records)
	}
	if len(w1.AnchoredBy) == 0 {
		line("anchored", "0 of %d", w1.Records)
	}
	for _, a := range w1.AnchoredBy {
		of := fmt.Sprintf("of %d", w1.Records)
		if a.Origin != r.Origin {
			of = "of " + a.Origin
		}
		line("anchored", "%d %s, by %s", a.Size, of, a.Name)
	}
	fmt.Fprintf(w, "%s\n", r.NotCoveredSentence())
	printFindings(w, log, r)
	fmt.Fprintf(w, "%s\n", verdict(r.Exit))
	if r.FirstError != "" {
		fmt.Fprintf(errs, "mcp-audit: %s\n", r.FirstError)
	}
}

func kindsText(kinds map[string]int) string {
	if len(kinds) == 0 {
		return ""
	}
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, kinds[kind]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func checkpointKey(r *auditlog.Report, opts *auditlog.VerifyOptions) string {
	switch {
	case r.Watermarks.Checkpointed == 0:
		return ""
	case opts.PublicKey != "":
		return ", signed with the public key that was given"
	}
	return ", signed with the key that the log names"
}

var classNames = map[string]string{
	auditlog.ClassTampered: "TAMPERED", auditlog.ClassDiverges: "DIVERGES",
	auditlog.ClassIncomplete: "incomplete", auditlog.ClassWarning: "warning",
}

func printFindings(w io.Writer, log logFiles, r *auditlog.Report) {
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "findings: none")
		return
	}
	fmt.Fprintf(w, "findings: %d\n", len(r.Findings))
	for i, f := range r.Findings {
		if i == maxPrinted {
			fmt.Fprintf(w, "  … and %d more; --json lists them\n", len(r.Findings)-i)
			return
		}
		where := ""
		if f.Line > 0 {
			where = fmt.Sprintf("line %d", f.Line)
			if f.Count > 1 {
				where = fmt.Sprintf("lines %d-%d", f.Line, f.Line+f.Count-1)
			}
			if len(log.files) > 1 {
				where = f.File + " " + where
			}
			if f.Seq != nil {
				where += fmt.Sprintf(", record %d", *f.Seq)
				if f.Count > 1 {
					where += fmt.Sprintf(" and %d more", f.Count-1)
				}
			}
			where += ": "
		} else if f.Count > 1 {
			where = fmt.Sprintf("%d times: ", f.Count)
		}
		fmt.Fprintf(w, "  %-10s %-20s %s%s\n", classNames[f.Class], f.Kind, where, printable(f.Detail))
	}
}

func verdict(exit int) string {
	switch exit {
	case auditlog.ExitClean:
		return "result: the log is intact as far as it was checked"
	case auditlog.ExitTampered:
		return "result: THE LOG IS NOT WHAT WAS WRITTEN (exit 1)"
	case auditlog.ExitDiverges:
		return "result: THE LOG DIFFERS FROM AN ANCHOR (exit 4)"
	case auditlog.ExitIncomplete:
		return "result: the log cannot be judged in full (exit 3)"
	}
	return "result: the log could not be read to its end (exit 2)"
}
