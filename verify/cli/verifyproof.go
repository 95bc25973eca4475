package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// maxProofFile is more than any proof or policy has.
const maxProofFile = 1 << 20

// verifyProofFlags are the options of verify-proof.
type verifyProofFlags struct {
	pub, policy, consistency string
	json                     bool
}

func verifyProofCommand() *cobra.Command {
	f := verifyProofFlags{}
	cmd := &cobra.Command{
		Use:   "verify-proof NAME.json NAME.tlog-proof --pub VKEY | --policy FILE",
		Short: "Check the proof of a record with a public key alone",
		Long: `verify-proof checks that a record stands in a log, without the log and without a
secret: the record's bytes, what it discloses, the hashes up to the checkpoint,
and the checkpoint's signatures.

--pub names the log's public key, as ` + "`mcp-audit pubkey`" + ` prints it; get it by a
way that whoever gave you the proof does not control. --policy is a file that
names logs, witnesses, and how many witnesses must have cosigned the checkpoint
(C2SP tlog-policy). Of the record's seal, the proof covers number and leaf hash;
its chain and MAC only ` + "`mcp-audit verify`" + ` can check, with the log.

With --consistency OLD the one file is a proof that a newer checkpoint continues
the older one.

Exit code: 0 proven; 1 not, with the reason (proof_invalid); 2 usage, or not
readable.`,
		Example: `  mcp-audit verify-proof call.json call.tlog-proof --pub "$(cat gateway.vkey)"
  mcp-audit verify-proof call.json call.tlog-proof --policy trust.policy --json
  mcp-audit verify-proof --consistency held.checkpoint since-then.tlog-consistency --pub "$(cat gateway.vkey)"`,
		Args: cobra.RangeArgs(1, 2),
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.pub, "pub", "", "public key (`vkey`) of the log")
	flags.StringVar(&f.policy, "policy", "", "`file` with the logs and witnesses to trust")
	flags.StringVar(&f.consistency, "consistency", "", "`file` with the older checkpoint, for a proof of consistency")
	flags.BoolVar(&f.json, "json", false, "print the result as one JSON object")
	return cmd
}

func (f *verifyProofFlags) run(cmd *cobra.Command, args []string) error {
	want, what := 2, "the record and its proof"
	if f.consistency != "" {
		want, what = 1, "the proof of consistency"
	}
	if len(args) != want {
		return usage("give %s; see `%s --help`", what, cmd.CommandPath())
	}
	policy, err := f.trust()
	if err != nil {
		return err
	}
	var result map[string]any
	var text string
	if f.consistency != "" {
		result, text, err = f.verifyConsistency(args[0], policy)
	} else {
		result, text, err = verifyRecord(args[0], args[1], policy)
	}
	if err != nil && !errors.Is(err, auditlog.ErrProofInvalid) {
		return err
	}
	switch {
	case f.json && err != nil:
		return errors.Join(printJSON(cmd.OutOrStdout(), map[string]any{
			"proven": false, "finding": "proof_invalid", "detail": reason(err),
		}), &ExitError{Code: auditlog.ExitTampered})
	case err != nil:
		fmt.Fprintf(cmd.OutOrStdout(), "NOT PROVEN: proof_invalid: %s\n", printable(reason(err)))
		return &ExitError{Code: auditlog.ExitTampered}
	case f.json:
		result["proven"] = true
		return printJSON(cmd.OutOrStdout(), result)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), text)
	return err
}

// reason is the error without the finding's name in front.
func reason(err error) string {
	return strings.TrimPrefix(err.Error(), auditlog.ErrProofInvalid.Error()+": ")
}

// trust is what the flags say is trusted.
func (f *verifyProofFlags) trust() (*auditlog.TrustPolicy, error) {
	if f.policy == "" {
		if f.pub == "" {
			return nil, usage("give the log's public key with --pub, or a policy with --policy: a proof says nothing by itself")
		}
		policy, err := auditlog.PolicyOf(f.pub)
		if err != nil {
			return nil, usage("%w", err)
		}
		return policy, nil
	}
	text, err := readBounded(f.policy, maxProofFile)
	if err != nil {
		return nil, usage("reading the policy: %w", err)
	}
	policy, err := auditlog.ParsePolicy(text)
	switch {
	case err != nil:
		return nil, usage("%s: %w", f.policy, err)
	case policy.HasLogs() && f.pub != "":
		return nil, usage("--policy names its logs, so --pub has no place; give one of them")
	case policy.HasLogs():
		return policy, nil
	case f.pub == "":
		return nil, usage("%s names no log; add a log line, or give the log's public key with --pub", f.policy)
	}
	if policy, err = policy.WithLog(f.pub); err != nil {
		return nil, usage("%w", err)
	}
	return policy, nil
}

// verifyRecord checks a record's proof; both results say the same.
func verifyRecord(recordFile, proofFile string, policy *auditlog.TrustPolicy) (map[string]any, string, error) {
	line, err := readBounded(recordFile, auditlog.MaxLine+1)
	if err != nil {
		return nil, "", usage("reading the record: %w", err)
	}
	proof, err := readBounded(proofFile, maxProofFile)
	if err != nil {
		return nil, "", usage("reading the proof: %w", err)
	}
	p, err := auditlog.VerifyProof(line, proof, policy)
	if err != nil {
		return nil, "", err
	}
	seq := p.Record.Line.Seal.Seq
	disclosed := map[string]json.RawMessage{}
	for _, name := range p.Disclosed {
		disclosed[name] = p.Record.Member(name)
	}
	result := map[string]any{
		"origin": p.Head.Origin, "seq": seq, "kind": p.Record.Kind, "size": p.Head.Size,
		"timestamp": p.Record.Time().Format(time.RFC3339Nano), "witnesses": witnesses(p.Witnesses),
		"disclosed": disclosed, "withheld": list(p.Withheld), "record": json.RawMessage(p.Record.Line.Body()),
	}
	var b strings.Builder
	what := p.Record.Kind
	for _, name := range []string{"method", "mcp_name", "outcome"} {
		if text := p.Record.Text(name); text != "" {
			what += " " + text
		}
	}
	fmt.Fprintf(&b, "proven: record %d of %s: %s, at %s\n", seq, printable(p.Head.Origin), printable(what), timeOf(p.Record.Time()))
	fmt.Fprintf(&b, "checkpoint: %d records\n", p.Head.Size)
	for _, w := range p.Witnesses {
		fmt.Fprintf(&b, "witnessed: by %s at %s\n", printable(w.Witness), timeOf(w.Time))
	}
	if len(p.Disclosed) > 0 {
		fmt.Fprintf(&b, "disclosed: %s\n", printable(strings.Join(p.Disclosed, ", ")))
	}
	if len(p.Withheld) > 0 {
		fmt.Fprintf(&b, "not disclosed: %s\n", printable(strings.Join(p.Withheld, ", ")))
	}
	return result, b.String(), nil
}

func (f *verifyProofFlags) verifyConsistency(proofFile string, policy *auditlog.TrustPolicy) (map[string]any, string, error) {
	old, err := readBounded(f.consistency, maxProofFile)
	if err != nil {
		return nil, "", usage("reading the older checkpoint: %w", err)
	}
	text, err := readBounded(proofFile, maxProofFile)
	if err != nil {
		return nil, "", usage("reading the proof: %w", err)
	}
	p, err := auditlog.ParseConsistencyProof(text)
	if err != nil {
		return nil, "", err
	}
	from, to, err := p.Check(old, policy)
	if err != nil {
		return nil, "", err
	}
	return map[string]any{"origin": to.Origin, "old": from.Size, "size": to.Size},
		fmt.Sprintf("proven: %s: the checkpoint of %d records continues that of %d\n", printable(to.Origin), to.Size, from.Size), nil
}

func witnesses(list []auditlog.Cosignature) []auditlog.Cosignature {
	return append([]auditlog.Cosignature{}, list...)
}

// list is an empty list, not null, in JSON.
func list(names []string) []string { return append([]string{}, names...) }

// readBounded reads a file of up to limit bytes.
func readBounded(path string, limit int64) (data []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return data, err
}
