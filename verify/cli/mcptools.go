package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// What the tools take and answer. The schemas that clients see follow from
// these.
type (
	statusInput struct{}

	logState struct {
		Log          string `json:"log"`
		Records      uint64 `json:"totalRecords" jsonschema:"records that were accepted"`
		LastVerified string `json:"lastVerified" jsonschema:"when this was verified, RFC 3339"`
		Integrity    string `json:"chainIntegrity" jsonschema:"intact, incomplete, contradicts an anchor or a checkpoint, tampered with, or not readable"`
		Findings     int    `json:"findings"`
		FirstError   string `json:"firstError,omitempty"`
		Open         int    `json:"openOperations"`
		NotAnchored  string `json:"notAnchored" jsonschema:"which records no external anchor covers"`
		ExitCode     int    `json:"exitCode"`
		Error        string `json:"error,omitempty" jsonschema:"why the log could not be verified"`
	}

	statusOutput struct {
		Logs []logState `json:"logs"`
	}

	tailInput struct {
		Count    float64 `json:"count,omitempty" jsonschema:"how many entries, 1 to 200; default 10"`
		LogPath  string  `json:"logPath,omitempty" jsonschema:"the log; default: the first this server was given"`
		Payloads bool    `json:"payloads,omitempty" jsonschema:"also params and results, as they were recorded"`
	}

	entriesOutput struct {
		Log       string           `json:"log"`
		Entries   []map[string]any `json:"entries" jsonschema:"oldest first"`
		Omitted   int              `json:"omitted" jsonschema:"older entries that matched and are not shown"`
		Integrity string           `json:"chainIntegrity,omitempty"`
	}

	verifyInput struct {
		LogPath string `json:"logPath" jsonschema:"path of the log, one that this server was given"`
	}

	verifyOutput struct {
		logState
		Broken  []auditlog.Finding `json:"brokenLinks" jsonschema:"what is wrong, where, and how bad"`
		Omitted int                `json:"omittedFindings"`
	}

	searchInput struct {
		LogPath   string  `json:"logPath,omitempty" jsonschema:"the log; default: the first this server was given"`
		Since     string  `json:"since,omitempty" jsonschema:"a time, or an age such as 24h or 7d"`
		Until     string  `json:"until,omitempty" jsonschema:"a time, or an age"`
		Tool      string  `json:"tool,omitempty" jsonschema:"tool name, * for any characters"`
		Method    string  `json:"method,omitempty"`
		Client    string  `json:"client,omitempty" jsonschema:"client_id"`
		Principal string  `json:"principal,omitempty" jsonschema:"subject"`
		Server    string  `json:"server,omitempty" jsonschema:"server_id"`
		Outcome   string  `json:"outcome,omitempty" jsonschema:"success, tool_error, rpc_error, denied, rate_limited, …"`
		Decision  string  `json:"decision,omitempty" jsonschema:"allow or deny"`
		Text      string  `json:"text,omitempty" jsonschema:"text in any value of the record"`
		Limit     float64 `json:"limit,omitempty" jsonschema:"1 to 200; default 10"`
		Payloads  bool    `json:"payloads,omitempty" jsonschema:"also params and results, as they were recorded"`
	}

	proveInput struct {
		LogPath   string `json:"logPath,omitempty" jsonschema:"the log; default: the first this server was given"`
		Operation string `json:"operation,omitempty" jsonschema:"audit_operation_id, or the id of a record"`
		Seq       *int64 `json:"seq,omitempty" jsonschema:"number of the record"`
	}

	provenRecord struct {
		Record string `json:"record" jsonschema:"the record's line"`
		Proof  string `json:"proof" jsonschema:"C2SP tlog-proof with a signed checkpoint"`
	}

	proveOutput struct {
		Log       string         `json:"log"`
		Proofs    []provenRecord `json:"proofs"`
		PublicKey string         `json:"publicKey"`
		Check     string         `json:"check" jsonschema:"how a third party checks it"`
	}
)

// server makes the MCP server.
func (s *toolServer) server() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "mcp-audit", Title: "mcp-audit", Version: Version()}, &mcp.ServerOptions{
		Instructions: "Reads signed audit logs of MCP traffic. Nothing is changed. Verify a log before you rely on its entries.",
	})
	tool := func(name, title, description string) *mcp.Tool {
		no := false
		return &mcp.Tool{Name: name, Title: title, Description: description, Annotations: &mcp.ToolAnnotations{
			Title: title, ReadOnlyHint: true, IdempotentHint: true, OpenWorldHint: &no,
		}}
	}
	mcp.AddTool(server, tool("audit_status", "Status of the audit logs", "How many records each log has, when it was last verified, and whether its chain is intact. Verifies what has changed."), s.status)
	mcp.AddTool(server, tool("audit_tail", "Newest calls", "The newest calls of a log, oldest first, each with whether it is verified."), s.tail)
	mcp.AddTool(server, tool("audit_verify", "Verify a log", "Verifies a log from its first record to its last: signatures, chain, order, completeness, checkpoints and anchors. Says what is wrong and where."), s.verifyTool)
	mcp.AddTool(server, tool("audit_search", "Search calls", "The newest calls of a log that match all filters, oldest first."), s.search)
	mcp.AddTool(server, tool("audit_prove", "Prove a call", "A record, or both records of a call, with a proof that a third party can check without the log."), s.proveTool)
	return server
}

// state is what a verification says.
func (v *verification) state(path string) logState {
	r := v.report
	return logState{
		Log: path, Records: r.Records, LastVerified: v.at.Format("2006-01-02T15:04:05Z07:00"), Integrity: integrityOf(r.Exit),
		Findings: len(r.Findings), FirstError: r.FirstError, Open: r.OpenIntents, NotAnchored: r.NotCoveredSentence(), ExitCode: r.Exit,
	}
}

func (s *toolServer) status(ctx context.Context, _ *mcp.CallToolRequest, _ statusInput) (*mcp.CallToolResult, statusOutput, error) {
	var out statusOutput
	for _, path := range s.logs {
		v, err := s.verify(ctx, path, false)
		if err != nil {
			out.Logs = append(out.Logs, logState{Log: path, Integrity: integrityOf(auditlog.ExitUnreadable), Error: err.Error(), ExitCode: auditlog.ExitUnreadable})
			continue
		}
		out.Logs = append(out.Logs, v.state(path))
	}
	return nil, out, nil
}

func (s *toolServer) tail(ctx context.Context, _ *mcp.CallToolRequest, in tailInput) (*mcp.CallToolResult, entriesOutput, error) {
	return s.entries(ctx, in.LogPath, in.Count, in.Payloads)
}

func (s *toolServer) search(ctx context.Context, _ *mcp.CallToolRequest, in searchInput) (*mcp.CallToolResult, entriesOutput, error) {
	var filter []string
	for _, f := range [][2]string{
		{"since", in.Since}, {"until", in.Until}, {"tool", in.Tool}, {"method", in.Method}, {"client", in.Client},
		{"principal", in.Principal}, {"server", in.Server}, {"outcome", in.Outcome}, {"decision", in.Decision}, {"text", in.Text},
	} {
		if f[1] != "" {
			filter = append(filter, "--"+f[0]+"="+f[1])
		}
	}
	return s.entries(ctx, in.LogPath, in.Limit, in.Payloads, filter...)
}

// entries answers with rows, each marked with what is known of it: the log is
// verified first.
func (s *toolServer) entries(ctx context.Context, asked string, count float64, payloads bool, filter ...string) (*mcp.CallToolResult, entriesOutput, error) {
	path, err := s.log(asked)
	if err != nil {
		return nil, entriesOutput{}, err
	}
	n, err := limit(count)
	if err != nil {
		return nil, entriesOutput{}, err
	}
	out := entriesOutput{Log: path}
	if out.Entries, out.Omitted, err = s.entriesOf(ctx, path, n, payloads, filter...); err != nil && out.Entries == nil {
		return nil, out, err
	}
	v, err := s.verify(ctx, path, false)
	if err != nil {
		return nil, out, err
	}
	out.Integrity = integrityOf(v.report.Exit)
	for _, row := range out.Entries {
		row["verified"] = v.verified(row)
	}
	return nil, out, nil
}

// verified reports what the verification says of a row's record: nothing is
// wrong with the log, or at least not at or before this record.
func (v *verification) verified(row map[string]any) bool {
	number, ok := row["seq"].(json.Number)
	if !ok {
		return false
	}
	seq, err := number.Int64()
	if err != nil || seq < 0 || uint64(seq) >= v.report.Watermarks.Records {
		return false
	}
	if v.report.Exit == 0 {
		return true
	}
	for _, f := range v.report.Findings {
		if f.Seq == nil || *f.Seq <= uint64(seq) {
			return false
		}
	}
	return true
}

func (s *toolServer) verifyTool(ctx context.Context, _ *mcp.CallToolRequest, in verifyInput) (*mcp.CallToolResult, verifyOutput, error) {
	path, err := s.log(in.LogPath)
	if err != nil {
		return nil, verifyOutput{}, err
	}
	v, err := s.verify(ctx, path, true)
	if err != nil {
		return nil, verifyOutput{}, err
	}
	out := verifyOutput{logState: v.state(path), Broken: v.report.Findings}
	if more := len(out.Broken) - mostFindings; more > 0 {
		out.Broken, out.Omitted = out.Broken[:mostFindings], more
	}
	if out.Broken == nil {
		out.Broken = []auditlog.Finding{}
	}
	return nil, out, nil
}

func (s *toolServer) proveTool(ctx context.Context, _ *mcp.CallToolRequest, in proveInput) (*mcp.CallToolResult, proveOutput, error) {
	path, err := s.log(in.LogPath)
	if err != nil {
		return nil, proveOutput{}, err
	}
	out, err := s.prove(ctx, path, in)
	out.Log = path
	if err != nil {
		return nil, out, fmt.Errorf("proving: %w", err)
	}
	return nil, out, nil
}
