package policy

import (
	"fmt"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// selector is one way to select operations.
type selector struct {
	name   string // as rules write it
	plural string // the JSON field
	path   bool   // its values have segments, at whose slashes * and ? stop
	of     func(*Rule) *[]string
}

// selectors are all there are, in the order in which rules are tried by them.
var selectors = [...]selector{
	selectMethod:   {"method", "methods", false, func(r *Rule) *[]string { return &r.Methods }},
	selectTool:     {"tool", "tools", false, func(r *Rule) *[]string { return &r.Tools }},
	selectName:     {"name", "names", true, func(r *Rule) *[]string { return &r.Names }},
	selectSubject:  {"subject", "subjects", false, func(r *Rule) *[]string { return &r.Subjects }},
	selectIssuer:   {"issuer", "issuers", false, func(r *Rule) *[]string { return &r.Issuers }},
	selectClientID: {"client_id", "client_ids", false, func(r *Rule) *[]string { return &r.ClientIDs }},
	selectRole:     {"role", "roles", false, func(r *Rule) *[]string { return &r.Roles }},
	selectScope:    {"scope", "scopes", false, func(r *Rule) *[]string { return &r.Scopes }},
	selectServerID: {"server_id", "server_ids", false, func(r *Rule) *[]string { return &r.ServerIDs }},
	selectURLHost:  {"url_host", "url_hosts", false, func(r *Rule) *[]string { return &r.URLHosts }},
}

type selectorKind uint8

const (
	selectMethod selectorKind = iota
	selectTool
	selectName
	selectSubject
	selectIssuer
	selectClientID
	selectRole
	selectScope
	selectServerID
	selectURLHost
)

// rule is a compiled Rule.
type rule struct {
	id, reason string
	allow      bool
	tests      []test
	when       *condition // nil: none
}

// test is one selector of a rule.
type test struct {
	kind     selectorKind
	patterns []pattern
}

func compile(r Rule, toolsOnly bool) (rule, error) {
	out := rule{id: r.ID, reason: r.Reason, allow: r.Allow}
	for kind, s := range selectors {
		texts := *s.of(&r)
		if len(texts) == 0 {
			continue
		}
		t := test{kind: selectorKind(kind)}
		for _, text := range texts {
			p, err := parsePattern(text, s.path)
			if err == nil && t.kind == selectURLHost && text != lowerASCII(text) {
				err = fmt.Errorf("hosts are compared in lower case; write %q", lowerASCII(text))
			}
			if near := mcp.NearestMethod(p.text); err == nil && t.kind == selectMethod && p.kind == patternExact && near != "" {
				err = fmt.Errorf("there is no method %q; is it %s?", text, near)
			}
			if err != nil {
				return rule{}, fmt.Errorf("rule %q: %s: %w", r.ID, s.name, err)
			}
			t.patterns = append(t.patterns, p)
		}
		out.tests = append(out.tests, t)
	}
	if r.When != "" {
		var err error
		if out.when, err = compileCondition(r.When); err != nil {
			return rule{}, fmt.Errorf("rule %q: %w", r.ID, err)
		}
	}
	return out, out.possible(toolsOnly)
}

// covers reports whether a rule matches whatever a later one does.
func (r *rule) covers(later *rule) bool {
	if r.when != nil {
		return false
	}
	for i := range r.tests {
		mine := &r.tests[i]
		theirs := later.test(mine.kind)
		if theirs == nil {
			return false
		}
		for j := range theirs.patterns {
			if !mine.covers(&theirs.patterns[j]) {
				return false
			}
		}
	}
	return true
}

// covers reports whether one of the patterns matches whatever p does, as far
// as that is plain to see.
func (t *test) covers(p *pattern) bool {
	for i := range t.patterns {
		switch mine := &t.patterns[i]; {
		case mine.kind == patternAny, mine.source == p.source, p.kind == patternExact && mine.match(p.text):
			return true
		}
	}
	return false
}

// ofTools are the methods that have a tool: the call, and what is done with a
// task that it made.
var ofTools = []string{toolsCall, "tasks/get", "tasks/result", "tasks/update", "tasks/cancel"}

// possible says why a rule can never match, if that is so.
func (r *rule) possible(toolsOnly bool) error {
	methods, tools := r.test(selectMethod), r.test(selectTool)
	if methods == nil || slices.ContainsFunc(ofTools, methods.any) {
		return nil
	}
	switch {
	case tools != nil:
		return fmt.Errorf("rule %q can never match: only %s and its tasks have a tool, and its methods do not list it", r.id, toolsCall)
	case toolsOnly:
		return fmt.Errorf("rule %q can never match: scope tools_only judges only %s, and its methods do not list it; add it or use scope all_operations", r.id, toolsCall)
	}
	return nil
}

// test returns the test of a kind, nil if the rule has none.
func (r *rule) test(kind selectorKind) *test {
	for i := range r.tests {
		if r.tests[i].kind == kind {
			return &r.tests[i]
		}
	}
	return nil
}

// selects reports whether each selector matches. Which one does not is failed.
// An error says that one has no answer.
func (r *rule) selects(c *Call, listing bool) (t truth, failed *test, err error) {
	t = yes
	for i := range r.tests {
		var one truth
		if r.tests[i].kind == selectURLHost {
			one, err = r.tests[i].host(c, listing)
		} else if r.tests[i].matches(c) {
			one = yes
		}
		switch {
		case err != nil, one == no:
			return no, &r.tests[i], err
		case one == undecided:
			t = undecided
		}
	}
	return t, nil, nil
}

func (t *test) matches(c *Call) bool {
	caller := c.Caller
	if caller == nil {
		caller = &nobody
	}
	switch t.kind {
	case selectMethod:
		return t.any(c.Method) || c.Of != nil && t.any(c.Of.Method)
	case selectTool:
		return c.Method == toolsCall && t.any(c.Name) || c.Of != nil && c.Of.Method == toolsCall && t.any(c.Of.Name)
	case selectName:
		return t.any(c.Name) || c.Of != nil && t.any(c.Of.Name)
	case selectSubject:
		return t.any(caller.Subject)
	case selectIssuer:
		return t.any(caller.Issuer)
	case selectClientID:
		return t.any(c.ClientID)
	case selectRole:
		return t.anyOf(caller.Roles)
	case selectScope:
		return t.anyOf(caller.Scopes)
	default:
		return t.any(c.ServerID)
	}
}

// host tests the host of a URL that a server sends the user to.
func (t *test) host(c *Call, listing bool) (truth, error) {
	if c.Method != elicitationCreate {
		return no, nil
	}
	if listing {
		return undecided, nil
	}
	host, present, err := elicitationHost(c.Params)
	switch {
	case err != nil:
		return no, err
	case present && t.any(host):
		return yes, nil
	}
	return no, nil
}

var nobody Caller

// any reports whether a value is there and matches one of the patterns.
func (t *test) any(value string) bool {
	if value == "" {
		return false
	}
	for i := range t.patterns {
		if t.patterns[i].match(value) {
			return true
		}
	}
	return false
}

func (t *test) anyOf(values []string) bool {
	for _, v := range values {
		if t.any(v) {
			return true
		}
	}
	return false
}
