package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func mcpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mcp [LOG…]",
		Short: "Offer the logs to an agent, as an MCP server on standard input and output",
		Long: `mcp is an MCP server with five tools, which read and change nothing of a log:

  audit_status   how many records, and whether they verify
  audit_tail     the newest calls, and whether each of them is verified
  audit_verify   a full verification of one log, with what is wrong and where
  audit_search   the calls that match, newest last
  audit_prove    a record and a proof of it that a third party can check

It knows only the logs it was given, by default the one in the default folder.
Answers are bounded: a tool that had more to say says so.`,
		Example: `  mcp-audit mcp
  mcp-audit mcp /var/lib/mcp-audit/audit.jsonl`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := newToolServer(args)
			if err != nil {
				return err
			}
			err = s.server().Run(cmd.Context(), &mcp.StdioTransport{})
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
}

// The bounds of what the tools answer.
const (
	mostEntries    = 200       // rows of a tail or a search
	mostFindings   = 50        // of a verification
	mostAnswer     = 256 << 10 // bytes of rows, and of a proof
	defaultEntries = 10
)

// toolServer answers the tools from a fixed set of logs. It is safe for
// concurrent use.
type toolServer struct {
	logs []string

	mu   sync.Mutex
	last map[string]verification
}

// verification is a finished one.
type verification struct {
	at     time.Time
	size   int64
	mod    time.Time
	report *auditlog.Report
}

// newToolServer checks that each path is a log, or where one will be.
func newToolServer(paths []string) (*toolServer, error) {
	if len(paths) == 0 {
		path, err := logPath(nil)
		if err != nil {
			return nil, err
		}
		paths = []string{path}
	}
	s := &toolServer{last: make(map[string]verification)}
	for _, path := range paths {
		full, err := filepath.Abs(path)
		if err != nil {
			return nil, usage("%s: %w", path, err)
		}
		if info, err := os.Stat(full); err == nil && info.IsDir() {
			return nil, usage("%s is a folder; give the path of a log in it", path)
		}
		s.logs = append(s.logs, full)
	}
	return s, nil
}

// log resolves the log that a tool was asked for; empty is the first one.
func (s *toolServer) log(asked string) (string, error) {
	if asked == "" {
		return s.logs[0], nil
	}
	full, err := filepath.Abs(asked)
	if err == nil {
		for _, path := range s.logs {
			if path == full {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("this server was not given the log %q; it has %s", asked, strings.Join(s.logs, ", "))
}

// run runs a command of this program and returns what it printed.
func run(ctx context.Context, out *boundedRows, args ...string) (stderr string, err error) {
	var errs bytes.Buffer
	root := New()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(&errs)
	err = root.ExecuteContext(ctx)
	return strings.TrimSpace(errs.String()), err
}

// boundedRows keeps the newest lines that were written to it, within its
// bounds, and counts the others.
type boundedRows struct {
	rows    int
	bytes   int
	kept    [][]byte
	size    int
	dropped int
	part    []byte
}

// Write implements io.Writer.
func (b *boundedRows) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		b.part = append(b.part, line...)
		if !found {
			break
		}
		b.add(b.part)
		b.part, rest = nil, after
	}
	return len(p), nil
}

func (b *boundedRows) add(line []byte) {
	b.kept, b.size = append(b.kept, line), b.size+len(line)
	for len(b.kept) > b.rows || b.size > b.bytes && len(b.kept) > 0 {
		b.size -= len(b.kept[0])
		b.kept = b.kept[1:]
		b.dropped++
	}
}

// whole is a buffer for a command that prints one document.
func whole() *boundedRows { return &boundedRows{rows: 1 << 20, bytes: 64 << 20} }

func (b *boundedRows) text() []byte { return bytes.Join(append(b.kept, b.part), []byte("\n")) }

// verify verifies a log. The result of an earlier call is used if the log is as
// it was then and again is not asked for.
func (s *toolServer) verify(ctx context.Context, path string, again bool) (verification, error) {
	info, err := os.Stat(path)
	if err != nil {
		return verification{}, fmt.Errorf("there is no log %s yet; it is made at the first call", path)
	}
	s.mu.Lock()
	v, known := s.last[path]
	s.mu.Unlock()
	if known && !again && v.size == info.Size() && v.mod.Equal(info.ModTime()) {
		return v, nil
	}
	v = verification{at: time.Now().UTC(), size: info.Size(), mod: info.ModTime()}
	out := whole()
	stderr, err := run(ctx, out, "verify", "--json", path)
	if len(out.text()) == 0 {
		return v, errors.Join(err, errors.New(stderr))
	}
	if err := json.Unmarshal(out.text(), &v.report); err != nil {
		return v, fmt.Errorf("the report of the verification is not readable: %w", err)
	}
	s.mu.Lock()
	s.last[path] = v
	s.mu.Unlock()
	return v, nil
}

// integrityOf says in words what an exit code of verify means.
func integrityOf(exit int) string {
	switch exit {
	case 0:
		return "intact"
	case auditlog.ExitIncomplete:
		return "incomplete"
	case auditlog.ExitDiverges:
		return "contradicts an anchor or a checkpoint"
	case auditlog.ExitTampered:
		return "tampered with"
	default:
		return "not readable"
	}
}

// entriesOf reads rows of an export, newest last.
func (s *toolServer) entriesOf(ctx context.Context, path string, limit int, payloads bool, filter ...string) (rows []map[string]any, dropped int, err error) {
	args := append([]string{"export", "--format", "jsonl"}, filter...)
	if !payloads {
		args = append(args, "--no-payloads")
	}
	out := &boundedRows{rows: limit, bytes: mostAnswer}
	stderr, err := run(ctx, out, append(args, "--", path)...)
	if err != nil && len(out.kept) == 0 {
		return nil, 0, errors.Join(err, errors.New(stderr))
	}
	rows = make([]map[string]any, 0, len(out.kept))
	for _, line := range out.kept {
		var row map[string]any
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&row); err != nil {
			return nil, 0, fmt.Errorf("a row of the export is not readable: %w", err)
		}
		rows = append(rows, row)
	}
	return rows, out.dropped, err
}

// limit is how many rows are asked for, within the bounds.
func limit(asked float64) (int, error) {
	switch {
	case asked == 0:
		return defaultEntries, nil
	case asked < 1 || asked > mostEntries:
		return 0, fmt.Errorf("%v entries are out of bounds; ask for 1 to %d", asked, mostEntries)
	}
	return int(asked), nil
}

// prove proves a record, or both of an operation.
func (s *toolServer) prove(ctx context.Context, path string, in proveInput) (out proveOutput, err error) {
	dir, err := os.MkdirTemp("", "mcp-audit-mcp-")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	args := []string{"prove", "--output", filepath.Join(dir, "p")}
	switch {
	case in.Operation != "" && in.Seq == nil:
		args = append(args, "--operation", in.Operation)
	case in.Operation == "" && in.Seq != nil && *in.Seq >= 0:
		args = append(args, "--seq", strconv.FormatUint(uint64(*in.Seq), 10))
	default:
		return out, errors.New("give either operation or seq")
	}
	printed := whole()
	stderr, err := run(ctx, printed, append(args, "--", path)...)
	if err != nil {
		return out, errors.Join(err, errors.New(stderr))
	}
	records, err := filepath.Glob(filepath.Join(dir, "p*.json"))
	if err != nil {
		return out, err
	}
	for _, name := range records {
		record, err := os.ReadFile(name)
		if err != nil {
			return out, err
		}
		proof, err := os.ReadFile(strings.TrimSuffix(name, ".json") + ".tlog-proof")
		if err != nil {
			return out, err
		}
		if len(record)+len(proof) > mostAnswer {
			return out, fmt.Errorf("the record has %d bytes, too many for an answer; run `mcp-audit %s %s`", len(record), strings.Join(args[:1], " "), path)
		}
		out.Proofs = append(out.Proofs, provenRecord{Record: strings.TrimSuffix(string(record), "\n"), Proof: string(proof)})
	}
	for _, line := range strings.Split(string(printed.text()), "\n") {
		if _, key, found := strings.Cut(line, "--pub "); found {
			out.PublicKey = key
		}
	}
	out.Check = "save record as r.json and proof as r.tlog-proof, then run: mcp-audit verify-proof r.json r.tlog-proof --pub " + out.PublicKey
	return out, nil
}
