package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// answer is what a condition comes to for a simple evaluator.
type answer int

const (
	isFalse answer = iota
	isTrue
	isUnknown // it depends on what a list does not know
	isError
)

// scene is a call with its values in plain Go.
type scene struct {
	call policy.Call
	path string // of the arguments, "" if there is none
	n    int
	// annotation is readOnlyHint: 0 none, 1 true, 2 false
	annotation int
}

// conditions pair a CEL text with what it means.
var conditions = []struct {
	text string
	mean func(s scene, list bool) answer
}{
	{"", func(scene, bool) answer { return isTrue }},
	{`args.path.startsWith("/srv/")`, func(s scene, list bool) answer {
		switch {
		case list:
			return isUnknown
		case s.path == "":
			return isError
		}
		return truth(strings.HasPrefix(s.path, "/srv/"))
	}},
	{`has(args.path) && args.path == "/etc"`, func(s scene, list bool) answer {
		if list {
			return isUnknown
		}
		return truth(s.path == "/etc")
	}},
	{`args.n > 3`, func(s scene, list bool) answer {
		if list {
			return isUnknown
		}
		return truth(s.n > 3)
	}},
	{`tool.annotations.readOnlyHint`, func(s scene, _ bool) answer {
		if s.annotation == 0 {
			return isError
		}
		return truth(s.annotation == 1)
	}},
	{`has(tool.annotations.readOnlyHint) && tool.annotations.readOnlyHint`, func(s scene, _ bool) answer {
		return truth(s.annotation == 1)
	}},
	{`has(tool.annotations.readOnlyHint) && args.n == 2`, func(s scene, list bool) answer {
		switch {
		case s.annotation == 0:
			return isFalse
		case list:
			return isUnknown
		}
		return truth(s.n == 2)
	}},
	{`"admin" in principal.roles || request.server_id == "a"`, func(s scene, _ bool) answer {
		return truth(slices.Contains(s.call.Caller.Roles, "admin") || s.call.ServerID == "a")
	}},
}

func truth(b bool) answer {
	if b {
		return isTrue
	}
	return isFalse
}

// evaluate is the policy by the book: rule by rule, without compiling anything.
func evaluate(cfg policy.Config, means map[string]func(scene, bool) answer, s scene, list bool) (allow bool, rule string, failed bool) {
	c := s.call
	if cfg.ToolsOnly && c.Method != "tools/call" {
		return true, "", false
	}
	tool := ""
	if c.Method == "tools/call" {
		tool = c.Name
	}
	for _, r := range cfg.Rules {
		if !oneOf(r.Methods, false, c.Method) || !oneOf(r.Tools, false, tool) || !oneOf(r.Names, true, c.Name) ||
			!oneOf(r.Roles, false, c.Caller.Roles...) || !oneOf(r.Scopes, false, c.Caller.Scopes...) ||
			!oneOf(r.Subjects, false, c.Caller.Subject) || !oneOf(r.Issuers, false, c.Caller.Issuer) ||
			!oneOf(r.ClientIDs, false, c.ClientID) || !oneOf(r.ServerIDs, false, c.ServerID) {
			continue
		}
		switch means[r.When](s, list) {
		case isTrue:
			return r.Allow, r.ID, false
		case isUnknown:
			if r.Allow {
				return true, r.ID, false
			}
		case isError:
			return false, r.ID, true
		}
	}
	return !cfg.DefaultDeny, "", false
}

func oneOf(patterns []string, path bool, values ...string) bool {
	if len(patterns) == 0 {
		return true
	}
	for _, p := range patterns {
		for _, v := range values {
			if v != "" && reference(p, path).MatchString(v) {
				return true
			}
		}
	}
	return false
}

// some picks up to two of the words, mostly none.
func some(rng *rand.Rand, words ...string) (out []string) {
	if rng.IntN(2) == 0 {
		return nil
	}
	for range 1 + rng.IntN(2) {
		out = append(out, words[rng.IntN(len(words))])
	}
	return out
}

func randomConfig(rng *rand.Rand) policy.Config {
	cfg := policy.Config{DefaultDeny: rng.IntN(2) == 0, ToolsOnly: rng.IntN(4) == 0}
	for i := range 1 + rng.IntN(7) {
		r := policy.Rule{ID: fmt.Sprint("R", i), Allow: rng.IntN(2) == 0, When: conditions[rng.IntN(len(conditions))].text}
		if rng.IntN(2) == 0 {
			r.When = ""
		}
		r.Methods = some(rng, "tools/call", "tools/*", "prompts/get", "*", "*list")
		r.Tools = some(rng, "read_*", "*_file", "write_file", "?x", "*")
		if rng.IntN(3) == 0 {
			r.Names = some(rng, "read_*", "a/*", "**_file", "*")
			r.ClientIDs = some(rng, "desk*", "cli")
			r.ServerIDs = some(rng, "a", "b")
		}
		if rng.IntN(3) == 0 {
			r.Roles = some(rng, "admin", "oper*", "guest")
			r.Scopes = some(rng, "mcp:read", "mcp:*")
			r.Subjects = some(rng, "alice", "*")
			r.Issuers = some(rng, "https://i/*")
		}
		// A rule that can never match is an error, which is another test's.
		grown := cfg
		grown.Rules = append(slices.Clip(cfg.Rules), r)
		if _, err := policy.New(grown); err == nil {
			cfg = grown
		}
	}
	return cfg
}

func randomScene(rng *rand.Rand) scene {
	word := func(words ...string) string { return words[rng.IntN(len(words))] }
	s := scene{path: word("", "/srv/a", "/etc", "/"), n: rng.IntN(6), annotation: rng.IntN(3)}
	args := fmt.Sprintf(`{"n":%d`, s.n)
	if s.path != "" {
		args += fmt.Sprintf(`,"path":%q`, s.path)
	}
	s.call = policy.Call{
		Method:    word("tools/call", "tools/call", "prompts/get"),
		Name:      word("read_file", "read_dir", "write_file", "ax", "a/b_file", "Read_file"),
		ClientID:  word("desktop", "cli", "anonymous"),
		ServerID:  word("a", "b"),
		Caller:    &policy.Caller{Subject: word("", "alice", "bob"), Issuer: word("", "https://i/x"), Roles: some(rng, "admin", "operator", "guest"), Scopes: some(rng, "mcp:read", "mcp:write")},
		Arguments: []byte(args + "}"),
	}
	switch s.annotation {
	case 1:
		s.call.Annotations = []byte(`{"title":"x","readOnlyHint":true}`)
	case 2:
		s.call.Annotations = []byte(`{"readOnlyHint":false}`)
	}
	return s
}

func TestListedExactlyIfCallableAndTheRecordedRuleIsTheReferences(t *testing.T) {
	means := make(map[string]func(scene, bool) answer)
	for _, c := range conditions {
		means[c.text] = c.mean
	}
	rng := rand.New(rand.NewPCG(5, 4))
	var listed, hidden, failed int
	for n := range 1000 {
		cfg := randomConfig(rng)
		p, err := policy.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			s := randomScene(rng)
			for _, list := range []bool{false, true} {
				allow, rule, isFault := evaluate(cfg, means, s, list)
				d := p.Decide(&s.call)
				if list {
					d = p.Listed(&s.call)
				}
				if d.Allow != allow || d.RuleID != rule || (d.Anomaly != "") != isFault {
					t.Fatalf("policy %d %+v\non %+v, list %v: %+v, want %v by %q, failed %v", n, cfg, s, list, d, allow, rule, isFault)
				}
				if isFault {
					failed++
				}
			}
			seen := p.Listed(&s.call).Allow
			usesArgs := slices.ContainsFunc(cfg.Rules, func(r policy.Rule) bool { return strings.Contains(r.When, "args") })
			if called := p.Decide(&s.call).Allow; called && !seen || !usesArgs && called != seen {
				t.Fatalf("policy %d %+v\non %+v: callable %v, listed %v", n, cfg, s, called, seen)
			}
			if seen {
				listed++
			} else {
				hidden++
			}
		}
	}
	if listed < 2000 || hidden < 2000 || failed < 200 {
		t.Errorf("%d listed, %d hidden, %d failed: the policies are too much alike to tell anything", listed, hidden, failed)
	}
}
