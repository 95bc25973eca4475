package caddymodule

import (
	"bytes"
	"sync"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// toolAnnotations remembers the annotations of tools from the lists that
// passed, for conditions. Safe for concurrent use.
type toolAnnotations struct {
	mu     sync.Mutex
	byTool map[toolKey][]byte
}

// The bounds of what is remembered: past maxToolAnnotations tools all are
// forgotten and learned again, and annotations over maxAnnotations bytes count
// as none. A condition that needs one then has no value, which denies.
const (
	maxToolAnnotations = 4096
	maxAnnotations     = 4 << 10
)

// learn takes them from the result of tools/list.
func (t *toolAnnotations) learn(server, owner string, result []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	mcp.Members(result, func(name, tools []byte) {
		if string(name) != "tools" {
			return
		}
		mcp.Elements(tools, func(tool []byte) {
			key, notes := toolKey{server: server, owner: owner}, []byte(nil)
			mcp.Members(tool, func(name, value []byte) {
				switch string(name) {
				case "name":
					key.tool = mcp.Text(value)
				case "annotations":
					notes = value
				}
			})
			if len(notes) == 0 || len(notes) > maxAnnotations {
				delete(t.byTool, key)
				return
			}
			if t.byTool == nil || len(t.byTool) >= maxToolAnnotations {
				t.byTool = make(map[toolKey][]byte)
			}
			t.byTool[key] = bytes.Clone(notes)
		})
	})
}

// of are the annotations of a tool as its caller last saw them, nil if it has
// none or none were seen.
func (t *toolAnnotations) of(server, owner, tool string) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byTool[toolKey{server, owner, tool}]
}
