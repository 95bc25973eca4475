package cli

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

// printForeign prints the report on a log of another system.
func printForeign(w, errs io.Writer, log logFiles, r *legacy.Report) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s: %s\n", name, fmt.Sprintf(format, args...))
	}
	line("log", "%s", strings.Join(log.files, ", "))
	line("format", "%s", r.Format.Title())
	line("records", "%d%s", r.Records, kindsText(r.Kinds))
	var statuses []string
	for _, s := range slices.Sorted(maps.Keys(r.Statuses)) {
		statuses = append(statuses, fmt.Sprintf("%s %d", s, r.Statuses[s]))
	}
	if len(statuses) > 0 {
		line("status", "%s", strings.Join(statuses, ", "))
	}
	line("verified", "%d", r.Verified)
	line("invalid", "%d", r.Invalid)
	line("legacy", "%d", r.Legacy)
	line("unsigned", "%d", r.Unsigned)
	line("mac", "%s", r.MAC)
	for _, a := range r.Watermarks.AnchoredBy {
		line("anchored", "%d of %d, by %s", a.Size, r.Watermarks.Records, a.Name)
	}
	fmt.Fprintf(w, "%s\n", r.NotCoveredSentence())
	line("note", "%s", r.Promise)
	printFindings(w, log, &auditlog.Report{Findings: r.Findings})
	fmt.Fprintf(w, "%s\n", foreignVerdict(r))
	if slices.ContainsFunc(r.Findings, func(f auditlog.Finding) bool { return f.Kind == "mac_unchecked" }) {
		fmt.Fprintf(w, "hint: give the other system's secret in MCP_AUDIT_SIGNING_SECRET, its key file with --keys, or its public key with --pub\n")
	}
	if r.FirstError != "" {
		fmt.Fprintf(errs, "mcp-audit: %s\n", printable(r.FirstError))
	}
}

// foreignVerdict says no more than the format proves.
func foreignVerdict(r *legacy.Report) string {
	switch r.Exit {
	case auditlog.ExitClean:
		if r.Legacy > 0 {
			return "result: the signatures that are there fit; parts of the records have none"
		}
		return "result: the signatures fit, which is all that this format can show"
	case auditlog.ExitTampered:
		return "result: THE LOG IS NOT WHAT WAS WRITTEN, OR NOT WHAT IS REQUIRED (exit 1)"
	}
	return verdict(r.Exit)
}

// trimmed is a text without the white space around it.
func trimmed(text []byte) string { return string(bytes.TrimSpace(text)) }

// safeName makes a file's name fit for an origin.
func safeName(name string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f || strings.ContainsRune(`+"\`, r) {
			return '-'
		}
		return r
	}, name)
}
