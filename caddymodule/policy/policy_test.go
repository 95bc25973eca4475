package policy_test

import (
	"fmt"
	"math/rand/v2"
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
		{Rules: []policy.Rule{{ID: "A"}, {ID: "B"}}}, {Rules: []policy.Rule{{ID: "B"}, {ID: "A"}}},
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

func TestDecisionsEqualThoseOfANaiveEvaluator(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	methods := []string{"tools/call", "tools/list", "prompts/get"}
	tools := []string{"a", "b", "c"}
	pick := func(from []string) (out []string) {
		for _, s := range from {
			if rng.IntN(3) == 0 {
				out = append(out, s)
			}
		}
		return out
	}
	for n := range 2000 {
		cfg := policy.Config{DefaultDeny: rng.IntN(2) == 0, ToolsOnly: rng.IntN(3) == 0}
		for i := range rng.IntN(5) {
			r := policy.Rule{ID: fmt.Sprint(i), Allow: rng.IntN(2) == 0, Methods: pick(methods), Tools: pick(tools)}
			if (len(r.Tools) > 0 || cfg.ToolsOnly) && len(r.Methods) > 0 {
				r.Methods = append(r.Methods, "tools/call")
			}
			cfg.Rules = append(cfg.Rules, r)
		}
		p, err := policy.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range methods {
			for _, tool := range tools {
				call := policy.Call{Method: m}
				if m == "tools/call" {
					call.Name = tool
				}
				allow, rule := naive(cfg, call)
				if d := p.Decide(&call); d.Allow != allow || d.RuleID != rule {
					t.Fatalf("policy %d, %+v: %+v, want %v %q", n, call, d, allow, rule)
				}
			}
		}
	}
}

func naive(cfg policy.Config, c policy.Call) (bool, string) {
	if cfg.ToolsOnly && c.Method != "tools/call" {
		return true, ""
	}
	for _, r := range cfg.Rules {
		match := true
		if len(r.Methods) > 0 {
			found := false
			for _, m := range r.Methods {
				found = found || m == c.Method
			}
			match = match && found
		}
		if len(r.Tools) > 0 {
			found := false
			for _, tool := range r.Tools {
				found = found || c.Method == "tools/call" && tool == c.Name
			}
			match = match && found
		}
		if match {
			return r.Allow, r.ID
		}
	}
	return !cfg.DefaultDeny, ""
}
