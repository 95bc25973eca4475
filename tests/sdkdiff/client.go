package sdkdiff

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	markclient "github.com/mark3labs/mcp-go/client"
	marktransport "github.com/mark3labs/mcp-go/client/transport"
	markmcp "github.com/mark3labs/mcp-go/mcp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// Step is a call of a tool; without arguments the member is left out.
type Step struct {
	Tool      string  `json:"tool"`
	Arguments *string `json:"arguments,omitempty"`
}

// Steps returns the calls of the cases, first the echoes, then the gifts.
func Steps() []Step {
	var steps []Step
	for _, c := range Cases() {
		if c.Sent() {
			steps = append(steps, Step{"echo", optional(c.Arguments)})
		}
	}
	for _, c := range Cases() {
		if c.Given() {
			arguments, _ := json.Marshal(given{optional(c.Structured)})
			if c.Structured == "" {
				arguments = []byte("{}")
			}
			steps = append(steps, Step{"give", optional(string(arguments))})
		}
	}
	return steps
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Seen is what the application above a client got from a step.
type Seen struct {
	Text       string               `json:"text"`
	Structured string               `json:"structured"`
	IsError    bool                 `json:"isError"`
	Error      *harness.ClientError `json:"error"`
}

// Report is what it got from a server.
type Report struct {
	Revision string               `json:"revision"`
	Steps    []Seen               `json:"steps"`
	Error    *harness.ClientError `json:"error"`
}

// Client runs the steps against each target, all targets at once.
type Client struct {
	Name string
	Run  func(ctx context.Context, place Place, targets []harness.Target, steps []Step) ([]Report, error)
}

// Place is where clients run: a folder of the test, and that of npm's packages.
type Place struct{ Dir, NPM string }

// Clients returns the SDKs, and last one that sends exactly the bytes of the
// texts.
func Clients() []Client {
	return []Client{
		{"typescript-v1", node("v1")},
		{"typescript-v2", node("v2")},
		{"go-sdk", each(goSDK)},
		{"mcp-go", each(mcpGo)},
		{"exact", each(exact)},
	}
}

func node(sdk string) func(context.Context, Place, []harness.Target, []Step) ([]Report, error) {
	return func(ctx context.Context, place Place, targets []harness.Target, steps []Step) ([]Report, error) {
		argument, err := json.Marshal(map[string]any{"sdk": sdk, "targets": targets, "steps": steps})
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, "node", filepath.Join(place.NPM, "sdkdiff-client.mjs"), string(argument))
		cmd.Env = harness.Environment(place.Dir, targets[0].Env...)
		cmd.Dir = place.Dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", sdk, err, stderr.Bytes())
		}
		var reports []Report
		if err := json.Unmarshal(stdout, &reports); err != nil {
			return nil, fmt.Errorf("%s printed no report: %w\n%s%s", sdk, err, stdout, stderr.Bytes())
		}
		return reports, nil
	}
}

// session is what both Go clients have in common.
type session interface {
	revision() string
	call(context.Context, Step) (Seen, error)
	close()
}

func each(connect func(ctx context.Context, dir string, target harness.Target) (session, error)) func(context.Context, Place, []harness.Target, []Step) ([]Report, error) {
	return func(ctx context.Context, place Place, targets []harness.Target, steps []Step) ([]Report, error) {
		reports := make([]Report, len(targets))
		var all sync.WaitGroup
		for i, target := range targets {
			all.Go(func() { reports[i] = use(ctx, place.Dir, target, steps, connect) })
		}
		all.Wait()
		return reports, nil
	}
}

func use(ctx context.Context, dir string, target harness.Target, steps []Step, connect func(context.Context, string, harness.Target) (session, error)) Report {
	s, err := connect(ctx, dir, target)
	if err != nil {
		return Report{Error: failure(err)}
	}
	defer s.close()
	report := Report{Revision: s.revision()}
	for _, step := range steps {
		seen, err := s.call(ctx, step)
		seen.Error = failure(err)
		report.Steps = append(report.Steps, seen)
	}
	return report
}

func failure(err error) *harness.ClientError {
	if err == nil {
		return nil
	}
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		return &harness.ClientError{Code: int(wire.Code), Message: wire.Message}
	}
	return &harness.ClientError{Message: err.Error()}
}

func arguments(step Step) any {
	if step.Arguments == nil {
		return nil
	}
	return json.RawMessage(*step.Arguments)
}

// own is an HTTP client that shares no connections: mcp-go's client cancels
// requests at its end, and those of others may wait for the same connection.
func own() *http.Client { return &http.Client{Transport: new(http.Transport)} }

type goSession struct {
	*mcp.ClientSession
	http *http.Client
}

func goSDK(ctx context.Context, dir string, target harness.Target) (session, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "go-sdk", Version: "1.0.0"}, nil)
	web := own()
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: target.URL, HTTPClient: web}
	if target.URL == "" {
		cmd := exec.Command(target.Command, target.Args...)
		cmd.Env = harness.Environment(dir, target.Env...)
		cmd.Dir = dir
		transport = &mcp.CommandTransport{Command: cmd}
	}
	s, err := client.Connect(ctx, transport, nil)
	return goSession{s, web}, err
}

func (s goSession) revision() string { return s.InitializeResult().ProtocolVersion }

func (s goSession) close() {
	s.Close()
	s.http.CloseIdleConnections()
}

func (s goSession) call(ctx context.Context, step Step) (Seen, error) {
	r, err := s.CallTool(ctx, &mcp.CallToolParams{Name: step.Tool, Arguments: arguments(step)})
	if err != nil {
		return Seen{}, err
	}
	seen := Seen{Structured: absent(r.StructuredContent), IsError: r.IsError}
	if len(r.Content) > 0 {
		if part, ok := r.Content[0].(*mcp.TextContent); ok {
			seen.Text = part.Text
		}
	}
	return seen, nil
}

type markSession struct {
	*markclient.Client
	version string
	http    *http.Client
}

func mcpGo(ctx context.Context, dir string, target harness.Target) (session, error) {
	var transport marktransport.Interface
	var err error
	web := own()
	if target.URL != "" {
		transport, err = marktransport.NewStreamableHTTP(target.URL, marktransport.WithHTTPBasicClient(web))
	} else {
		// It adds the process's own environment.
		transport = marktransport.NewStdioWithOptions(target.Command, harness.Environment(dir, target.Env...), target.Args)
	}
	if err != nil {
		return nil, err
	}
	client := markclient.NewClient(transport)
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	var request markmcp.InitializeRequest
	request.Params.ClientInfo = markmcp.Implementation{Name: "mcp-go", Version: "1.0.0"}
	init, err := client.Initialize(ctx, request)
	if err != nil {
		client.Close()
		return nil, err
	}
	return markSession{client, init.ProtocolVersion, web}, nil
}

func (s markSession) revision() string { return s.version }

func (s markSession) close() {
	s.Close()
	s.http.CloseIdleConnections()
}

func (s markSession) call(ctx context.Context, step Step) (Seen, error) {
	r, err := s.CallTool(ctx, markmcp.CallToolRequest{Params: markmcp.CallToolParams{Name: step.Tool, Arguments: arguments(step)}})
	if err != nil {
		return Seen{}, err
	}
	seen := Seen{Structured: absent(r.StructuredContent), IsError: r.IsError}
	if len(r.Content) > 0 {
		if part, ok := r.Content[0].(markmcp.TextContent); ok {
			seen.Text = part.Text
		}
	}
	return seen, nil
}

// Exactly is a client of no SDK.
type Exactly struct {
	url, session string
	next         int
}

func exact(ctx context.Context, _ string, target harness.Target) (session, error) {
	return Connect(ctx, target.URL)
}

// Connect makes the handshake of the revisions up to 2025-11-25.
func Connect(ctx context.Context, url string) (*Exactly, error) {
	c := &Exactly{url: url}
	const hello = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"exact","version":"1"}}}`
	for _, message := range []string{hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}`} {
		if _, err := c.Post(ctx, message); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Exactly) revision() string { return "2025-11-25" }

func (c *Exactly) close() {}

// Post sends a message and returns the answer to it, if there is one.
func (c *Exactly) Post(ctx context.Context, body string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("MCP-Protocol-Version", "2025-11-25")
	if c.session != "" {
		r.Header.Set("Mcp-Session-Id", c.session)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if s := resp.Header.Get("Mcp-Session-Id"); s != "" {
		c.session = s
	}
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		return data, fmt.Errorf("HTTP %d: %s", resp.StatusCode, data)
	}
	return Message(data), nil
}

// Message is the last message of an answer, which may be a stream.
func Message(body []byte) []byte {
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		return bytes.TrimSpace(body)
	}
	var last []byte
	for line := range bytes.Lines(body) {
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data = bytes.TrimSpace(data); len(data) > 0 {
				last = data
			}
		}
	}
	return last
}

func (c *Exactly) call(ctx context.Context, step Step) (Seen, error) {
	c.next++
	member := ""
	if step.Arguments != nil {
		member = `,"arguments":` + *step.Arguments
	}
	answer, err := c.Post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q%s}}`, c.next, step.Tool, member))
	if err != nil {
		return Seen{}, err
	}
	var m struct {
		Error  *harness.ClientError
		Result struct {
			Content           []struct{ Text string }
			StructuredContent json.RawMessage
			IsError           bool
		}
	}
	if err := json.Unmarshal(answer, &m); err != nil {
		return Seen{}, fmt.Errorf("%w: %q", err, answer)
	}
	if m.Error != nil {
		return Seen{}, &jsonrpc.Error{Code: int64(m.Error.Code), Message: m.Error.Message}
	}
	seen := Seen{Structured: "absent", IsError: m.Result.IsError}
	if len(m.Result.Content) > 0 {
		seen.Text = m.Result.Content[0].Text
	}
	if m.Result.StructuredContent != nil {
		seen.Structured = ascii(string(m.Result.StructuredContent))
	}
	return seen, nil
}
