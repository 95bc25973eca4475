package policy

import "fmt"

// Document is a policy as a configuration holds it: ordered rules, the first
// match decides.
type Document struct {
	// What happens when no rule matches: `allow` or `deny`. Default: allow.
	Default string `json:"default,omitempty"`

	// What is judged: `all_operations` (requests in either direction and the
	// client's notifications) or `tools_only` (tools/call and its tasks).
	// Default: all_operations.
	Scope string `json:"scope,omitempty"`

	// The rules in order.
	Rules []DocumentRule `json:"rules,omitempty"`
}

// DocumentRule allows or denies the operations it matches. Every selector that
// is given must match, each with one of its patterns; a selector never matches
// a value that is absent.
//
// A pattern is compared byte for byte. `*` alone is any value. In a pattern
// `*` is any run of characters, `?` one character, `[a-z]` one of a class,
// `[!a-z]` one of no class, and a backslash takes away the next character's
// meaning. In names, `*` and `?` stop at a slash, and `**` passes it.
type DocumentRule struct {
	// The rule's id, unique in its policy; records name it.
	ID string `json:"id"`

	// `allow` or `deny`.
	Action string `json:"action"`

	// JSON-RPC methods. Default: any.
	Methods []string `json:"methods,omitempty"`

	// Names of tools, of tools/call and its tasks. Default: any, also
	// operations without a tool.
	Tools []string `json:"tools,omitempty"`

	// Names of tools and prompts, URIs of resources, references of
	// completions. Default: any, also operations without a name.
	Names []string `json:"names,omitempty"`

	// Verified subjects of callers. Default: any caller.
	Subjects []string `json:"subjects,omitempty"`

	// Verified issuers of callers. Default: any caller.
	Issuers []string `json:"issuers,omitempty"`

	// Client ids, as records have them. Default: any.
	ClientIDs []string `json:"client_ids,omitempty"`

	// Roles, of which the caller must have one. Default: any caller.
	Roles []string `json:"roles,omitempty"`

	// Scopes, of which the caller must have one. Default: any caller.
	Scopes []string `json:"scopes,omitempty"`

	// The route's `server_id`. Default: any.
	ServerIDs []string `json:"server_ids,omitempty"`

	// Hosts of the URLs that servers send the user to (elicitation/create in
	// URL mode), in lower case. Default: any operation.
	URLHosts []string `json:"url_hosts,omitempty"`

	// A condition in CEL that must be true. If it cannot be evaluated, the
	// operation is denied. Default: none.
	When string `json:"when,omitempty"`

	// Why; for the record, and for the client with `explain`.
	Reason string `json:"reason,omitempty"`
}

// Words of a document.
const (
	wordAllow         = "allow"
	wordDeny          = "deny"
	wordAllOperations = "all_operations"
	wordToolsOnly     = "tools_only"
)

// Compile makes the policy. A nil document allows everything.
func (d *Document) Compile() (*Policy, error) {
	if d == nil {
		return New(Config{})
	}
	var cfg Config
	var err error
	if cfg.DefaultDeny, err = isSecond("default", d.Default, wordAllow, wordDeny); err != nil {
		return nil, err
	}
	if cfg.ToolsOnly, err = isSecond("scope", d.Scope, wordAllOperations, wordToolsOnly); err != nil {
		return nil, err
	}
	for _, r := range d.Rules {
		if r.Action != wordAllow && r.Action != wordDeny {
			return nil, fmt.Errorf("rule %q: unknown action %q; use allow or deny", r.ID, r.Action)
		}
		cfg.Rules = append(cfg.Rules, Rule{
			ID: r.ID, Allow: r.Action == wordAllow,
			Methods: r.Methods, Tools: r.Tools, Names: r.Names,
			Subjects: r.Subjects, Issuers: r.Issuers, ClientIDs: r.ClientIDs, Roles: r.Roles, Scopes: r.Scopes,
			ServerIDs: r.ServerIDs, URLHosts: r.URLHosts, When: r.When, Reason: r.Reason,
		})
	}
	return New(cfg)
}

// isSecond reports which of two words an option has; the first is the default.
func isSecond(option, value, first, second string) (bool, error) {
	switch value {
	case "", first:
		return false, nil
	case second:
		return true, nil
	}
	return false, fmt.Errorf("%s: unknown value %q; use %s or %s", option, value, first, second)
}
