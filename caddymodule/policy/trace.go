package policy

import (
	"strings"
)

// Trace says how a decision came about: every rule that was tried, in order.
type Trace struct {
	Decision Decision
	Default  bool // of the policy, if no rule matched: allow
	Parts    []*Part
}

// Part is one judgement of those that a message needs: of the message itself,
// of another reading of its URI, of a resource it subscribes to, or of a
// nested answer.
type Part struct {
	Of    string // what was judged; empty: the message itself
	Steps []Step
	Skip  bool // out of scope, so that no rule was tried
}

// Step is one rule that was tried.
type Step struct {
	RuleID    string
	Allow     bool // the rule's action
	Matched   bool
	Undecided bool   // it depends on what a list does not know
	Selector  string // the selector that did not match, or "when"; empty: all did
	Value     string // what the selector was compared with
	Patterns  []string
	Detail    string // why it has no answer; may quote the message
}

// Explain is Decide, or Listed if listing is set, with the way to the decision.
func (p *Policy) Explain(c *Call, listing bool) *Trace {
	t := &Trace{Default: !p.cfg.DefaultDeny}
	t.Decision = p.decide(c, listing, t.part(""))
	return t
}

// part begins the next judgement. A nil Trace stays nil.
func (t *Trace) part(of string) *Trace {
	if t != nil {
		t.Parts = append(t.Parts, &Part{Of: of})
	}
	return t
}

func (t *Trace) last() *Part { return t.Parts[len(t.Parts)-1] }

func (t *Trace) outOfScope() {
	if t != nil {
		t.last().Skip = true
	}
}

// tried adds a rule.
func (t *Trace) tried(c *Call, r *rule, result truth, failed *test, err error) {
	s := Step{RuleID: r.id, Allow: r.allow, Matched: result == yes, Undecided: result == undecided}
	switch {
	case failed != nil:
		s.Selector = selectors[failed.kind].name
		s.Value = failed.value(c)
		for i := range failed.patterns {
			s.Patterns = append(s.Patterns, failed.patterns[i].source)
		}
	case result != yes && r.when != nil:
		s.Selector = "when"
		s.Patterns = []string{r.when.text}
	}
	if err != nil {
		s.Detail = err.Error()
	}
	p := t.last()
	p.Steps = append(p.Steps, s)
}

// value is what a selector is compared with, for people.
func (t *test) value(c *Call) string {
	caller := c.Caller
	if caller == nil {
		caller = &nobody
	}
	either := func(a, b string) string {
		if c.Of == nil || a == b {
			return a
		}
		return strings.Trim(a+" or "+b, " ")
	}
	of := Origin{}
	if c.Of != nil {
		of = *c.Of
	}
	switch t.kind {
	case selectMethod:
		return either(c.Method, of.Method)
	case selectTool:
		switch {
		case c.Method == toolsCall:
			return c.Name
		case of.Method == toolsCall:
			return of.Name
		}
		return ""
	case selectName:
		return either(c.Name, of.Name)
	case selectSubject:
		return caller.Subject
	case selectIssuer:
		return caller.Issuer
	case selectClientID:
		return c.ClientID
	case selectRole:
		return strings.Join(caller.Roles, " ")
	case selectScope:
		return strings.Join(caller.Scopes, " ")
	case selectServerID:
		return c.ServerID
	default:
		host, _, _ := elicitationHost(c.Params)
		return host
	}
}
