package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect starts the server on an in-memory transport and returns a client's
// session with it.
func connect(t *testing.T, revision string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	near, far := mcp.NewInMemoryTransports()
	if _, err := newServer(root).Connect(t.Context(), far, nil); err != nil {
		t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, options)
	session, err := client.Connect(t.Context(), near, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

func call(t *testing.T, session *mcp.ClientSession, tool string, args any) (string, bool) {
	t.Helper()
	result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return result.Content[0].(*mcp.TextContent).Text, result.IsError
}

func TestNotesAreAddedListedReadAndDeleted(t *testing.T) {
	session := connect(t, "", nil)
	steps := []struct {
		tool string
		args any
		want string
		fail bool
	}{
		{"echo", map[string]any{"message": "hi"}, "hi", false},
		{"add_note", map[string]any{"name": "a.txt", "text": "milk"}, "added a.txt", false},
		{"list_notes", nil, "a.txt", false},
		{"read_file", map[string]any{"path": "a.txt"}, "milk", false},
		{"delete_file", map[string]any{"path": "a.txt"}, "deleted a.txt", false},
		{"read_file", map[string]any{"path": "a.txt"}, "no such file", true},
		{"read_file", map[string]any{"path": "../a.txt"}, "path escapes", true},
	}
	for _, s := range steps {
		got, fail := call(t, session, s.tool, s.args)
		if !strings.Contains(got, s.want) || fail != s.fail {
			t.Errorf("%s %v: %q (error %v), want %q (error %v)", s.tool, s.args, got, fail, s.want, s.fail)
		}
	}
}

func TestSlowReportsProgress(t *testing.T) {
	progress := make(chan float64, 16)
	session := connect(t, "", &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			progress <- r.Params.Progress
		},
	})
	params := &mcp.CallToolParams{Name: "slow", Arguments: map[string]any{"seconds": 0.01}}
	params.SetProgressToken("p")
	if _, err := session.CallTool(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	for want := 1.0; want <= 10; want++ {
		if got := <-progress; got != want {
			t.Fatalf("progress %v, want %v", got, want)
		}
	}
}

func TestElicitAsksTheUserInEveryRevision(t *testing.T) {
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			session := connect(t, revision, &mcp.ClientOptions{
				ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
					return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"title": "todo"}}, nil
				},
			})
			if got, _ := call(t, session, "elicit", nil); got != "added todo" {
				t.Errorf("answer %q", got)
			}
		})
	}
}
