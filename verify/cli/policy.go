package cli

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Explain a decision, or decide the recorded past anew",
		Long: `policy judges recorded messages by the policy of an mcp_audit handler: check
explains one decision rule by rule, replay lists all that would change.

` + policyNote,
		Example: `  mcp-audit policy check caddy.json --record 12
  mcp-audit policy replay caddy.json /var/lib/mcp-audit`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(policyCheckCommand(), policyReplayCommand())
	return cmd
}

const policyNote = `POLICY is Caddy's JSON configuration, as ` + "`caddy adapt`" + ` prints it, or - for
standard input. Where it has several mcp_audit handlers, --server or --handler
chooses one.

Records hold what was recorded, not what was sent: a value that was redacted is
judged as [REDACTED], which is noted, and params that were not kept count as
unknown: a rule that denies by them is skipped, one that allows by them counts.
Nothing is verified: see ` + "`mcp-audit verify`" + `.`

func policyCheckCommand() *cobra.Command {
	var flags policyFlags
	var key string
	cmd := &cobra.Command{
		Use:   "check POLICY --record SEQ|OPERATION|RECORD-ID [PATH… | FOLDER]",
		Short: "Say how a policy decides a recorded message, rule by rule",
		Long: `check judges one recorded message by a policy and prints every rule that was
tried: which selector did not match what, and what the condition came to.

` + policyNote,
		Example: `  caddy adapt --config Caddyfile | mcp-audit policy check - --record 12`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return usage("--record is missing; name a record by its seq, operation or id, as `mcp-audit tail` prints them")
			}
			h, err := flags.load(cmd, args[0])
			if err != nil {
				return err
			}
			logs, err := logsOf(args[1:])
			if err != nil {
				return err
			}
			for _, log := range logs {
				r, j, err := findJudged(log, key)
				if err != nil {
					return err
				}
				if r != nil {
					return explain(cmd.OutOrStdout(), h, r, j)
				}
			}
			return fmt.Errorf("no record of %s has seq, operation or id %q; `mcp-audit tail` lists ids", logs[0].name, key)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&key, "record", "", "the `record` to judge: its seq, its operation or its id")
	return cmd
}

// findJudged reads a log up to the record that a key names. An operation is
// judged by its intent. j is nil if no policy judges the record.
func findJudged(log logFiles, key string) (found *auditlog.Record, j *judged, err error) {
	seq, seqErr := strconv.ParseUint(key, 10, 53)
	p := newPast()
	err = eachRecord(log, func([]byte) bool { return true }, func(r *auditlog.Record) {
		seen := p.see(r)
		switch {
		case seqErr == nil && r.Line.Seal.Seq == seq, r.Text("id") == key:
			found, j = r, seen
		case r.Text("audit_operation_id") == key && (r.Kind == "intent" || found == nil):
			found, j = r, seen
		}
	})
	return found, j, err
}

// explain prints how a record is decided.
func explain(w io.Writer, h *auditHandler, r *auditlog.Record, j *judged) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "record    %s\n", recordTitle(r))
	if j == nil {
		fmt.Fprintln(out, "decision  none: no policy judges this record; name the record of the request")
		return out.Flush()
	}
	fmt.Fprintf(out, "recorded  %s\n", recordedDecision(r))
	calls := j.asked
	if len(calls) == 0 {
		calls = []policy.Call{j.call}
	}
	var d policy.Decision
	var traces []*policy.Trace
	for i := range calls {
		t := h.policy.Explain(&calls[i], j.listing)
		traces = append(traces, t)
		if d = t.Decision; !d.Allow {
			break
		}
	}
	fmt.Fprintf(out, "policy    %s (%s)\n", h.policy.Digest(), h.place)
	fmt.Fprintf(out, "decision  %s\n", decisionText(d))
	if j.redacted {
		fmt.Fprintln(out, "note      the record has [REDACTED] where the message had a value")
	}
	if j.listing {
		fmt.Fprintln(out, "note      the params were not kept in full and count as unknown")
	}
	for i, t := range traces {
		for _, part := range t.Parts {
			printPart(out, part, &calls[i], len(t.Parts)+len(traces) > 2)
		}
		if t.Decision.RuleID == "" && t.Decision.InScope && t.Decision.Anomaly == "" {
			fmt.Fprintf(out, "default   %s\n", action(t.Default))
		}
	}
	return out.Flush()
}

func printPart(out io.Writer, part *policy.Part, c *policy.Call, several bool) {
	if several {
		of := part.Of
		if of == "" {
			of = c.Method
		}
		fmt.Fprintf(out, "judged    %s\n", printable(of))
	}
	if part.Skip {
		fmt.Fprintln(out, "scope     tools_only: only tools/call and its tasks are judged")
	}
	for _, s := range part.Steps {
		fmt.Fprintf(out, "rule      %-5s %s: %s\n", action(s.Allow), printable(s.RuleID), printable(stepText(&s)))
	}
}

func stepText(s *policy.Step) string {
	switch {
	case s.Detail != "":
		return fmt.Sprintf("%s has no answer, which denies: %s", s.Selector, s.Detail)
	case s.Matched:
		return "matches"
	case s.Undecided && s.Allow:
		return "depends on what is unknown, so it counts"
	case s.Undecided:
		return "depends on what is unknown, so it is skipped"
	case s.Selector == "when":
		return "the condition is false: " + s.Patterns[0]
	case s.Value == "":
		return fmt.Sprintf("there is no %s to match %s", s.Selector, strings.Join(s.Patterns, " "))
	}
	return fmt.Sprintf("%s %q does not match %s", s.Selector, s.Value, strings.Join(s.Patterns, " "))
}

func action(allow bool) string {
	if allow {
		return "allow"
	}
	return "deny"
}

// decisionText is a decision in a few words.
func decisionText(d policy.Decision) string {
	text := action(d.Allow)
	switch {
	case !d.InScope:
		return text + ", out of the policy's scope"
	case d.RuleID != "":
		text += " by " + d.RuleID
	case d.Anomaly == "":
		text += " by default"
	}
	if d.Of != "" {
		text += ", because of " + d.Of
	}
	if d.Reason != "" {
		text += ": " + d.Reason
	}
	return printable(text)
}

// recordedDecision is what a record says was decided.
func recordedDecision(r *auditlog.Record) string {
	p := r.Member("policy")
	if p == nil {
		return "no decision"
	}
	text := inner(p, "decision")
	if rule := inner(p, "rule_id"); rule != "" {
		text += " by " + rule
	} else {
		text += " by default"
	}
	if reason := inner(p, "reason"); reason != "" {
		text += ": " + reason
	}
	return printable(text)
}

func recordTitle(r *auditlog.Record) string {
	words := []string{strconv.FormatUint(r.Line.Seal.Seq, 10), r.Time().UTC().Format(time.RFC3339), r.Kind, r.Text("method"), r.Text("mcp_name")}
	if client := r.Text("client_id"); client != "" {
		words = append(words, "client", client)
	}
	if subject := inner(r.Member("principal"), "subject"); subject != "" {
		words = append(words, "subject", subject)
	}
	return printable(strings.Join(strings.Fields(strings.Join(words, " ")), " "))
}

func policyReplayCommand() *cobra.Command {
	var flags policyFlags
	var asJSON, exitCode bool
	cmd := &cobra.Command{
		Use:   "replay POLICY [PATH… | FOLDER]",
		Short: "Decide the recorded past by a policy and list what would change",
		Long: `replay judges every recorded message of one server by a policy, in order, and
lists those that it would decide otherwise than was recorded, with a count. A
message without a recorded decision counts as allowed.

` + policyNote,
		Example: `  caddy adapt --config Caddyfile.new | mcp-audit policy replay - /var/lib/mcp-audit`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := flags.load(cmd, args[0])
			if err != nil {
				return err
			}
			logs, err := logsOf(args[1:])
			if err != nil {
				return err
			}
			r := replay{handler: h, out: bufio.NewWriter(cmd.OutOrStdout()), json: asJSON}
			for _, log := range logs {
				p := newPast()
				if err := eachRecord(log, func([]byte) bool { return true }, func(rec *auditlog.Record) { r.see(p, rec) }); err != nil {
					return err
				}
			}
			r.summary()
			if err := r.out.Flush(); err != nil {
				return err
			}
			if exitCode && r.denied+r.allowed > 0 {
				return &ExitError{Code: exitFailed}
			}
			return nil
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line, the counts last")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if any decision would change")
	return cmd
}

// replay counts and prints what a policy would change.
type replay struct {
	handler *auditHandler
	out     *bufio.Writer
	json    bool

	judged, same, otherRule, denied, allowed, redacted, unknown, others int
}

func (r *replay) see(p *past, rec *auditlog.Record) {
	j := p.see(rec)
	if j == nil {
		return
	}
	if rec.Text("server_id") != r.handler.serverID {
		r.others++
		return
	}
	r.judged++
	if j.redacted {
		r.redacted++
	}
	if j.listing {
		r.unknown++
	}
	was := rec.Member("policy")
	then := inner(was, "decision") != "deny"
	d := j.decide(r.handler.policy)
	switch {
	case d.Allow == then && (d.RuleID == inner(was, "rule_id") || rec.Kind == "outcome"):
		r.same++
		return
	case d.Allow == then:
		r.same++
		r.otherRule++
		return
	case d.Allow:
		r.allowed++
	default:
		r.denied++
	}
	if !r.json {
		fmt.Fprintf(r.out, "%s\n    was %s\n    now %s\n", recordTitle(rec), recordedDecision(rec), decisionText(d))
		return
	}
	b := append([]byte(`{"seq":`), strconv.FormatUint(rec.Line.Seal.Seq, 10)...)
	for _, m := range [][2]string{
		{"id", rec.Text("id")}, {"audit_operation_id", rec.Text("audit_operation_id")}, {"method", rec.Text("method")}, {"mcp_name", rec.Text("mcp_name")},
		{"client_id", rec.Text("client_id")}, {"subject", inner(rec.Member("principal"), "subject")},
		{"was", action(then)}, {"was_rule", inner(was, "rule_id")}, {"now", action(d.Allow)}, {"now_rule", d.RuleID}, {"reason", d.Reason},
	} {
		if m[1] != "" {
			b = append(canon.AppendString(append(b, ','), m[0]), ':')
			b = canon.AppendString(b, m[1])
		}
	}
	_, _ = r.out.Write(append(b, "}\n"...)) // the flush tells of errors
}

func (r *replay) summary() {
	if r.json {
		fmt.Fprintf(r.out, `{"judged":%d,"same":%d,"other_rule":%d,"now_denied":%d,"now_allowed":%d,"redacted":%d,"unknown_params":%d,"other_servers":%d}`+"\n",
			r.judged, r.same, r.otherRule, r.denied, r.allowed, r.redacted, r.unknown, r.others)
		return
	}
	fmt.Fprintf(r.out, "%d messages judged: %d as recorded (%d of them by another rule), %d would now be denied, %d would now be allowed\n",
		r.judged, r.same, r.otherRule, r.denied, r.allowed)
	for _, note := range []struct {
		n    int
		text string
	}{
		{r.redacted, "have redacted values, which were judged as [REDACTED]"},
		{r.unknown, "have params that were not kept in full, which count as unknown"},
		{r.others, "are of other servers and were not judged"},
	} {
		if note.n > 0 {
			fmt.Fprintf(r.out, "%d %s\n", note.n, note.text)
		}
	}
}
