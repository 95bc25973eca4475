package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is one tools/call.
type step struct {
	tool      string
	arguments map[string]any
}

func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "demo", Version: "1.0.0"}, nil)
}

func connectHTTP(ctx context.Context, url string) (*mcp.ClientSession, error) {
	return newClient().Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
}

func connectStdio(ctx context.Context, cmd *exec.Cmd) (*mcp.ClientSession, error) {
	return newClient().Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
}

// calls lists the tools, makes the calls and prints what the client sees.
func calls(ctx context.Context, session *mcp.ClientSession, steps ...step) error {
	tools, err := session.ListTools(ctx, nil)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(tools.Tools))
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
	}
	say("tools/list   %s", strings.Join(names, " "))
	for _, s := range steps {
		result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: s.tool, Arguments: s.arguments})
		switch {
		case err != nil:
			say("%-12s refused: %v", s.tool, err)
		case result.IsError:
			say("%-12s failed: %s", s.tool, firstText(result))
		default:
			say("%-12s %s", s.tool, firstText(result))
		}
	}
	return ctx.Err()
}

func firstText(r *mcp.CallToolResult) string {
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			return text.Text
		}
	}
	return fmt.Sprintf("%d parts", len(r.Content))
}
