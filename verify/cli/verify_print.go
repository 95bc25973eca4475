package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/verify/meaning"
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
	if r.Resumed != nil {
		line("resumed", "%s", resumedText(r))
	}
	if r.CursorUnused != "" {
		line("cursor", "not used, the log was read from its beginning: %s", printable(r.CursorUnused))
	}
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
		until := ""
		if !a.Until.IsZero() {
			until = ", up to " + a.Until.Format(time.RFC3339)
		}
		line("anchored", "%d %s%s, by %s%s", a.Size, of, until, a.Name, witnessedText(a.Witnesses))
	}
	fmt.Fprintf(w, "%s\n", r.NotCoveredSentence())
	printFindings(w, log, r)
	fmt.Fprintf(w, "%s\n", verdict(r.Exit))
	if hint := keyHint(r); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", hint)
	}
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
	defer printMeanings(w, r.Findings)
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
		} else if f.File != "" && len(log.files) > 1 {
			where = f.File + ": "
		} else if f.Count > 1 {
			where = fmt.Sprintf("%d times: ", f.Count)
		}
		fmt.Fprintf(w, "  %-10s %-20s %s%s\n", classNames[f.Class], f.Kind, where, printable(f.Detail))
	}
}

// printMeanings says in plain words what each kind of finding means, once, the
// worst first.
func printMeanings(w io.Writer, findings []auditlog.Finding) {
	fmt.Fprintln(w, "what this means, and what to do:")
	for _, class := range []string{auditlog.ClassTampered, auditlog.ClassDiverges, auditlog.ClassIncomplete, auditlog.ClassWarning} {
		done := map[string]bool{}
		for _, f := range findings {
			text, ok := meaning.Finding(f.Kind)
			if f.Class != class || done[f.Kind] || !ok {
				continue
			}
			done[f.Kind] = true
			fmt.Fprintf(w, "  %s (%s)\n    %s\n    To do: %s\n", f.Kind, meaning.Severity(class), text.What, text.Do)
		}
	}
}

// keyHint says what to try where the keys seem to be the reason.
func keyHint(r *auditlog.Report) string {
	for _, f := range r.Findings {
		switch {
		case f.Kind == "mac_unchecked":
			return "give the key file with --keys, the secret in MCP_AUDIT_SIGNING_SECRET, or the public key with --pub"
		case f.Kind == "unknown_key", f.Kind == "mac_invalid" && strings.HasSuffix(f.Detail, "wrong key?"):
			return "if the log is good, the keys are not its own: give the key file with --keys, or the secret in MCP_AUDIT_SIGNING_SECRET"
		}
	}
	return ""
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
