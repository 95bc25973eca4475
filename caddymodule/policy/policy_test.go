package policy_test

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

func TestFirstMatchDecides(t *testing.T) {
	p, err := policy.New(policy.Config{DefaultDeny: true, Rules: []policy.Rule{
		{ID: "A", Allow: true, Methods: []string{"tools/call"}, Tools: []string{"read_file"}},
		{ID: "B", Methods: []string{"tools/call"}, Reason: "no other tool"},
		{ID: "C", Allow: true, Methods: []string{"tools/list", "initialize"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		call  policy.Call
		allow bool
		rule  string
	}{
		{policy.Call{Method: "tools/call", Name: "read_file"}, true, "A"},
		{policy.Call{Method: "tools/call", Name: "Read_file"}, false, "B"},
		{policy.Call{Method: "tools/call", Name: "read_file "}, false, "B"},
		{policy.Call{Method: "tools/list"}, true, "C"},
		{policy.Call{Method: "prompts/list"}, false, ""},
		{policy.Call{Method: "prompts/get", Name: "read_file"}, false, ""},
	} {
		if d := p.Decide(&c.call); d.Allow != c.allow || d.RuleID != c.rule || !d.InScope {
			t.Errorf("%+v: %+v", c.call, d)
		}
	}
}

func TestScopeToolsOnlyJudgesNothingElse(t *testing.T) {
	p, err := policy.New(policy.Config{DefaultDeny: true, ToolsOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Decide(&policy.Call{Method: "initialize"}); !d.Allow || d.InScope {
		t.Errorf("initialize: %+v", d)
	}
	if d := p.Decide(&policy.Call{Method: "tools/call", Name: "x"}); d.Allow || !d.InScope {
		t.Errorf("tools/call: %+v", d)
	}
}

func TestMistakesNameTheRule(t *testing.T) {
	_, err := policy.New(policy.Config{ToolsOnly: true, Rules: []policy.Rule{{ID: "D", Methods: []string{"tools/list"}}}})
	if err == nil || !strings.Contains(err.Error(), `"D" can never match`) {
		t.Errorf("%v, want a rule that can never match in scope tools_only", err)
	}
	for want, rules := range map[string][]policy.Rule{
		"rule 1":                   {{}},
		`"A" is giv`:               {{ID: "A"}, {ID: "A"}},
		`rule "B": tool: an empty`: {{ID: "B", Tools: []string{""}}},
		`"C" can`:                  {{ID: "C", Methods: []string{"tools/list"}, Tools: []string{"x"}}},
	} {
		if _, err := policy.New(policy.Config{Rules: rules}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTheZeroPolicyAllowsEverything(t *testing.T) {
	var p policy.Policy
	if d := p.Decide(&policy.Call{Method: "tools/call", Name: "x"}); !d.Allow || d.RuleID != "" {
		t.Errorf("%+v", d)
	}
}

func TestAPolicyDoesNotFollowLaterChangesOfItsConfig(t *testing.T) {
	tools := []string{"read_file"}
	p, err := policy.New(policy.Config{DefaultDeny: true, Rules: []policy.Rule{{ID: "A", Allow: true, Tools: tools}}})
	if err != nil {
		t.Fatal(err)
	}
	tools[0] = "delete_file"
	if d := p.Decide(&policy.Call{Method: "tools/call", Name: "delete_file"}); d.Allow {
		t.Errorf("%+v", d)
	}
}

func TestDigestTellsPoliciesApart(t *testing.T) {
	seen := make(map[string]int)
	for i, cfg := range []policy.Config{
		{}, {DefaultDeny: true}, {ToolsOnly: true},
		{Rules: []policy.Rule{{ID: "A"}}}, {Rules: []policy.Rule{{ID: "A", Allow: true}}},
		{Rules: []policy.Rule{{ID: "A", Methods: []string{"x"}}}}, {Rules: []policy.Rule{{ID: "A", Tools: []string{"x"}}}},
		{Rules: []policy.Rule{{ID: "A", Reason: "x"}}},
		{Rules: []policy.Rule{{ID: "A", Tools: []string{"x"}}, {ID: "B"}}}, {Rules: []policy.Rule{{ID: "B", Tools: []string{"x"}}, {ID: "A"}}},
		{Rules: []policy.Rule{{ID: "A", When: "true"}}}, {Rules: []policy.Rule{{ID: "A", When: "true "}}},
		{Rules: []policy.Rule{{ID: "A", Scopes: []string{"x"}}}}, {Rules: []policy.Rule{{ID: "A", Roles: []string{"x"}}}},
		{Rules: []policy.Rule{{ID: "A", Names: []string{"x"}}}}, {Rules: []policy.Rule{{ID: "A", Subjects: []string{"x"}}}},
		{Rules: []policy.Rule{{ID: "A", Issuers: []string{"x"}}}}, {Rules: []policy.Rule{{ID: "A", ClientIDs: []string{"x"}}}},
		{Rules: []policy.Rule{{ID: "A", ServerIDs: []string{"x"}}}}, {Rules: []policy.Rule{{ID: "A", URLHosts: []string{"x"}}}},
		{Rules: []policy.Rule{{ID: "A", Tools: []string{"x", "y"}}}}, {Rules: []policy.Rule{{ID: "A", Tools: []string{"y", "x"}}}},
	} {
		p, err := policy.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if j, dup := seen[p.Digest()]; dup {
			t.Errorf("policies %d and %d have one digest", i, j)
		}
		seen[p.Digest()] = i
	}
}
