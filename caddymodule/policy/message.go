package policy

import "github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"

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
// method, params and direction alone.
func Asked(m *mcp.Message, body []byte, base Call, each func(*Call)) {
	base.FromServer, base.Name, base.Of = true, "", nil
	base.Arguments, base.InputResponses, base.Subscriptions, base.Annotations = nil, nil, nil, nil
	mcp.Members(m.InputRequests.Of(body), func(_, question []byte) {
		c := base
		c.Method, c.Params = "", nil
		mcp.Members(question, func(name, value []byte) {
			switch string(name) {
			case "method":
				c.Method = mcp.Text(value)
			case "params":
				c.Params = value
			}
		})
		each(&c)
	})
	mcp.Members(m.Error.Of(body), func(name, data []byte) {
		if string(name) != "data" {
			return
		}
		mcp.Members(data, func(name, list []byte) {
			if string(name) != "elicitations" {
				return
			}
			mcp.Elements(list, func(one []byte) {
				c := base
				c.Method, c.Params = elicitationCreate, one
				each(&c)
			})
		})
	})
}

// JudgesServers reports whether a request of a server, or a question in its
// answer, can be denied. If not, answers need not be read for them.
func (p *Policy) JudgesServers() bool {
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
func (p *Policy) UsesAnnotations() bool {
	for i := range p.rules {
		if w := p.rules[i].when; w != nil && w.annotations {
			return true
		}
	}
	return false
}
