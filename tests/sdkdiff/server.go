package sdkdiff

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"

	markmcp "github.com/mark3labs/mcp-go/mcp"
	markserver "github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The tools of every server: echo answers with which arguments it got, as the
// SDK hands them to the application by default; give answers with the value
// of a JSON text, exactly where the language allows it.

func absent(arguments any) string {
	if arguments == nil {
		return "absent"
	}
	return Show(arguments)
}

// given are give's arguments: the JSON text that it is to answer with.
type given struct {
	Text *string `json:"text,omitempty"`
}

// GoSDK returns a server of the Go SDK.
func GoSDK() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "go-sdk", Version: "1.0.0"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in map[string]any) (*mcp.CallToolResult, any, error) {
		shown := "absent"
		if in != nil {
			shown = Show(in)
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: shown}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "give"}, func(_ context.Context, _ *mcp.CallToolRequest, in given) (*mcp.CallToolResult, any, error) {
		r := &mcp.CallToolResult{Content: []mcp.Content{}}
		if in.Text != nil {
			r.StructuredContent = json.RawMessage(*in.Text)
		}
		return r, nil, nil
	})
	return s
}

// GoSDKHandler serves GoSDK over Streamable HTTP, without sessions, as the
// newest revision needs it.
func GoSDKHandler() http.Handler {
	s := GoSDK()
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: true})
}

// MCPGo returns a server of mcp-go.
func MCPGo() *markserver.MCPServer {
	s := markserver.NewMCPServer("mcp-go", "1.0.0", markserver.WithToolCapabilities(false),
		markserver.WithLogger(slog.New(slog.DiscardHandler)))
	s.AddTool(markmcp.NewTool("echo"), func(_ context.Context, r markmcp.CallToolRequest) (*markmcp.CallToolResult, error) {
		return markmcp.NewToolResultText(absent(r.Params.Arguments)), nil
	})
	s.AddTool(markmcp.NewTool("give"), func(_ context.Context, r markmcp.CallToolRequest) (*markmcp.CallToolResult, error) {
		var in given
		if err := r.BindArguments(&in); err != nil {
			return nil, err
		}
		out := &markmcp.CallToolResult{Content: []markmcp.Content{}}
		if in.Text != nil {
			out.StructuredContent = json.RawMessage(*in.Text)
		}
		return out, nil
	})
	return s
}

// MCPGoHandler serves MCPGo over Streamable HTTP.
func MCPGoHandler() http.Handler {
	return markserver.NewStreamableHTTPServer(MCPGo(), markserver.WithStreamableHTTPLogger(slog.New(slog.DiscardHandler)))
}

// Exact is a server of no SDK: it echoes the bytes that it received and gives
// exactly the bytes of the text.
type Exact struct{}

// ServeHTTP implements http.Handler.
func (Exact) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	Exact{}.answer(w, body)
}

func (Exact) answer(w http.ResponseWriter, message []byte) {
	out := Answer(message)
	if out == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(out)
}

// Answer answers a message; nil is none.
func Answer(message []byte) []byte {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments json.RawMessage
		}
	}
	if err := json.Unmarshal(message, &m); err != nil || m.ID == nil || m.Method == "" {
		return nil
	}
	reply := func(member, text string) []byte {
		return []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"` + member + `":` + text + `}`)
	}
	switch m.Method {
	case "initialize":
		return reply("result", `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"exact","version":"1"}}`)
	case "tools/list":
		return reply("result", `{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"give","inputSchema":{"type":"object"}}]}`)
	case "tools/call":
	default:
		return reply("error", `{"code":-32601,"message":"Method not found"}`)
	}
	if m.Params.Name == "echo" {
		seen := "absent"
		if m.Params.Arguments != nil {
			seen = ascii(string(m.Params.Arguments))
		}
		quoted, _ := json.Marshal(seen)
		return reply("result", `{"content":[{"type":"text","text":`+string(quoted)+`}]}`)
	}
	var in given
	if err := json.Unmarshal(m.Params.Arguments, &in); err != nil || in.Text == nil {
		return reply("result", `{"content":[]}`)
	}
	return reply("result", `{"content":[],"structuredContent":`+*in.Text+`}`)
}
