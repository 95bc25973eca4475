package caddymodule

import (
	"bytes"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

// filterLists is the rewriteRule that takes out of lists what the caller may not
// use, and tools whose definition is withheld. It cuts bytes out; a list that it
// cannot read does not go on.
func filterLists(x *exchange, m *mcp.Message, data []byte) (edits []replacement, err error) {
	if m.Kind != mcp.KindResult {
		return nil, nil
	}
	o := x.answered(m, data)
	if o != nil && !mcp.IsList(o.method) {
		return nil, nil
	}
	pinned := x.h.enforcesPins()
	var seen error
	if pinned {
		seen = x.seeTools(o, m, data)
	}
	hidden := 0
	_, err = mcp.FilterList(data, m.Result, func(e *mcp.ListEntry) bool {
		keep := !x.h.HideDenied || x.listed(e)
		if keep && pinned && e.List == "tools" {
			keep = seen == nil && x.withheld(e.Name) == ""
		}
		if !keep {
			hidden++
		}
		return keep
	}, func(at mcp.Span) { edits = append(edits, replacement{at, nil}) })
	if err != nil {
		return nil, err
	}
	if o != nil {
		o.hidden.Add(int64(hidden))
	}
	// What differs by caller must not be kept for others (SEP-2549).
	if at := mcp.CacheScope(data, m.Result); at.Present() && string(at.Of(data)) != `"private"` {
		edits = append(edits, replacement{at, []byte(`"private"`)})
	}
	return edits, nil
}

// asksForList reports whether an answer that is no stream may hold a list: such
// an answer is that of the exchange's own requests.
func (x *exchange) asksForList() bool {
	for _, o := range x.pending {
		if mcp.IsList(o.method) {
			return true
		}
	}
	return false
}

// listed reports whether the caller may use what an entry of a list stands for.
func (x *exchange) listed(e *mcp.ListEntry) bool {
	if x.h.Policy == nil {
		return true
	}
	c := x.call(x.revision)
	c.Method, c.Name = e.Method, e.Name
	if e.List == "tools" {
		mcp.Members(e.Text, func(name, value []byte) {
			if string(name) == "annotations" && len(value) <= maxAnnotations {
				c.Annotations = bytes.Clone(value)
			}
		})
	}
	return x.h.policy.Listed(&c).Allow
}

// listedTools are the tools of a list, and whether they are all that the server
// has.
func listedTools(o *operation, m *mcp.Message, data []byte) (tools []pins.Listed, whole bool) {
	whole = o != nil && !o.paged
	mcp.Members(m.Result.Of(data), func(name, _ []byte) {
		if string(name) == "nextCursor" {
			whole = false
		}
	})
	// Without an error a list that cannot be read has been withheld elsewhere.
	_, _ = mcp.FilterList(data, m.Result, func(e *mcp.ListEntry) bool {
		if e.List == "tools" {
			tools = append(tools, pins.Listed{Name: e.Name, Text: e.Text})
		}
		return true
	}, func(mcp.Span) {})
	return tools, whole
}
