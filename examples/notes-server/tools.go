package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxNote bounds what read_file returns, in bytes.
const maxNote = 1 << 20

// notes are the files of one folder; os.Root keeps every path inside it.
type notes struct{ root *os.Root }

func newServer(root *os.Root) *mcp.Server {
	n := notes{root}
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions: "Notes are files; add, list, read and delete them by name.",
	})
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Description: "returns its message"}, n.echo)
	mcp.AddTool(server, &mcp.Tool{Name: "add_note", Description: "writes a note"}, n.add)
	mcp.AddTool(server, &mcp.Tool{Name: "list_notes", Description: "lists the notes by name"}, n.list)
	mcp.AddTool(server, &mcp.Tool{Name: "read_file", Description: "reads a note"}, n.read)
	mcp.AddTool(server, &mcp.Tool{Name: "delete_file", Description: "deletes a note"}, n.remove)
	mcp.AddTool(server, &mcp.Tool{Name: "slow", Description: "works for some seconds and reports progress"}, n.slow)
	mcp.AddTool(server, &mcp.Tool{Name: "elicit", Description: "asks the user for a title and adds a note of that name"}, n.elicit)
	return server
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

type echoArgs struct {
	Message string `json:"message" jsonschema:"what to return"`
}

func (notes) echo(_ context.Context, _ *mcp.CallToolRequest, a echoArgs) (*mcp.CallToolResult, any, error) {
	return text("%s", a.Message), nil, nil
}

type addArgs struct {
	Name string `json:"name" jsonschema:"the note's name"`
	Text string `json:"text" jsonschema:"its text"`

	// Token is there to be kept out of logs.
	Token string `json:"api_token,omitempty" jsonschema:"proves who adds it; any will do"`
}

func (n notes) add(_ context.Context, _ *mcp.CallToolRequest, a addArgs) (*mcp.CallToolResult, any, error) {
	if err := n.root.WriteFile(a.Name, []byte(a.Text), 0o600); err != nil {
		return nil, nil, err
	}
	return text("added %s", a.Name), nil, nil
}

type listResult struct {
	Names []string `json:"names"`
}

func (n notes) list(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, listResult, error) {
	entries, err := fs.ReadDir(n.root.FS(), ".")
	if err != nil {
		return nil, listResult{}, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return text("%s", strings.Join(names, "\n")), listResult{names}, nil
}

type fileArgs struct {
	Path string `json:"path" jsonschema:"the note's name"`
}

func (n notes) read(_ context.Context, _ *mcp.CallToolRequest, a fileArgs) (*mcp.CallToolResult, any, error) {
	f, err := n.root.Open(a.Path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err != nil {
		return nil, nil, err
	}
	return text("%s", data), nil, nil
}

func (n notes) remove(_ context.Context, _ *mcp.CallToolRequest, a fileArgs) (*mcp.CallToolResult, any, error) {
	if err := n.root.Remove(a.Path); err != nil {
		return nil, nil, err
	}
	return text("deleted %s", a.Path), nil, nil
}

type slowArgs struct {
	Seconds float64 `json:"seconds" jsonschema:"how long to work, at most 600"`
}

// slow reports progress ten times, if the caller asked for it by token.
func (notes) slow(ctx context.Context, req *mcp.CallToolRequest, a slowArgs) (*mcp.CallToolResult, any, error) {
	const steps = 10
	step := time.Duration(min(max(a.Seconds, 0), 600) / steps * float64(time.Second))
	token := req.Params.GetProgressToken()
	for i := 1; i <= steps; i++ {
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(step):
		}
		if token == nil {
			continue
		}
		if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: float64(i), Total: steps,
		}); err != nil {
			return nil, nil, err
		}
	}
	return text("worked for %s", step*steps), nil, nil
}

// elicit asks by an input request, which the SDK sends to clients of older
// revisions as elicitation/create.
func (n notes) elicit(_ context.Context, req *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	const question = "title"
	answer, asked := req.Params.InputResponses[question].(*mcp.ElicitResult)
	if !asked {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{question: &mcp.ElicitParams{
			Mode:    "form",
			Message: "What shall the note be called?",
			RequestedSchema: &jsonschema.Schema{
				Type:       "object",
				Properties: map[string]*jsonschema.Schema{question: {Type: "string"}},
				Required:   []string{question},
			},
		}}}, nil, nil
	}
	title, _ := answer.Content[question].(string)
	if answer.Action != "accept" || title == "" {
		return text("no note added: the user answered %s", answer.Action), nil, nil
	}
	if err := n.root.WriteFile(title, nil, 0o600); err != nil {
		return nil, nil, err
	}
	return text("added %s", title), nil, nil
}
