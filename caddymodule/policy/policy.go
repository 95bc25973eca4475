// Package policy decides whether an MCP call is allowed. It is pure, and it
// knows no modes: a decision is the same whether the handler enforces it or
// only observes, so that a policy that was tried in observe mode decides the
// same when it is enforced.
//
// Rules are tried in order and the first match decides; if none matches, the
// default action does. A rule matches if each of its selectors does; a
// selector lists exact, byte-for-byte names, of which one must be equal.
package policy

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"slices"
)

// Rule allows or denies the calls it matches.
type Rule struct {
	ID      string   // unique in the policy
	Allow   bool     // the action
	Methods []string // exact JSON-RPC methods; none: any
	Tools   []string // exact tool names; none: any, also calls without a tool
	Reason  string   // for the record
}

// Config is a policy as written. The default action and the rules apply to
// every message of a client that has a method, initialize, the lists and
// notifications too, unless ToolsOnly is set.
type Config struct {
	DefaultDeny bool   // what happens if no rule matches
	Rules       []Rule // in order; the first that matches decides
	ToolsOnly   bool   // scope tools_only: only tools/call is judged
}

// Call is what is judged, with decoded names.
type Call struct {
	Method  string
	Tool    string // of tools/call
	HasTool bool   // the call is a tools/call
	Name    string // of the tool, prompt, resource or task
}

// Decision is the answer.
type Decision struct {
	Allow   bool
	RuleID  string // empty: the default action
	Reason  string
	InScope bool // false: not judged, so allowed
}

// Policy is a compiled Config. It is immutable and safe for concurrent use. The
// zero Policy allows everything and has no digest.
type Policy struct {
	cfg    Config
	digest string
}

// New checks and compiles a policy. Errors name the rule and the remedy.
func New(cfg Config) (*Policy, error) {
	seen := make(map[string]bool)
	for i, r := range cfg.Rules {
		switch {
		case r.ID == "":
			return nil, fmt.Errorf("rule %d has no id; give it one, so that records can name it", i+1)
		case seen[r.ID]:
			return nil, fmt.Errorf("rule id %q is given twice; rule ids are unique", r.ID)
		case slices.Contains(r.Methods, "") || slices.Contains(r.Tools, ""):
			return nil, fmt.Errorf("rule %q has an empty method or tool; remove it", r.ID)
		}
		if len(r.Methods) > 0 && !slices.Contains(r.Methods, toolsCall) {
			switch {
			case len(r.Tools) > 0:
				return nil, fmt.Errorf("rule %q can never match: only %s has a tool, and its methods do not list it", r.ID, toolsCall)
			case cfg.ToolsOnly:
				return nil, fmt.Errorf("rule %q can never match: scope tools_only judges only %s, and its methods do not list it; add it or use scope all_operations", r.ID, toolsCall)
			}
		}
		seen[r.ID] = true
	}
	p := &Policy{cfg: cfg, digest: digest(cfg)}
	p.cfg.Rules = slices.Clone(cfg.Rules)
	for i := range p.cfg.Rules {
		r := &p.cfg.Rules[i]
		r.Methods, r.Tools = slices.Clone(r.Methods), slices.Clone(r.Tools)
	}
	return p, nil
}

const toolsCall = "tools/call"

// Decide judges one call.
func (p *Policy) Decide(c Call) Decision {
	if p.cfg.ToolsOnly && c.Method != toolsCall {
		return Decision{Allow: true}
	}
	for i := range p.cfg.Rules {
		r := &p.cfg.Rules[i]
		if r.matches(c) {
			return Decision{Allow: r.Allow, RuleID: r.ID, Reason: r.Reason, InScope: true}
		}
	}
	return Decision{Allow: !p.cfg.DefaultDeny, InScope: true}
}

func (r *Rule) matches(c Call) bool {
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, c.Method) {
		return false
	}
	return len(r.Tools) == 0 || c.HasTool && slices.Contains(r.Tools, c.Tool)
}

// Digest names the whole policy: the base64url SHA-256 of an unambiguous
// rendering, so that a record says which policy judged it.
func (p *Policy) Digest() string { return p.digest }

func digest(cfg Config) string {
	h := sha256.New()
	write(h, "mcp-audit policy v1")
	write(h, fmt.Sprint(cfg.DefaultDeny, cfg.ToolsOnly, len(cfg.Rules)))
	for _, r := range cfg.Rules {
		write(h, r.ID, fmt.Sprint(r.Allow, len(r.Methods), len(r.Tools)), r.Reason)
		write(h, r.Methods...)
		write(h, r.Tools...)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// write hashes strings so that no two lists of them hash alike.
func write(h hash.Hash, parts ...string) {
	for _, s := range parts {
		fmt.Fprintf(h, "%d:%s,", len(s), s)
	}
}
