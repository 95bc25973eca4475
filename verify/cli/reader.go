package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/dashboard"
)

// LogReader reads one log, of either store, as the commands do, for the
// dashboard. It takes no lock and is safe for concurrent use. The log is of this
// product: Check says whether it is.
type LogReader struct {
	Path     string
	KeysFile string   // for verification; "": the one beside the log
	Secret   []byte   // for verification; nil: from the environment
	Anchors  []string // files or folders of checkpoints that were kept elsewhere
	VKeys    []string // of witnesses
}

// Check refuses a log that is not there, or of another system. It is asked
// before anything else.
func (r *LogReader) Check(ctx context.Context) error {
	files, err := r.Files()
	if err != nil {
		return err
	}
	other, err := foreign(ctx, logFiles{name: r.Path, files: files, whole: true})
	if err == nil && other != nil {
		err = fmt.Errorf("%s is a log of another system; `mcp-audit verify` reads it, and `mcp-audit import` begins a new log after it", r.Path)
	}
	return err
}

// Files lists the log's files, oldest first.
func (r *LogReader) Files() ([]string, error) {
	l, err := wholeLog(r.Path)
	if err == nil && len(l.files) == 0 {
		err = fmt.Errorf("there is no log %s yet; it is made at the first call", r.Path)
	}
	return l.files, err
}

// Verify verifies the log, from a cursor on if there is one.
func (r *LogReader) Verify(ctx context.Context, from *auditlog.Cursor) (*auditlog.Report, error) {
	f := verifyFlags{maxLine: auditlog.MaxLine, segment: defaultMaxSegment, format: "auto"}
	cmd := silent(ctx)
	if _, err := r.Files(); err != nil {
		return nil, err
	}
	log, err := wholeLog(r.Path)
	if err != nil {
		return nil, err
	}
	log.current = true
	// One of the processors: the log may be in use.
	opts := auditlog.VerifyOptions{Cursor: from, CursorName: "the verification before", Jobs: 1, Witnesses: r.VKeys}
	f.keys = r.KeysFile
	if err := f.loadKeys(cmd, log, &opts); err != nil {
		return nil, err
	}
	if r.Secret != nil {
		opts.Secret = r.Secret
	}
	anchors, err := anchorFiles(r.Anchors)
	if err != nil {
		return nil, err
	}
	for _, path := range anchors {
		// Whether the anchor can be read says nothing about the log.
		if text, err := readNote(path); err == nil {
			opts.Anchors = append(opts.Anchors, auditlog.Anchor{Name: path, Note: text})
		}
	}
	report, _, err := f.judge(cmd, log, &opts)
	return report, err
}

// Prove proves a record, or both of an operation.
func (r *LogReader) Prove(ctx context.Context, want dashboard.Wanted) (out *dashboard.Proof, err error) {
	f := proveFlags{seq: -1, operation: want.Operation, disclose: want.Disclose}
	if want.Operation == "" {
		f.seq = int64(want.Seq)
	}
	log, err := wholeLog(r.Path)
	if err != nil {
		return nil, err
	}
	log.current = true
	snap, err := log.snapshot()
	if err != nil {
		return nil, err
	}
	defer snap.close()
	sources, o, err := f.sources(snap)
	if err != nil {
		return nil, err
	}
	if o.Work, err = os.MkdirTemp("", "mcp-audit-prove-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Work)) }()
	base := f.want(&o)
	proven, warnings, err := auditlog.Prove(ctx, sources, o)
	if errors.Is(err, auditlog.ErrNoRecord) {
		return nil, fmt.Errorf("%w: %s", dashboard.ErrNotFound, f.what())
	}
	if err != nil {
		return nil, err
	}
	out = &dashboard.Proof{Name: base}
	var checks []string
	for i := range proven {
		p := &proven[i]
		name := base
		if len(proven) > 1 {
			name += "." + p.Kind
		}
		line, hidden, err := f.disclosing(p)
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files,
			dashboard.ProofFile{Name: name + ".json", Data: append(line, '\n')},
			dashboard.ProofFile{Name: name + ".tlog-proof", Data: p.Proof.Text()})
		checks = append(checks, fmt.Sprintf("mcp-audit verify-proof %s.json %s.tlog-proof --pub %s", name, name, p.VKey))
		if len(hidden) > 0 {
			warnings = append(warnings, fmt.Sprintf("%s.json does not disclose: %s", name, strings.Join(hidden, ", ")))
		}
	}
	out.Checks, out.Notes = checks, warnings
	return out, nil
}

// Beside lists the notes that anchors gave back for the log.
func (r *LogReader) Beside() (notes []dashboard.Note) {
	for _, path := range append([]string{r.Path + ".checkpoint"}, receiptsBeside(r.Path)...) {
		if text, err := readNote(path); err == nil {
			notes = append(notes, dashboard.Note{Name: filepath.Base(path), Text: text, Receipt: path != r.Path+".checkpoint"})
		}
	}
	return notes
}

// silent is a command that prints nothing, for what is shared with commands.
func silent(ctx context.Context) *cobra.Command {
	cmd := new(cobra.Command)
	cmd.SetContext(ctx)
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	return cmd
}
