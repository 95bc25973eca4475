// Package upstream is the MCP server that the black-box tests put behind the
// product. It keeps every byte it receives, so that what reached it is never
// judged from the product's own log, and it reads JSON the way careless servers
// do: names by exact case, the last duplicate wins, anything after the value
// ignored.
package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Message is a request as this server reads it.
type Message struct {
	ID      json.RawMessage
	Method  string
	Tool    string
	Version string // that initialize offers
	Args    map[string]json.RawMessage
}

// read finds a message anywhere in the bytes, as leniently as it can.
func read(body []byte) (Message, bool) {
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	var top map[string]json.RawMessage
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&top); err != nil {
		return Message{}, false
	}
	m := Message{ID: top["id"], Method: text(top["method"])}
	var params map[string]json.RawMessage
	_ = json.Unmarshal(top["params"], &params)
	m.Tool, m.Version = text(params["name"]), text(params["protocolVersion"])
	_ = json.Unmarshal(params["arguments"], &m.Args)
	return m, true
}

func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

func (m Message) text(name string) string { return text(m.Args[name]) }

func (m Message) number(name string) float64 {
	var n float64
	_ = json.Unmarshal(m.Args[name], &n)
	return n
}

func (m Message) flag(name string) bool { return string(m.Args[name]) == "true" }

const tools = `{"tools":[` +
	`{"name":"echo","description":"returns m","inputSchema":{"type":"object","properties":{"m":{"type":"string"}}}},` +
	`{"name":"read_file","description":"reads","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}},` +
	`{"name":"delete_file","description":"deletes","inputSchema":{"type":"object","properties":{"path":{"type":"string"}}}},` +
	`{"name":"slow","description":"takes s seconds","inputSchema":{"type":"object","properties":{"s":{"type":"number"}}}},` +
	`{"name":"hold","description":"answers when released","inputSchema":{"type":"object","properties":{"key":{"type":"string"}}}},` +
	`{"name":"leak","description":"returns a secret","inputSchema":{"type":"object"}},` +
	`{"name":"raw","description":"answers with exactly these bytes","inputSchema":{"type":"object"}}]}`

// Leaked is the secret that the tool leak returns.
const Leaked = "hunter2-never-in-a-log"

// result makes the result of a request, waiting as the tool asks.
func (s *Server) result(ctx context.Context, m Message) string {
	switch m.Method {
	case "initialize":
		version := "2025-11-25"
		if m.Version == "2025-03-26" {
			version = m.Version
		}
		return `{"protocolVersion":"` + version + `","capabilities":{"tools":{}},"serverInfo":{"name":"upstream","version":"1"}}`
	case "tools/list":
		return tools
	case "tools/call":
	default:
		return `{}`
	}
	switch m.Tool {
	case "echo":
		return content(m.text("m"))
	case "slow":
		wait(ctx, time.Duration(m.number("s")*float64(time.Second)))
		return content("done")
	case "hold":
		s.hold(ctx, m.text("key"))
		return content("released")
	case "leak":
		return fmt.Sprintf(`{"content":[{"type":"text","text":"see the structure"}],"structuredContent":{"password":%q}}`, Leaked)
	case "fail":
		return `{"content":[{"type":"text","text":"it failed"}],"isError":true}`
	default:
		return content(m.Tool + " of " + m.text("path"))
	}
}

func content(s string) string {
	quoted, _ := json.Marshal(s)
	return `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func answer(id json.RawMessage, result string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func progress(n int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d}}`, n)
}
