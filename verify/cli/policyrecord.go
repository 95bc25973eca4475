package cli

import (
	"bytes"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// judged is a record as the policy sees what it tells of.
type judged struct {
	call     policy.Call
	asked    []policy.Call // what an answer asks its client for
	listing  bool          // the params were not kept, so that they are unknown
	redacted bool          // the record has [REDACTED] where the message had a value
}

// decide judges a record anew.
func (j *judged) decide(p *policy.Policy) policy.Decision {
	for i := range j.asked {
		if d := p.Decide(&j.asked[i]); !d.Allow {
			d.Of = j.asked[i].Method
			return d
		}
	}
	switch {
	case len(j.asked) > 0:
		return policy.Decision{Allow: true, InScope: true}
	case j.listing:
		return p.Listed(&j.call)
	}
	return p.Decide(&j.call)
}

// past remembers, as records go by, what later ones are judged with: the
// annotations of tools and what made a task.
type past struct {
	notes map[string][]byte
	open  map[string]policy.Origin // by operation id
	tasks map[string]policy.Origin // by the keyed hash of the task id
	lists map[string]bool          // operations that list tools
}

func newPast() *past {
	return &past{notes: map[string][]byte{}, open: map[string]policy.Origin{}, tasks: map[string]policy.Origin{}, lists: map[string]bool{}}
}

// who tells the lists of one caller from those of another.
func who(r *auditlog.Record) string {
	return r.Text("server_id") + "\n" + string(r.Member("principal"))
}

// see takes the next record of a log. The result is nil for one that no policy
// judges: answers, refusals before the policy, and the log's own.
func (p *past) see(r *auditlog.Record) *judged {
	switch r.Kind {
	case "intent":
		return p.intent(r)
	case "event":
		judgedThen := r.Member("policy") != nil
		refused := r.Member("outcome") != nil
		answer := r.Member("result") != nil || r.Member("error") != nil
		fromServer := r.Text("direction") == string(auditlog.ServerToClient)
		if r.Text("method") == "" || answer || !judgedThen && (refused || fromServer) {
			return nil
		}
		return p.message(r)
	case "outcome":
		return p.outcome(r)
	}
	return nil
}

func (p *past) intent(r *auditlog.Record) *judged {
	j := p.message(r)
	if info, known := mcp.Lookup(j.call.Method); !known || info.NameRequired {
		p.open[r.Text("audit_operation_id")] = policy.Origin{
			Method: j.call.Method, Name: j.call.Name, Params: j.call.Params, Arguments: j.call.Arguments,
		}
	}
	if j.call.Method == "tools/list" {
		p.lists[r.Text("audit_operation_id")] = true
	}
	return j
}

func (p *past) outcome(r *auditlog.Record) *judged {
	id := r.Text("audit_operation_id")
	origin, known := p.open[id]
	delete(p.open, id)
	if task := r.Text("task"); task != "" && known {
		if _, again := p.tasks[task]; !again {
			p.tasks[task] = origin
		}
	}
	result := plainPayload(r.Member("result"))
	if p.lists[id] {
		delete(p.lists, id)
		p.learn(who(r), result)
	}
	return p.questions(r, result)
}

// learn takes the annotations from the result of tools/list.
func (p *past) learn(owner string, result []byte) {
	mcp.Members(result, func(name, tools []byte) {
		if string(name) != "tools" {
			return
		}
		mcp.Elements(tools, func(tool []byte) {
			key, notes := "", []byte(nil)
			mcp.Members(tool, func(name, value []byte) {
				switch string(name) {
				case "name":
					key = owner + "\n" + mcp.Text(value)
				case "annotations":
					notes = bytes.Clone(value)
				}
			})
			if notes == nil {
				delete(p.notes, key)
				return
			}
			p.notes[key] = notes
		})
	})
}

// questions is what an answer asks its client for; nil if it asks nothing.
func (p *past) questions(r *auditlog.Record, result []byte) *judged {
	failure := plainPayload(r.Member("error"))
	answer := []byte(`{"jsonrpc":"2.0","id":1`)
	switch {
	case result != nil:
		answer = append(append(answer, `,"result":`...), result...)
	case failure != nil:
		answer = append(append(answer, `,"error":`...), failure...)
	default:
		return nil
	}
	answer = append(answer, '}')
	msgs, _, fault := mcp.ScanAnswer(answer, nil)
	if fault != nil {
		return nil
	}
	j := new(judged)
	policy.Asked(&msgs[0], answer, caller(r), func(c *policy.Call) { j.asked = append(j.asked, *c) })
	if len(j.asked) == 0 {
		return nil
	}
	j.call = j.asked[0]
	j.redacted = bytes.Contains(answer, redacted)
	return j
}

var redacted = []byte("[REDACTED")

// message is the call that a record tells of.
func (p *past) message(r *auditlog.Record) *judged {
	j := &judged{call: caller(r)}
	c := &j.call
	c.FromServer = r.Text("direction") == string(auditlog.ServerToClient)
	params := r.Member("params")
	plain := plainPayload(params)
	text := canon.AppendString([]byte(`{"jsonrpc":"2.0","id":1,"method":`), r.Text("method"))
	if plain != nil {
		text = append(append(text, `,"params":`...), plain...)
	}
	text = append(text, '}')
	j.redacted = bytes.Contains(text, redacted)
	if msgs, _, fault := mcp.Scan(text, nil); fault == nil {
		c.Read(&msgs[0], text)
	} else {
		c.Method, c.Params = r.Text("method"), plain
	}
	if params != nil && plain == nil {
		j.listing = true
	}
	if c.Name == "" {
		c.Name = r.Text("mcp_name")
	}
	if c.Method == "tools/call" {
		c.Annotations = p.notes[who(r)+"\n"+c.Name]
	}
	if task := r.Text("task"); task != "" {
		if of, known := p.tasks[task]; known {
			c.Of = &of
		}
	}
	return j
}

// caller is what a record says of who sent its message.
func caller(r *auditlog.Record) policy.Call {
	c := policy.Call{ClientID: r.Text("client_id"), ServerID: r.Text("server_id"), ProtocolVersion: r.Text("protocol_version")}
	principal := r.Member("principal")
	if principal == nil {
		return c
	}
	c.Caller = new(policy.Caller)
	mcp.Members(principal, func(name, value []byte) {
		switch string(name) {
		case "subject":
			c.Caller.Subject = mcp.Text(value)
		case "issuer":
			c.Caller.Issuer = mcp.Text(value)
		case "client_id":
			c.Caller.ClientID = mcp.Text(value)
		case "roles":
			mcp.Elements(value, func(v []byte) { c.Caller.Roles = append(c.Caller.Roles, mcp.Text(v)) })
		case "scopes":
			mcp.Elements(value, func(v []byte) { c.Caller.Scopes = append(c.Caller.Scopes, mcp.Text(v)) })
		}
	})
	return c
}

// plainPayload undoes the normal form of payloads: numbers that stand in $num
// objects, and the dollar sign before names that begin with one. A payload that
// was not kept in full is nil.
func plainPayload(payload []byte) []byte {
	if len(payload) == 0 || bytes.IndexByte(payload, '$') < 0 {
		return payload
	}
	out, ok := appendPlain(nil, payload)
	if !ok {
		return nil
	}
	return out
}

func appendPlain(dst, value []byte) (_ []byte, ok bool) {
	ok = true
	switch value[0] {
	case '{':
		if only := onlyMember(value); only != nil {
			return append(dst, only...), true
		}
		dst = append(dst, '{')
		first := true
		mcp.Members(value, func(name, inner []byte) {
			text := string(name)
			if strings.HasPrefix(text, "$$") {
				text = text[1:]
			} else if strings.HasPrefix(text, "$") {
				// $trunc or $raw: it is not here.
				ok = false
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(canon.AppendString(dst, text), ':')
			var kept bool
			dst, kept = appendPlain(dst, inner)
			ok = ok && kept
		})
		return append(dst, '}'), ok
	case '[':
		dst = append(dst, '[')
		first := true
		mcp.Elements(value, func(inner []byte) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			var kept bool
			dst, kept = appendPlain(dst, inner)
			ok = ok && kept
		})
		return append(dst, ']'), ok
	}
	return append(dst, value...), true
}

// onlyMember is the number of a $num object, nil for any other.
func onlyMember(object []byte) (number []byte) {
	n := 0
	mcp.Members(object, func(name, value []byte) {
		n++
		if string(name) == "$num" {
			number = []byte(mcp.Text(value))
		}
	})
	if n != 1 || len(number) == 0 {
		return nil
	}
	return number
}
