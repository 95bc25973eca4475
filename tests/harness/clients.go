package harness

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Target is what a client connects to: a URL, or a command on stdio.
type Target struct {
	URL     string   `json:"url,omitempty"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	Env     []string `json:"-"`
	// Credentials are those of an OAuth client, with which it gets tokens from
	// the issuer that the URL's metadata name.
	Credentials *Credentials `json:"credentials,omitempty"`
}

// Credentials are those of an OAuth client, and the issuer they are for.
type Credentials struct {
	ClientID       string `json:"clientId"`
	ClientSecret   string `json:"clientSecret"`
	ExpectedIssuer string `json:"expectedIssuer"`
	// Scope is what the TypeScript SDK v1 asks for: it reads no challenge when
	// a token needs no user. The others do.
	Scope string `json:"scope,omitempty"`
}

// Step is one operation of a client's application.
type Step struct {
	List      bool           `json:"list,omitempty"`
	Call      string         `json:"call,omitempty"`
	Arguments map[string]any `json:"arguments,omitempty"`
	Progress  bool           `json:"progress,omitempty"`
	// Cancel takes the call back after 300 ms.
	Cancel bool `json:"cancel,omitempty"`
	// Repeat is how often the argument "message" is repeated; 0: as it is.
	Repeat int `json:"repeat,omitempty"`
}

// StepResult is what the application saw of a step.
type StepResult struct {
	Tools    []string     `json:"tools"`
	Text     string       `json:"text"`
	IsError  bool         `json:"isError"`
	Progress int          `json:"progress"`
	Error    *ClientError `json:"error"`
}

// ClientError is an error as an SDK raised it.
type ClientError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// ClientReport is what the application saw.
type ClientReport struct {
	Server   string       `json:"server"`
	Revision string       `json:"revision"`
	Steps    []StepResult `json:"steps"`
	Error    *ClientError `json:"error"`
}

// Plan is what a client does; Answer is the content with which it accepts each
// elicitation.
type Plan struct {
	Target Target
	Steps  []Step
	Answer map[string]any
}

// Client runs a plan through a real SDK.
type Client struct {
	Name string
	Run  func(t testing.TB, dir string, p Plan) ClientReport
}

// Clients returns the SDKs: TypeScript v1 and v2 as programs, Go in process.
func Clients() []Client {
	return []Client{
		{"TypeScript SDK v1", func(t testing.TB, dir string, p Plan) ClientReport { return runNode(t, dir, "client-v1.mjs", p) }},
		{"TypeScript SDK v2", func(t testing.TB, dir string, p Plan) ClientReport { return runNode(t, dir, "client-v2.mjs", p) }},
		{"Go SDK", runGo},
	}
}

func runNode(t testing.TB, dir, script string, p Plan) ClientReport {
	t.Helper()
	argument, err := json.Marshal(map[string]any{
		"target": p.Target, "steps": p.Steps,
		"answer": map[string]any{"action": "accept", "content": p.Answer},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", filepath.Join(Find(t).NPM, script), string(argument))
	cmd.Env = Environment(dir, p.Target.Env...)
	cmd.Dir = dir
	stdout, stderr, code := Run(t, cmd)
	var report ClientReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%s exited %d and printed no report: %v\n%s\n%s", script, code, err, stdout, stderr)
	}
	if report.Error != nil {
		t.Fatalf("%s: %+v\n%s", script, report.Error, stderr)
	}
	return report
}

func runGo(t testing.TB, dir string, p Plan) ClientReport {
	t.Helper()
	ctx := t.Context()
	var progress atomic.Int64
	client := mcp.NewClient(&mcp.Implementation{Name: "go-sdk", Version: "1.0.0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progress.Add(1) },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: p.Answer}, nil
		},
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			return &mcp.CreateMessageResult{Role: "assistant", Model: "a-model", Content: &mcp.TextContent{Text: "sampled words"}}, nil
		},
	})
	client.AddRoots(&mcp.Root{URI: "file:///home/me/notes", Name: "notes"})
	http := &mcp.StreamableClientTransport{Endpoint: p.Target.URL}
	if c := p.Target.Credentials; c != nil {
		handler, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{Credentials: &oauthex.ClientCredentials{
			ClientID: c.ClientID, Issuer: c.ExpectedIssuer, ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: c.ClientSecret},
		}})
		if err != nil {
			t.Fatal(err)
		}
		http.OAuthHandler = handler
	}
	var transport mcp.Transport = http
	if p.Target.URL == "" {
		cmd := exec.Command(p.Target.Command, p.Target.Args...)
		cmd.Env = Environment(dir, p.Target.Env...)
		cmd.Dir = dir
		transport = &mcp.CommandTransport{Command: cmd}
	}
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		t.Fatalf("Go SDK: %v", err)
	}
	defer session.Close()
	init := session.InitializeResult()
	report := ClientReport{Server: init.ServerInfo.Name, Revision: init.ProtocolVersion}
	for _, step := range p.Steps {
		var result StepResult
		if step.List {
			list, err := session.ListTools(ctx, nil)
			result.Error = clientError(err)
			if err == nil {
				for _, tool := range list.Tools {
					result.Tools = append(result.Tools, tool.Name)
				}
				slices.Sort(result.Tools)
			}
		} else {
			params := &mcp.CallToolParams{Name: step.Call, Arguments: step.Arguments}
			if step.Arguments == nil {
				params.Arguments = map[string]any{}
			}
			if step.Repeat > 0 {
				params.Arguments = map[string]any{"message": strings.Repeat(step.Arguments["message"].(string), step.Repeat)}
			}
			progress.Store(0)
			if step.Progress {
				params.SetProgressToken("progress-" + step.Call)
			}
			answer, err := callTool(ctx, session, params, step.Cancel)
			result.Error = clientError(err)
			if err == nil {
				result.IsError = answer.IsError
				result.Text = contentText(answer)
			}
			// The SDK hands notifications over beside the answer.
			if step.Progress {
				Eventually(t, "progress of "+step.Call, func() bool { return progress.Load() > 0 })
			}
			result.Progress = int(progress.Load())
		}
		report.Steps = append(report.Steps, result)
	}
	return report
}

// callTool calls a tool, and takes the call back after a while if that is asked.
func callTool(ctx context.Context, session *mcp.ClientSession, params *mcp.CallToolParams, cancel bool) (*mcp.CallToolResult, error) {
	if cancel {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, 300*time.Millisecond)
		defer stop()
	}
	return session.CallTool(ctx, params)
}

func contentText(r *mcp.CallToolResult) string {
	var parts []string
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			parts = append(parts, text.Text)
		}
	}
	return strings.Join(parts, "\n")
}

func clientError(err error) *ClientError {
	if err == nil {
		return nil
	}
	var wire *jsonrpc.Error
	if errors.As(err, &wire) {
		return &ClientError{int(wire.Code), wire.Message}
	}
	return &ClientError{0, err.Error()}
}
