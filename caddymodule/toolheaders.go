package caddymodule

import (
	"sync"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// toolHeaders remembers which headers mirror the arguments of which tool, from
// the lists that passed. What it does not know is the server's business. Safe
// for concurrent use.
type toolHeaders struct {
	mu     sync.Mutex
	byTool map[toolKey][]mcp.ParamHeader
}

// toolKey names a tool as one caller sees it: lists may differ.
type toolKey struct{ server, owner, tool string }

// maxToolHeaders bounds the tools with such headers; past it all are forgotten
// and learned again.
const maxToolHeaders = 4096

// learn takes them from the result of tools/list.
func (t *toolHeaders) learn(server, owner string, result []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A list without any may take back what an earlier one said.
	if len(t.byTool) == 0 && !mcp.MirrorsParams(result) {
		return
	}
	mcp.ParamHeaders(result, func(tool string, headers []mcp.ParamHeader) {
		key := toolKey{server, owner, tool}
		if len(headers) == 0 {
			delete(t.byTool, key)
			return
		}
		if t.byTool == nil || len(t.byTool) >= maxToolHeaders {
			t.byTool = make(map[toolKey][]mcp.ParamHeader)
		}
		t.byTool[key] = headers
	})
}

func (t *toolHeaders) of(server, owner, tool string) []mcp.ParamHeader {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byTool[toolKey{server, owner, tool}]
}
