// Package policy decides whether an MCP operation is allowed. It is pure, and
// it knows no modes: a decision is the same whether the handler enforces it or
// only observes, so that a policy that was tried in observe mode decides the
// same when it is enforced.
//
// Rules are tried in order and the first match decides; if none matches, the
// default action does. A rule matches if each of its selectors does and its
// condition, if it has one, is true; a selector lists patterns, of which one
// must match. A condition that cannot be evaluated denies.
//
// A list shows exactly what may be called, so Decide and Listed are the same
// evaluation; only what a list does not know yet, the arguments, differs.
package policy

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"slices"
)

// Rule allows or denies the operations it matches. A selector without patterns
// matches anything; see Pattern for what a pattern is. Selectors never match a
// value that is absent: `tool *` is any call of a tool, `subject *` any caller
// whose subject was verified.
type Rule struct {
	ID        string   // unique in the policy
	Allow     bool     // the action
	Methods   []string // JSON-RPC methods
	Tools     []string // names of tools, for tools/call and its tasks
	Names     []string // names of the tool, prompt, resource (its URI) or completion's reference
	Subjects  []string // of the verified principal
	Issuers   []string // of the verified principal
	ClientIDs []string // the client id of the record
	Roles     []string // of which the principal must have one
	Scopes    []string // of which the principal must have one
	ServerIDs []string // the server's name in the configuration
	URLHosts  []string // hosts that elicitation/create in URL mode sends the user to
	When      string   // a condition in CEL; empty: none
	Reason    string   // for the record
}

// Config is a policy as written. The default action and the rules apply to
// every request in either direction and to every notification of a client,
// initialize and the lists too, unless ToolsOnly is set.
type Config struct {
	DefaultDeny bool   // what happens if no rule matches
	Rules       []Rule // in order; the first that matches decides
	ToolsOnly   bool   // scope tools_only: only tools/call and its tasks are judged
}

// Caller is who sent a message, from verified credentials or the configuration.
type Caller struct {
	Subject  string
	Issuer   string
	ClientID string // of the verified principal
	Roles    []string
	Scopes   []string
}

// Call is what is judged: one JSON-RPC request or notification, or one entry
// of a list as the call that it stands for (a tool as tools/call, a prompt as
// prompts/get, a resource as resources/read). Names are decoded, JSON is raw
// text that passed the strict scan. Empty values are absent.
type Call struct {
	Method     string
	Name       string // of the tool, prompt, resource, reference or task
	FromServer bool   // a request of the server to its client

	Caller          *Caller // nil: nobody vouches for the caller
	ClientID        string  // as records name the client
	ServerID        string
	ProtocolVersion string

	Params         []byte // the object params
	Arguments      []byte // the object params.arguments
	InputResponses []byte // the object params.inputResponses
	Subscriptions  []byte // the object params.notifications of subscriptions/listen
	Annotations    []byte // the object annotations of the tool, as last listed

	// Of is the operation that a task belongs to, for tasks/*; nil: unknown.
	Of *Origin
}

// Origin is an operation that made a task. A message about the task is judged
// as that operation: selectors match the method and the name of either.
type Origin struct {
	Method    string
	Name      string
	Params    []byte
	Arguments []byte
}

// Decision is the answer.
type Decision struct {
	Allow   bool
	RuleID  string // empty: the default action
	Reason  string
	InScope bool // false: not judged, so allowed

	// Anomaly says, in one word for the record, that it was denied for want of
	// a clear reading: condition_error, uri_ambiguous, url_ambiguous,
	// input_ambiguous or name_too_long. Reason tells more.
	Anomaly string

	// Of says which part of the message was denied if it was not the message
	// itself: the method of a nested request, or the URI of a subscription.
	Of string
}

// Policy is a compiled Config. It is immutable and safe for concurrent use. The
// zero Policy allows everything and has no digest.
type Policy struct {
	cfg    Config
	rules  []rule
	digest string

	judgesServers   bool
	usesAnnotations bool
}

const toolsCall = "tools/call"

// New checks and compiles a policy. Errors name the rule and the remedy.
func New(cfg Config) (*Policy, error) {
	p := &Policy{cfg: cfg, digest: digest(cfg)}
	p.cfg.Rules = slices.Clone(cfg.Rules)
	seen := make(map[string]bool)
	for i, r := range cfg.Rules {
		switch {
		case r.ID == "":
			return nil, fmt.Errorf("rule %d has no id; give it one, so that records can name it", i+1)
		case seen[r.ID]:
			return nil, fmt.Errorf("rule id %q is given twice; rule ids are unique", r.ID)
		}
		seen[r.ID] = true
		compiled, err := compile(r, cfg.ToolsOnly)
		if err != nil {
			return nil, err
		}
		for j := range p.rules {
			if p.rules[j].covers(&compiled) {
				return nil, fmt.Errorf("rule %q can never match: rule %q before it matches all that it does; put it before that rule or remove it", r.ID, p.rules[j].id)
			}
		}
		p.rules = append(p.rules, compiled)
	}
	p.judgesServers, p.usesAnnotations = p.canDenyServers(), p.asksForAnnotations()
	return p, nil
}

// Digest names the whole policy: the base64url SHA-256 of an unambiguous
// rendering of all that it means, so that a record says which policy judged it.
func (p *Policy) Digest() string { return p.digest }

func digest(cfg Config) string {
	h := sha256.New()
	write(h, "mcp-audit policy v2")
	write(h, fmt.Sprint(cfg.DefaultDeny, cfg.ToolsOnly, len(cfg.Rules)))
	for _, r := range cfg.Rules {
		write(h, r.ID, fmt.Sprint(r.Allow), r.Reason, r.When)
		for _, s := range selectors {
			patterns := *s.of(&r)
			write(h, s.name, fmt.Sprint(len(patterns)))
			write(h, patterns...)
		}
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// write hashes strings so that no two lists of them hash alike.
func write(h hash.Hash, parts ...string) {
	for _, s := range parts {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
}
