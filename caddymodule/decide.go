package caddymodule

import (
	"bytes"
	"net/http"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// call is what the policy is asked about a message of this exchange, beside
// what the message says of itself.
func (x *exchange) call(version string) policy.Call {
	if x.caller == nil && x.principal != nil {
		p := x.principal
		x.caller = &policy.Caller{Subject: p.Subject, Issuer: p.Issuer, ClientID: p.ClientID, Roles: p.Roles, Scopes: p.Scopes}
	}
	return policy.Call{Caller: x.caller, ClientID: x.clientID, ServerID: x.h.ServerID, ProtocolVersion: version}
}

// decide judges a client's message and writes the decision into its record.
func (x *exchange) decide(m *mcp.Message, base *auditlog.Message) *refusal {
	if x.h.Policy == nil {
		x.noteDecision(base, policy.Decision{Allow: true, InScope: true})
		return nil
	}
	c := x.call(base.ProtocolVersion)
	c.Read(m, x.body)
	if base.Method == methodToolsCall && x.h.policy.UsesAnnotations() {
		c.Annotations = x.lease.notes.of(x.h.ServerID, ownerOf(x.principal), c.Name)
	}
	if isTaskMethod(base.Method) {
		c.Of = x.lease.tasks.of(x.h.ServerID, c.Name)
	}
	d := x.h.policy.Decide(&c)
	if d.Allow && len(c.Subscriptions) > 0 {
		d = x.decideTasks(&c, d)
	}
	x.noteDecision(base, d)
	if d.Allow || x.h.observe() {
		return nil
	}
	return &refusal{
		status: http.StatusOK, code: mcp.DeniedCode(mcp.Modern(base.ProtocolVersion)),
		reason: "policy", message: deniedMessage, decided: base, m: m,
	}
}

// decideTasks judges each task that subscriptions/listen names, as a request for
// its result. allowed is the decision if none is denied.
func (x *exchange) decideTasks(c *policy.Call, allowed policy.Decision) policy.Decision {
	for _, id := range mcp.TextElements(c.Subscriptions, "taskIds") {
		of := x.lease.tasks.of(x.h.ServerID, id)
		if of == nil {
			continue
		}
		one := *c
		one.Method, one.Name, one.Of, one.Subscriptions = "tasks/get", id, of, nil
		if d := x.h.policy.Decide(&one); !d.Allow {
			d.Of = one.Method
			return d
		}
	}
	return allowed
}

// deniedMessage is all that a client learns of a denial without explain.
const deniedMessage = "denied by policy"

// noteDecision writes a decision into a record.
func (x *exchange) noteDecision(base *auditlog.Message, d policy.Decision) {
	if !d.InScope && d.Allow {
		return
	}
	base.Policy = x.recorded(d)
	if d.Allow {
		return
	}
	if d.Anomaly != "" {
		base.Anomaly = append(base.Anomaly, d.Anomaly)
	}
	if x.h.observe() {
		base.Anomaly = append(base.Anomaly, "denied")
	}
}

// recorded is a decision as records have it.
func (x *exchange) recorded(d policy.Decision) *auditlog.Policy {
	p := &auditlog.Policy{Decision: "allow", RuleID: d.RuleID, Digest: x.h.digest}
	if d.Allow {
		return p
	}
	p.Decision, p.Reason = "deny", d.Reason
	if d.Of != "" {
		// A URI that is subscribed to is in the params, where it is redacted.
		of := "a resource that it subscribes to"
		if _, isMethod := mcp.Lookup(d.Of); isMethod {
			of = d.Of
		}
		if p.Reason = of + ": " + d.Reason; d.Reason == "" {
			p.Reason = of + " is not allowed"
		}
	}
	return p
}

func isTaskMethod(method string) bool {
	info, _ := mcp.Lookup(method)
	return info.NameParam == "taskId" && !info.Notification
}

// originOf is what tasks of a request are judged as; nil if it makes none that
// anyone could ask for, or nobody judges it.
func (x *exchange) originOf(m *mcp.Message, method string) *policy.Origin {
	if x.h.Policy == nil || isTaskMethod(method) {
		return nil
	}
	if info, known := mcp.Lookup(method); known && !info.NameRequired {
		return nil
	}
	return &policy.Origin{
		Method: method, Name: mcp.Text(m.Name.Of(x.body)),
		Params: m.Params.Of(x.body), Arguments: m.Arguments.Of(x.body),
	}
}

// decidesBy reports whether an answer may hold what learnDecisions takes. One
// that spells it in another way is read when it is recorded.
func (x *exchange) decidesBy(answer []byte) bool {
	if x.h.Policy == nil {
		return false
	}
	return bytes.Contains(answer, []byte(`"taskId"`)) ||
		x.h.policy.UsesAnnotations() && bytes.Contains(answer, []byte(`"annotations"`))
}

// learnDecisions takes from an answer what later decisions rely on, before the
// client can see it: the annotations of tools, and what a task belongs to.
func (x *exchange) learnDecisions(m *mcp.Message, data []byte) {
	if m.Kind != mcp.KindResult || x.h.Policy == nil {
		return
	}
	lists := x.h.policy.UsesAnnotations()
	if !lists && !m.TaskID.Present() {
		return
	}
	o := x.answered(m, data)
	if o == nil {
		return
	}
	if o.method == methodToolsList && lists {
		x.lease.notes.learn(x.h.ServerID, ownerOf(x.principal), m.Result.Of(data))
	}
	if m.TaskID.Present() && o.origin != nil {
		x.lease.tasks.put(x.h.ServerID, mcp.Text(m.TaskID.Of(data)), *o.origin)
	}
}
