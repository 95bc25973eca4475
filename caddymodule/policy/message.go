package policy

import (
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// Read fills in what a message says of itself. The call refers to body, which
// must not change while it is judged. Who sent it, and what a task belongs to,
// is for the caller to add.
func (c *Call) Read(m *mcp.Message, body []byte) {
	c.Method = mcp.Text(m.Method.Of(body))
	c.Name = mcp.Text(m.Name.Of(body))
	c.Params = m.Params.Of(body)
	c.Arguments = m.Arguments.Of(body)
	c.InputResponses = m.InputResponses.Of(body)
	if c.Method == "subscriptions/listen" {
		c.Subscriptions = m.Notifications.Of(body)
	}
}

// Asked calls each for every question that a server's answer holds for its
// client: the members of result.inputRequests, and the URLs that an error
// (-32042) sends the user to, as elicitation/create. calls differ from base in
// method, params and direction alone. It reports false if two clients could
// find other questions, because a name on the way to them is repeated or
// written in another case.
func Asked(m *mcp.Message, body []byte, base Call, each func(*Call)) (clear bool) {
	base.FromServer, base.Name, base.Of = true, "", nil
	base.Arguments, base.InputResponses, base.Subscriptions, base.Annotations = nil, nil, nil, nil
	clear = exact(m.Whole.Of(body), "id", "method", "params", "result", "error") && exact(m.Result.Of(body), "inputRequests")
	mcp.Members(m.InputRequests.Of(body), func(_, question []byte) {
		c := base
		c.Method, c.Params = mcp.Text(member(question, "method")), member(question, "params")
		clear = clear && exact(question, "method", "params")
		each(&c)
	})
	failure := m.Error.Of(body)
	data := member(failure, "data")
	clear = clear && exact(failure, "data") && exact(data, "elicitations")
	mcp.Elements(member(data, "elicitations"), func(one []byte) {
		c := base
		c.Method, c.Params = elicitationCreate, one
		each(&c)
	})
	return clear
}

// member is the value of a member, the last of its name, nil if there is none.
func member(object []byte, name string) (value []byte) {
	mcp.Members(object, func(n, v []byte) {
		if string(n) == name {
			value = v
		}
	})
	return value
}

// exact reports whether an object has none of the names twice, or in another
// case. What is no object has none.
func exact(object []byte, names ...string) bool {
	ok := true
	var seen uint
	mcp.Members(object, func(n, _ []byte) {
		for i, name := range names {
			switch {
			case string(n) == name:
				ok = ok && seen>>i&1 == 0
				seen |= 1 << i
			case len(n) < 2*len(name) && strings.EqualFold(string(n), name):
				ok = false
			}
		}
	})
	return ok
}

// JudgesServers reports whether a request of a server, or a question in its
// answer, can be denied. If not, answers need not be read for them.
func (p *Policy) JudgesServers() bool { return p.judgesServers }

func (p *Policy) canDenyServers() bool {
	if p.cfg.ToolsOnly {
		return false
	}
	if p.cfg.DefaultDeny {
		return true
	}
	for i := range p.rules {
		r := &p.rules[i]
		methods := r.test(selectMethod)
		asks := methods == nil || methods.any(elicitationCreate) || methods.any(samplingCreate) || methods.any(rootsList)
		// A condition on an allow rule denies where it has no value.
		if asks && r.test(selectTool) == nil && (!r.allow || r.when != nil || r.test(selectURLHost) != nil) {
			return true
		}
	}
	return false
}

// UsesAnnotations reports whether a condition asks for the annotations of tools.
func (p *Policy) UsesAnnotations() bool { return p.usesAnnotations }

func (p *Policy) asksForAnnotations() bool {
	for i := range p.rules {
		if w := p.rules[i].when; w != nil && w.annotations {
			return true
		}
	}
	return false
}
