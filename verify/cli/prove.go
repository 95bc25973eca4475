package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// proveFlags are the options of prove.
type proveFlags struct {
	seq         int64
	operation   string
	consistency string
	disclose    []string
	out         string
	pub         string
	checkpoint  string
}

func proveCommand() *cobra.Command {
	f := proveFlags{}
	cmd := &cobra.Command{
		Use:   "prove [PATH… | FOLDER] --seq N | --operation ID | --consistency OLD",
		Short: "Prove to others that a record stands in the log, without giving them the log",
		Long: `prove writes NAME.json, the record, and NAME.tlog-proof, which proves that the
log has it: the hashes from the record up to a signed checkpoint, and that
checkpoint. Whoever has the public key checks both with the command
` + "`mcp-audit verify-proof`" + `; the log and its secrets stay here.

--operation proves both records of a call: NAME.intent.* and NAME.outcome.*. Of
members that the log only commits to, those named by --disclose are included
(all: every one); the others stay hidden, and the proof still holds.

The newest checkpoint of the log that covers the record is used; one that
witnesses cosigned goes before one that none did. --consistency proves that the
newest checkpoint continues an older one that somebody holds.

The whole log is read, and its hashes are kept in the temporary folder
meanwhile, 33 bytes a record. Records whose files are gone need the folder of
tiles beside the log.`,
		Example: `  mcp-audit prove --seq 12 --output call
  mcp-audit prove /var/lib/mcp-audit --operation 019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9 --disclose params
  mcp-audit prove --consistency held.checkpoint --output since-then`,
		Args: cobra.ArbitraryArgs,
		RunE: f.run,
	}
	flags := cmd.Flags()
	flags.Int64Var(&f.seq, "seq", -1, "`number` of the record")
	flags.StringVar(&f.operation, "operation", "", "operation `id`, or the id of a record")
	flags.StringVar(&f.consistency, "consistency", "", "`file` with an older checkpoint that the log continues")
	flags.StringSliceVar(&f.disclose, "disclose", nil, "committed `members` to include, for example params,result; or all")
	flags.StringVarP(&f.out, "output", "o", "", "`name` of the files to write, without their endings (default: record-N, operation-ID or consistency)")
	flags.StringVar(&f.pub, "pub", "", "public key (`vkey`) that the checkpoint must be signed with (default: the one the log names)")
	flags.StringVar(&f.checkpoint, "checkpoint", "", "`file` with the checkpoint to prove with, for example one that witnesses cosigned")
	return cmd
}

func (f *proveFlags) run(cmd *cobra.Command, args []string) (err error) {
	chosen := 0
	for _, given := range []bool{f.seq >= 0, f.operation != "", f.consistency != ""} {
		if given {
			chosen++
		}
	}
	if chosen != 1 || cmd.Flags().Changed("seq") && f.seq < 0 {
		return usage("give exactly one of --seq N, --operation ID and --consistency OLD")
	}
	logs, err := logsOf(args)
	if err != nil {
		return err
	}
	if len(logs) > 1 {
		return usage("the folder has %d logs; give the path of one", len(logs))
	}
	snap, err := logs[0].snapshot()
	if err != nil {
		return err
	}
	defer snap.close()
	sources, o, err := f.sources(snap)
	if err != nil {
		return err
	}
	if o.Work, err = os.MkdirTemp("", "mcp-audit-prove-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Work)) }()
	if f.consistency != "" {
		return f.proveConsistency(cmd, sources, o)
	}
	return f.proveRecords(cmd, sources, o)
}

// sources are the files of a log, and what they are proven with.
func (f *proveFlags) sources(snap *snapshot) (sources []auditlog.Source, o auditlog.ProveOptions, err error) {
	log := snap.logFiles
	databases, err := databasesOf(log.files)
	if err != nil {
		return nil, o, err
	}
	if sources, err = snap.sources(newSegmentLimits(defaultMaxSegment, snap.manifest), databases); err != nil {
		return nil, o, err
	}
	o = auditlog.ProveOptions{
		VKey:  f.pub,
		Tiles: func(origin string) string { return auditlog.TilesDir(log.active(), origin) },
	}
	if f.checkpoint == "" {
		o.Checkpoints = notesBeside(log)
		return sources, o, nil
	}
	note, err := readNote(f.checkpoint)
	if err != nil {
		return nil, o, usage("reading the checkpoint: %w", err)
	}
	o.Checkpoints, o.Only = [][]byte{note}, true
	return sources, o, nil
}

func (f *proveFlags) proveRecords(cmd *cobra.Command, sources []auditlog.Source, o auditlog.ProveOptions) error {
	base := f.want(&o)
	if f.out != "" {
		base = f.out
	}
	proven, warnings, err := auditlog.Prove(cmd.Context(), sources, o)
	warnAbout(cmd, warnings)
	if errors.Is(err, auditlog.ErrNoRecord) {
		return fmt.Errorf("the log has no %s; `mcp-audit tail` lists ids", f.what())
	}
	if err != nil {
		return err
	}
	for _, r := range proven {
		name := base
		if len(proven) > 1 {
			name += "." + r.Kind
		}
		if err := f.write(cmd, name, &r); err != nil {
			return err
		}
	}
	return nil
}

// want says which records are proven, and how their files are called.
func (f *proveFlags) want(o *auditlog.ProveOptions) (base string) {
	if f.operation == "" {
		o.Match = func(r *auditlog.Record) bool { return r.Line.Seal.Seq == uint64(f.seq) }
		return fmt.Sprintf("record-%d", f.seq)
	}
	key := []byte(f.operation)
	o.Match = func(r *auditlog.Record) bool {
		return bytes.Contains(r.Raw, key) && (r.Text("audit_operation_id") == f.operation || r.Text("id") == f.operation)
	}
	return "operation-" + strings.Map(fileRune, f.operation)
}

// disclosing is a proven record's line with the members that are disclosed,
// and the names of those that stay hidden.
func (f *proveFlags) disclosing(r *auditlog.ProvenRecord) (line []byte, hidden []string, err error) {
	committed, disclosed := openingNames(r.Line), f.disclose
	if len(disclosed) == 1 && disclosed[0] == "all" {
		disclosed = committed
	}
	if f.operation != "" {
		// The members of intent and outcome differ; each discloses its own.
		disclosed = common(disclosed, committed)
	}
	line, err = auditlog.Disclose(r.Line, disclosed)
	return line, without(committed, disclosed), err
}

// what names what is asked for.
func (f *proveFlags) what() string {
	if f.operation != "" {
		return fmt.Sprintf("operation or record %q", f.operation)
	}
	return fmt.Sprintf("record %d", f.seq)
}

// write writes one record and its proof.
func (f *proveFlags) write(cmd *cobra.Command, name string, r *auditlog.ProvenRecord) error {
	line, hidden, err := f.disclosing(r)
	if err != nil {
		return usage("%w", err)
	}
	if err := writeFile(name+".json", append(line, '\n')); err != nil {
		return err
	}
	if err := writeFile(name+".tlog-proof", r.Proof.Text()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s.json, %s.tlog-proof: record %d (%s), proven with the checkpoint of %d records\n",
		name, name, r.Proof.Index, printable(r.Kind), r.Head.Size)
	if len(hidden) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "  not disclosed: %s\n", printable(strings.Join(hidden, ", ")))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "  check: mcp-audit verify-proof %s.json %s.tlog-proof --pub %s\n", name, name, r.VKey)
	return nil
}

func (f *proveFlags) proveConsistency(cmd *cobra.Command, sources []auditlog.Source, o auditlog.ProveOptions) error {
	old, err := readNote(f.consistency)
	if err != nil {
		return usage("reading the older checkpoint: %w", err)
	}
	p, vkey, warnings, err := auditlog.ProveConsistency(cmd.Context(), sources, old, o)
	warnAbout(cmd, warnings)
	if err != nil {
		if errors.Is(err, auditlog.ErrProofInvalid) || errors.Is(err, auditlog.ErrTreeDiffers) {
			return &ExitError{Code: exitFailed, Err: err}
		}
		return err
	}
	name := f.out
	if name == "" {
		name = "consistency"
	}
	if err := writeFile(name+".tlog-consistency", p.Text()); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s.tlog-consistency: the log continues the checkpoint of %d records\n", name, p.Old)
	fmt.Fprintf(cmd.OutOrStdout(), "  check: mcp-audit verify-proof --consistency %s %s.tlog-consistency --pub %s\n", f.consistency, name, vkey)
	return nil
}

func warnAbout(cmd *cobra.Command, warnings []string) {
	for _, w := range warnings {
		cmd.PrintErrf("mcp-audit: warning: %s\n", printable(w))
	}
}

// notesBeside reads the checkpoint files and the receipts beside a log.
func notesBeside(log logFiles) (notes [][]byte) {
	paths := make([]string, 0, len(log.files))
	for _, path := range log.files {
		paths = append(paths, path+".checkpoint")
	}
	for _, path := range append(paths, receiptsBeside(log.active())...) {
		// One that cannot be read is of no use; verify says what is wrong with it.
		if note, err := readNote(path); err == nil {
			notes = append(notes, note)
		}
	}
	return notes
}

// receiptsBeside lists the notes that anchors gave back, in the folder beside
// a log.
func receiptsBeside(log string) []string {
	// The pattern is well-formed whatever the name: only the folder is listed.
	entries, err := os.ReadDir(log + ".anchors")
	if err != nil {
		return nil
	}
	var paths []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".checkpoint") && e.Type().IsRegular() {
			paths = append(paths, filepath.Join(log+".anchors", e.Name()))
		}
	}
	return paths
}

// openingNames lists the committed members whose values a line carries.
func openingNames(line []byte) (names []string) {
	l, fault := auditlog.SplitLine(line)
	if fault != auditlog.LineOK {
		return nil
	}
	auditlog.ObjectMembers(l.Open, func(name, _ []byte) bool {
		names = append(names, string(name))
		return true
	})
	return names
}

func common(a, b []string) []string { return filter(a, b, true) }

func without(a, b []string) []string { return filter(a, b, false) }

// filter lists what of a is (or is not) in b.
func filter(a, b []string, in bool) (out []string) {
	have := map[string]bool{}
	for _, x := range b {
		have[x] = true
	}
	for _, x := range a {
		if have[x] == in {
			out = append(out, x)
		}
	}
	return out
}

// fileRune keeps what can stand in any file's name.
func fileRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
		return r
	}
	return '_'
}
