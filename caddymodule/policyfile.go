package caddymodule

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// unmarshalPolicy parses the policy of a handler. Syntax:
//
//	policy {
//		default allow|deny
//		scope   all_operations|tools_only
//		rule <id> allow|deny {
//			method    <patterns...>
//			tool      <patterns...>
//			name      <patterns...>
//			subject   <patterns...>
//			issuer    <patterns...>
//			client_id <patterns...>
//			role      <patterns...>
//			scope     <patterns...>
//			server_id <patterns...>
//			url_host  <patterns...>
//			when      <CEL expression, in backticks>
//			reason    <text>
//		}
//	}
//
// A rule may stand without a block: it matches everything.
func unmarshalPolicy(d *caddyfile.Dispenser) (*policy.Document, error) {
	doc := new(policy.Document)
	if err := none(d); err != nil {
		return nil, err
	}
	_, err := block(d, map[string]func() error{
		"default": func() error { return choice(d, &doc.Default, "allow", "deny") },
		"scope":   func() error { return choice(d, &doc.Scope, "all_operations", "tools_only") },
		"rule": func() error {
			r, err := unmarshalPolicyRule(d)
			if err != nil {
				return err
			}
			doc.Rules = append(doc.Rules, r)
			// Compiled again when the handler is provisioned; here a rule that
			// does not go with those before it has a line.
			_, err = doc.Compile()
			return at(d, err)
		},
	}, "rule")
	if err != nil {
		return nil, err
	}
	// The scope may stand behind the rules that it makes pointless.
	_, err = doc.Compile()
	return doc, at(d, err)
}

func unmarshalPolicyRule(d *caddyfile.Dispenser) (policy.DocumentRule, error) {
	var r policy.DocumentRule
	if !d.Args(&r.ID, &r.Action) || d.NextArg() {
		return r, d.Err("rule takes an id and an action, as in: rule READ-1 allow { … }")
	}
	if r.Action != "allow" && r.Action != "deny" {
		return r, d.Errf("rule %s: unknown action %q; use allow or deny", r.ID, r.Action)
	}
	// Each line is compiled on its own, so that a mistake in it is told with
	// its line.
	check := func(alone policy.DocumentRule) error {
		alone.ID, alone.Action = r.ID, r.Action
		_, err := (&policy.Document{Rules: []policy.DocumentRule{alone}}).Compile()
		return at(d, err)
	}
	patterns := func(of func(*policy.DocumentRule) *[]string) func() error {
		return func() error {
			var alone policy.DocumentRule
			if err := some(d, of(&alone)); err != nil {
				return err
			}
			*of(&r) = *of(&alone)
			return check(alone)
		}
	}
	_, err := block(d, map[string]func() error{
		"method":    patterns(func(r *policy.DocumentRule) *[]string { return &r.Methods }),
		"tool":      patterns(func(r *policy.DocumentRule) *[]string { return &r.Tools }),
		"name":      patterns(func(r *policy.DocumentRule) *[]string { return &r.Names }),
		"subject":   patterns(func(r *policy.DocumentRule) *[]string { return &r.Subjects }),
		"issuer":    patterns(func(r *policy.DocumentRule) *[]string { return &r.Issuers }),
		"client_id": patterns(func(r *policy.DocumentRule) *[]string { return &r.ClientIDs }),
		"role":      patterns(func(r *policy.DocumentRule) *[]string { return &r.Roles }),
		"scope":     patterns(func(r *policy.DocumentRule) *[]string { return &r.Scopes }),
		"server_id": patterns(func(r *policy.DocumentRule) *[]string { return &r.ServerIDs }),
		"url_host":  patterns(func(r *policy.DocumentRule) *[]string { return &r.URLHosts }),
		"when": func() error {
			if err := one(d, &r.When); err != nil {
				return err
			}
			if r.When == "" {
				return d.Err("when takes a condition, as in: when `args.path.startsWith(\"/srv/\")`")
			}
			return check(policy.DocumentRule{When: r.When})
		},
		"reason": func() error { return one(d, &r.Reason) },
	})
	return r, err
}
