package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// verifyFlags are the options of verify.
type verifyFlags struct {
	format   string
	keys     string
	pub      string
	origin   string
	keyID    string
	anchors  []string
	manifest string
	segment  segmentSize
	maxLine  byteSize
	erasures int
	opts     auditlog.VerifyOptions
	json     bool
	since    string
	cursor   cursorFiles
	require  string
	needV2   bool
}

func verifyCommand() *cobra.Command {
	f := verifyFlags{maxLine: auditlog.MaxLine, segment: defaultMaxSegment, erasures: -1}
	cmd := &cobra.Command{
		Use:   "verify [PATH… | FOLDER]",
		Short: "Check that a log is what was written, and say what nothing protects",
		Long: `verify reads a log from its first record to its last and checks every byte of
it: each record's hash, its place, the chain, the MAC, the signed checkpoints,
and that each operation has its outcome. It names each fault with its file, line
and record, and goes on behind it.

A PATH is a log, with its closed segments, compressed or not. Several PATHs are
the files of one log, oldest first. A FOLDER is searched for logs. The log may
be in use, and be rotated meanwhile.

Segments. The manifest beside a log says which closed segments there must be,
and so does one that was kept somewhere else (--manifest). Where retention
deleted the beginning, the rest is checked and called a partial history.

Of a database it also checks the schema, the indexes and all that is computed
from the records.

Keys. MACs are checked with the key file of --keys, else with the secret in the
environment variable MCP_AUDIT_SIGNING_SECRET (or AUDIT_SECRET), else with
keys.json beside the log. With --pub alone, MACs are not checked: the chain and
the signed checkpoints are, which is what a third party can do.

Anchors. Who can write to a log's folder can cut the log's end, and nothing in
the folder tells. An anchor is a checkpoint (the file LOG.checkpoint, or what
` + "`mcp-audit checkpoint`" + ` prints) that was kept somewhere else; give it with
--anchor. The output always says which records no anchor covers.

Part of a log. --cursor FILE goes on behind what the last verification with that
file found intact, and writes the file anew: a log of years is checked in
seconds. The cursor says that you verified those records then. They are not
read again, so a change made to their bytes since is found by a verification in
full; run one from time to time. A log that was cut, replaced or made anew below
the cursor is found, as with an anchor. The file carries a MAC under a key that
lies in your configuration folder, not beside the log (--cursor-key). --since
begins with the file that has a record's number or a time, or behind a cursor.

Other systems. Logs of P4ST4S/mcp-audit (JSON lines or SQLite) and of
mcp-audit-gateway are told by their content and judged by what their formats can
show, which the output says. Give their secret in MCP_AUDIT_SIGNING_SECRET, or
their key file with --keys. With --require v3 their records are faults; with
--require v2 those without Integrity v2 are.

Exit code: 0 clean; 1 tampered with (with --strict, also warnings); 2 usage, or
not readable; 3 cannot be judged in full, for example no key or a torn end; 4
differs from an anchor. With several, the first of 2, 1, 4, 3.`,
		Example: `  mcp-audit verify
  mcp-audit verify /var/lib/mcp-audit/audit.jsonl --anchor /mnt/worm/audit.checkpoint
  mcp-audit verify received.jsonl --pub "$(cat gateway.vkey)"
  mcp-audit verify /var/lib/mcp-audit --closed --json
  mcp-audit verify /var/lib/mcp-audit/audit.jsonl --cursor ~/audit.cursor`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.format, "format", "auto", "format of the log: auto, jsonl or sqlite")
	flags.StringVar(&f.keys, "keys", "", "key `file` (a JWK set) with the MAC keys")
	flags.StringVar(&f.pub, "pub", "", "public key (`vkey`, as pubkey prints it) that checkpoints must be signed with")
	flags.StringVar(&f.origin, "origin", "", "expected origin of the log, `name` or name/iN")
	flags.StringVar(&f.keyID, "key-id", "", "the only key `id` that the secret is used for")
	flags.StringArrayVar(&f.anchors, "anchor", nil, "`file` with a checkpoint that was kept elsewhere, or a folder of them; may be repeated")
	flags.StringArrayVar(&f.anchors, "checkpoint", nil, "the same as --anchor")
	flags.StringVar(&f.manifest, "manifest", "", "`file` with a manifest that was kept elsewhere, in place of the one beside the log")
	flags.Var(&f.segment, "max-segment", "most that a compressed segment may give if no manifest says how long it is, in `bytes` or as 4GiB")
	flags.StringArrayVar(&f.opts.Witnesses, "witness", nil, "public key (`vkey`) of a witness whose cosignatures count; may be repeated")
	flags.BoolVar(&f.opts.Closed, "closed", false, "the last file must be a closed segment")
	flags.DurationVar(&f.opts.MaxSilence, "max-silence", 0, "greatest `age` of the newest record, for example 30m (0: any)")
	flags.IntVar(&f.opts.MaxUncheckpointed, "max-uncheckpointed", 0, "greatest `number` of records without a checkpoint behind them (0: any)")
	flags.IntVar(&f.erasures, "max-erasures", -1, "`number` of erasures above which they count as tampering (-1: any)")
	flags.Var(&f.maxLine, "max-line", "longest line, in `bytes` or as 32MiB")
	flags.BoolVar(&f.opts.Strict, "strict", false, "check the exact form of every record, and let warnings count")
	flags.StringVar(&f.since, "since", "", "begin at a record's number, a time, an age such as 24h, or behind the cursor in a file (`point`)")
	flags.StringVar(&f.cursor.file, "cursor", "", "`file` that says what was verified before; it is gone on from, and written anew")
	flags.StringVar(&f.cursor.key, "cursor-key", "", "`file` with the key of cursors, made on first use (default: cursor.key in mcp-audit in the configuration folder)")
	flags.IntVar(&f.opts.Jobs, "jobs", 0, "`number` of processors to use (0: all)")
	flags.StringVar(&f.require, "require", "", "the least that every record must be: `v2` (Integrity v2 or this product's format) or v3")
	flags.BoolVar(&f.needV2, "require-integrity-v2", false, "the same as --require v2")
	flags.BoolVar(&f.json, "json", false, "print the report as one JSON object for each log")
	return cmd
}

func (f *verifyFlags) run(cmd *cobra.Command, args []string) error {
	switch {
	case f.format != "auto" && f.format != "jsonl" && f.format != "sqlite":
		return usage("--format %q is not known; use auto, jsonl or sqlite", f.format)
	case f.maxLine < 256:
		return usage("--max-line %s is too small for any record; give 256 bytes or more", &f.maxLine)
	case f.opts.MaxSilence < 0 || f.opts.MaxUncheckpointed < 0 || f.opts.Jobs < 0 || f.erasures < -1:
		return usage("a limit is negative; see `%s --help`", cmd.CommandPath())
	}
	if err := f.checkRequire(); err != nil {
		return err
	}
	logs, err := logsOf(args)
	if err != nil {
		return err
	}
	f.opts.PublicKey, f.opts.Origin, f.opts.KeyID, f.opts.MaxLine = f.pub, f.origin, f.keyID, int(f.maxLine)
	switch f.erasures {
	case -1:
	case 0:
		f.opts.MaxErasures = -1
	default:
		f.opts.MaxErasures = f.erasures
	}
	if f.cursor.since, err = parseSince(f.since, time.Now()); err != nil {
		return err
	}
	if (f.since != "" || f.cursor.file != "") && len(logs) > 1 {
		return usage("--since and --cursor go on in one log; give the path of one")
	}
	anchors, err := anchorFiles(f.anchors)
	if err != nil {
		return err
	}
	for _, path := range anchors {
		text, err := readNote(path)
		if err != nil {
			return usage("reading the anchor: %w", err)
		}
		f.opts.Anchors = append(f.opts.Anchors, auditlog.Anchor{Name: path, Note: text})
	}
	worst := 0
	for i, log := range logs {
		if i > 0 && !f.json {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		code, err := f.verify(cmd, log)
		if err != nil {
			return &ExitError{Code: auditlog.ExitUnreadable, Err: err}
		}
		worst = worse(worst, code)
	}
	if worst != 0 {
		return &ExitError{Code: worst}
	}
	return nil
}

// worse is the exit code that counts of two.
func worse(a, b int) int {
	for _, code := range []int{auditlog.ExitUnreadable, auditlog.ExitTampered, auditlog.ExitDiverges, auditlog.ExitIncomplete} {
		if a == code || b == code {
			return code
		}
	}
	return 0
}

func (f *verifyFlags) verify(cmd *cobra.Command, log logFiles) (int, error) {
	if other, err := foreign(cmd.Context(), log); err != nil {
		return 0, err
	} else if other != nil {
		if f.since != "" || f.cursor.file != "" {
			return 0, usage("--since and --cursor are for logs of this product; %s is one of another system", log.name)
		}
		return f.verifyForeign(cmd, other)
	}
	opts := f.opts
	unused, err := f.cursor.load(&opts)
	if err != nil {
		return 0, err
	}
	if err := f.loadKeys(cmd, log, &opts); err != nil {
		return 0, err
	}
	report, log, err := f.judge(cmd, log, &opts)
	if report == nil {
		return 0, err
	}
	if unused != "" {
		report.CursorUnused = unused
	}
	err = errors.Join(err, f.cursor.save(cmd, report))
	if f.json {
		if printErr := printJSON(cmd.OutOrStdout(), report); printErr != nil {
			return 0, printErr
		}
	} else {
		printReport(cmd.OutOrStdout(), cmd.ErrOrStderr(), log, report, &opts)
	}
	return report.Exit, err
}

// judge verifies the files of a log, which it returns as they were then.
func (f *verifyFlags) judge(cmd *cobra.Command, log logFiles, opts *auditlog.VerifyOptions) (*auditlog.Report, logFiles, error) {
	snap, err := log.snapshot()
	if err != nil {
		return nil, log, err
	}
	defer snap.close()
	if f.manifest != "" {
		if snap.manifest, err = os.ReadFile(f.manifest); err != nil {
			return nil, log, fmt.Errorf("reading the manifest: %w", err)
		}
		opts.ManifestKept = true
	}
	if opts.LeftOut, err = snap.leaveOut(f.cursor.since); err != nil {
		return nil, log, err
	}
	log, opts.Manifest = snap.logFiles, snap.manifest
	databases, err := f.databases(log.files)
	if err != nil {
		return nil, log, err
	}
	for _, path := range log.files {
		path = strings.TrimSuffix(path, jsonl.CompressedSuffix)
		// Checkpoints beside the log are read before the log, which then has
		// all the records they cover even while it is written to.
		if text, err := readNote(path + ".checkpoint"); err == nil {
			opts.Beside = append(opts.Beside, auditlog.Anchor{Name: path + ".checkpoint", Note: text})
		} else if !errors.Is(err, fs.ErrNotExist) {
			cmd.PrintErrf("mcp-audit: the checkpoint beside the log is not checked: %v\n", err)
		}
	}
	sources, err := snap.sources(newSegmentLimits(int64(f.segment), opts.Manifest), databases)
	if err != nil {
		return nil, log, err
	}
	opts.Beside = append(opts.Beside, receipts(cmd, log.active())...)
	report, err := auditlog.Verify(cmd.Context(), sources, *opts)
	return report, log, err
}

// databases says which files are databases, before any of them is opened.
func (f *verifyFlags) databases(files []string) ([]bool, error) {
	if f.format == "auto" {
		return databasesOf(files)
	}
	return slices.Repeat([]bool{f.format == "sqlite"}, len(files)), nil
}

// verifyForeign checks and reports on a log of another system.
func (f *verifyFlags) verifyForeign(cmd *cobra.Command, log *foreignLog) (int, error) {
	report, err := log.verify(cmd, f)
	if report == nil {
		return 0, err
	}
	if f.json {
		if printErr := printJSON(cmd.OutOrStdout(), report); printErr != nil {
			return 0, printErr
		}
	} else {
		printForeign(cmd.OutOrStdout(), cmd.ErrOrStderr(), log.logFiles, report)
	}
	return report.Exit, err
}

func (f *verifyFlags) checkRequire() error {
	if f.needV2 && f.require == "" {
		f.require = "v2"
	}
	if f.require != "" && f.require != "v2" && f.require != "v3" {
		return usage("--require %q is not known; use v2 or v3", f.require)
	}
	return nil
}

// loadKeys finds the MAC keys: --keys, else the environment's secret, else the
// key file beside the log, unless a public key was given.
func (f *verifyFlags) loadKeys(cmd *cobra.Command, log logFiles, opts *auditlog.VerifyOptions) (err error) {
	if f.keys != "" {
		if opts.Keys, err = auditlog.LoadKeyring(f.keys); err != nil {
			return fmt.Errorf("reading the keys: %w", err)
		}
		return nil
	}
	opts.Secret = secretFromEnvironment()
	if f.pub != "" {
		return nil
	}
	beside := keysBeside(log.active())
	keys, err := auditlog.LoadKeyring(beside)
	switch {
	case err == nil:
		opts.Keys = keys
	case !errors.Is(err, fs.ErrNotExist):
		cmd.PrintErrf("mcp-audit: the key file beside the log is not used: %v\n", err)
	}
	return nil
}

// maxNote is more than any checkpoint has.
const maxNote = 128 << 10

func readNote(path string) (text []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, maxNote))
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// timeOf renders a time for people.
func timeOf(t time.Time) string { return t.Format("2006-01-02 15:04:05") }
