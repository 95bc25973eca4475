package policy

import (
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// The methods that a server asks its client for. The last three may also stand
// in the answer to a call (inputRequests).
const (
	elicitationCreate = "elicitation/create"
	samplingCreate    = "sampling/createMessage"
	rootsList         = "roots/list"
)

// Anomalies of decisions.
const (
	anomalyCondition = "condition_error"
	anomalyURI       = "uri_ambiguous"
	anomalyURL       = "url_ambiguous"
	anomalyInput     = "input_ambiguous"
	anomalyName      = "name_too_long"
)

// Decide judges one call: the message itself, each URI that it subscribes to,
// and each answer that it carries to a server's question, as the question that
// it answers. What is denied first denies the whole. c is not kept.
func (p *Policy) Decide(c *Call) Decision { return p.decide(c, false, nil) }

// Listed judges one entry of a list, as the call that it stands for: it is
// listed exactly if this allows it. What only a call has, its arguments and
// params, is unknown: where a rule depends on them, one that denies is skipped
// and one that allows counts. c.Annotations are the entry's own.
func (p *Policy) Listed(c *Call) Decision { return p.decide(c, true, nil) }

func (p *Policy) decide(c *Call, listing bool, trace *Trace) Decision {
	if len(p.rules) == 0 && !p.cfg.DefaultDeny {
		return Decision{Allow: true, InScope: !p.cfg.ToolsOnly || c.isToolCall()}
	}
	d := p.judge(c, listing, trace)
	if d.Allow && len(c.Subscriptions) > 0 {
		p.judgeSubscriptions(c, trace, &d)
	}
	if d.Allow && len(c.InputResponses) > 0 {
		p.judgeInputs(c, trace, &d)
	}
	return d
}

// judgeSubscriptions judges each resource that subscriptions/listen names: as
// that method, and as resources/subscribe, which it replaces.
func (p *Policy) judgeSubscriptions(c *Call, trace *Trace, d *Decision) {
	mcp.Members(c.Subscriptions, func(name, value []byte) {
		if string(name) != "resourceSubscriptions" {
			return
		}
		mcp.Elements(value, func(token []byte) {
			if !d.Allow {
				return
			}
			one := *c
			one.Name = mcp.Text(token)
			one.Of = &Origin{Method: "resources/subscribe", Name: one.Name, Params: c.Params}
			if sub := p.judge(&one, false, trace.part(one.Name)); !sub.Allow {
				*d = sub
				d.Of = one.Name
			}
		})
	})
}

// judgeInputs judges the answers to a server's questions that a call is sent
// again with. The questions themselves were judged when they were asked, so
// that what only they held is unknown here.
func (p *Policy) judgeInputs(c *Call, trace *Trace, d *Decision) {
	if p.cfg.ToolsOnly {
		return
	}
	if c.InputResponses[0] != '{' {
		*d = Decision{InScope: true, Anomaly: anomalyInput, Reason: "inputResponses is no object"}
		return
	}
	mcp.Members(c.InputResponses, func(_, value []byte) {
		if !d.Allow {
			return
		}
		one := *c
		one.Method, one.Name, one.FromServer = answeredMethod(value), "", true
		one.Params, one.Arguments, one.Annotations, one.Of = nil, nil, nil, nil
		if sub := p.judge(&one, true, trace.part(one.Method)); !sub.Allow {
			*d = sub
			d.Of = one.Method
		}
	})
}

// answeredMethod is the method that an answer in inputResponses belongs to,
// told by its shape.
func answeredMethod(answer []byte) string {
	method := samplingCreate
	mcp.Members(answer, func(name, _ []byte) {
		switch string(name) {
		case "action":
			method = elicitationCreate
		case "roots":
			if method == samplingCreate {
				method = rootsList
			}
		}
	})
	return method
}

// judge judges one operation, and if it names a resource each way in which its
// URI can be read: all must be allowed.
func (p *Policy) judge(c *Call, listing bool, trace *Trace) Decision {
	d := p.judgeOne(c, listing, trace)
	if !d.Allow || !d.InScope || !c.namesResource() {
		return d
	}
	var scratch [3]string
	forms, settled := uriForms(scratch[:0], c.uri())
	if !settled {
		return Decision{InScope: true, Anomaly: anomalyURI, Reason: "the URI is encoded over and over"}
	}
	for _, form := range forms {
		other := *c
		if c.Of != nil {
			of := *c.Of
			of.Name = form
			other.Of = &of
		}
		if c.Of == nil || c.Of.Name == c.Name {
			other.Name = form
		}
		if sub := p.judgeOne(&other, listing, trace.part(form)); !sub.Allow {
			if sub.Anomaly == "" {
				sub.Anomaly = anomalyURI
			}
			if sub.Reason == "" {
				sub.Reason = "the URI can also be read as one that is not allowed"
			}
			return sub
		}
	}
	return d
}

// namesResource reports whether the name of a call is a URI, or may be one.
func (c *Call) namesResource() bool {
	if c.uri() == "" {
		return false
	}
	switch method := c.originMethod(); method {
	case toolsCall, "prompts/get", "tasks/get", "tasks/result", "tasks/update", "tasks/cancel":
		return false
	}
	return true
}

func (c *Call) originMethod() string {
	if c.Of != nil {
		return c.Of.Method
	}
	return c.Method
}

func (c *Call) uri() string {
	if c.Of != nil {
		return c.Of.Name
	}
	return c.Name
}

func (p *Policy) judgeOne(c *Call, listing bool, trace *Trace) Decision {
	if p.cfg.ToolsOnly && !c.isToolCall() {
		trace.outOfScope()
		return Decision{Allow: true}
	}
	if len(c.Name) > maxName || len(c.Method) > maxName {
		// Nothing that is meant has such a name, and it would cost too much to
		// compare with every pattern.
		return Decision{InScope: true, Anomaly: anomalyName, Reason: "a name is longer than a policy compares"}
	}
	var known *facts
	for i := range p.rules {
		r := &p.rules[i]
		t, failed, err := r.selects(c, listing)
		anomaly := anomalyURL
		if t != no && r.when != nil {
			if known == nil {
				// Copied, so that a call that meets no condition stays where
				// its caller has it.
				call := *c
				known = &facts{call: &call}
			}
			var condition truth
			if condition, err = r.when.eval(known, listing); condition != yes {
				t = condition
			}
			anomaly = anomalyCondition
		}
		if trace != nil {
			trace.tried(c, r, t, failed, err)
		}
		switch {
		case err != nil:
			return Decision{RuleID: r.id, InScope: true, Anomaly: anomaly, Reason: whyFailed(err)}
		case t == yes, t == undecided && r.allow:
			return Decision{Allow: r.allow, RuleID: r.id, Reason: r.reason, InScope: true}
		}
	}
	return Decision{Allow: !p.cfg.DefaultDeny, InScope: true}
}

// isToolCall reports whether a call is one of a tool, or about a task of one.
func (c *Call) isToolCall() bool {
	return c.Method == toolsCall || c.Of != nil && c.Of.Method == toolsCall
}
