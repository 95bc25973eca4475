package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// IdentityClaims says where the rest of an identity stands: placeholders, of
// each list the first that has a value. They are asked only once one of
// `identity` has named the subject, and so must come from the same source.
type IdentityClaims struct {
	// Who vouches for the subject. Default: `{http.auth.user.issuer}`, or for a
	// certificate `{http.request.tls.client.issuer}`.
	Issuer []string `json:"issuer,omitempty"`

	// The client that the subject uses. Default: `{http.auth.user.client_id}`.
	ClientID []string `json:"client_id,omitempty"`

	// The subject's roles, as a list or a text with spaces, commas or of JSON.
	// Default: `{http.auth.user.roles}`.
	Roles []string `json:"roles,omitempty"`

	// The scopes granted to the client, written as roles are. Default:
	// `{http.auth.user.scopes}`, `{http.auth.user.scope}`.
	Scopes []string `json:"scopes,omitempty"`
}

// Prefixes of placeholders.
const (
	authUser          = "http.auth.user."
	clientCertificate = "http.request.tls.client."
	requestHeader     = "http.request.header."
)

// Where the rest of an identity stands by default. It is taken only with a
// subject of the same source.
var (
	userClaims = IdentityClaims{
		Issuer:   []string{"{" + authUser + "issuer}"},
		ClientID: []string{"{" + authUser + "client_id}"},
		Roles:    []string{"{" + authUser + "roles}"},
		Scopes:   []string{"{" + authUser + "scopes}", "{" + authUser + "scope}"},
	}
	certificateClaims = IdentityClaims{Issuer: []string{"{" + clientCertificate + "issuer}"}}
)

// lists are all lists of claims, by their names.
func (c *IdentityClaims) lists() map[string]*[]string {
	return map[string]*[]string{"issuer": &c.Issuer, "client_id": &c.ClientID, "roles": &c.Roles, "scopes": &c.Scopes}
}

// unmarshalIdentity parses where the caller's identity stands. Syntax:
//
//	identity [<placeholders...>] {
//		issuer    <placeholders...>
//		client_id <placeholders...>
//		roles     <placeholders...>
//		scopes    <placeholders...>
//	}
//
// The block is optional; without a placeholder of its own the subject is looked
// for where it is by default.
func (h *Handler) unmarshalIdentity(d *caddyfile.Dispenser) error {
	h.Identity = d.RemainingArgs()
	var claims IdentityClaims
	options := make(map[string]func() error)
	for name, list := range claims.lists() {
		options[name] = func() error {
			if err := some(d, list); err != nil {
				return err
			}
			return at(d, checkPlaceholders(name, *list))
		}
	}
	seen, err := block(d, options)
	if err != nil {
		return err
	}
	if len(seen) > 0 {
		h.IdentityClaims = &claims
	}
	if len(h.Identity) == 0 && len(seen) == 0 {
		return d.Err("identity takes placeholders, a block or both, as in: identity {http.auth.user.id}")
	}
	return at(d, checkPlaceholders("identity", h.Identity))
}

// clientsText are the placeholders whose values are what a client says of
// itself, and why they are no identity.
var clientsText = []string{
	"http.auth.candidate.", "http.request.uri", "http.request.orig_uri", "http.request.cookie.", "http.request.body",
	"http.request.host", "http.request.hostport", "http.request.method", "http.request.orig_method", "http.request.form.",
	requestHeader + "Authorization", requestHeader + "Proxy-Authorization", requestHeader + "Cookie",
	requestHeader + "Mcp-", requestHeader + "User-Agent", requestHeader + "X-Forwarded-For",
}

// checkPlaceholders refuses what is no placeholder, and one whose value a
// client chooses or that would put a credential into records.
func checkPlaceholders(option string, texts []string) error {
	for _, text := range texts {
		name := strings.TrimSuffix(strings.TrimPrefix(text, "{"), "}")
		if len(name) != len(text)-2 || name == "" || strings.ContainsAny(name, "{}") {
			return fmt.Errorf("%s: %q is no placeholder; write one such as {http.auth.user.id}", option, text)
		}
		if err := checkSource(option, name); err != nil {
			return err
		}
	}
	return nil
}

func checkSource(option, name string) error {
	folded := strings.ToLower(name)
	for _, prefix := range clientsText {
		if strings.HasPrefix(folded, strings.ToLower(prefix)) {
			return fmt.Errorf("%s: {%s} is the client's own text or its credential, and no identity; use what authentication has verified, such as {http.auth.user.id}", option, name)
		}
	}
	return nil
}

// placeholdersIn are the names of the placeholders in a text.
func placeholdersIn(text string) (names []string) {
	for {
		_, rest, found := strings.Cut(text, "{")
		if !found {
			return names
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return names
		}
		names = append(names, name)
		text = after
	}
}

// provisionIdentity checks where identities come from, and which headers of a
// client stay because they are named.
func (h *Handler) provisionIdentity() error {
	if err := checkPlaceholders("mcp_audit: identity", h.Identity); err != nil {
		return err
	}
	named := slices.Clone(h.Identity)
	if h.IdentityClaims != nil {
		for name, list := range h.IdentityClaims.lists() {
			if err := checkPlaceholders("mcp_audit: identity: "+name, *list); err != nil {
				return err
			}
			named = append(named, *list...)
		}
	}
	for _, name := range placeholdersIn(h.ClientID) {
		if err := checkSource("mcp_audit: client_id", name); err != nil {
			return err
		}
		named = append(named, "{"+name+"}")
	}
	h.keptHeaders = make(map[string]bool)
	for _, name := range h.ForwardHeaders {
		h.keptHeaders[name] = true
	}
	for _, text := range named {
		if name, found := strings.CutPrefix(strings.Trim(text, "{}"), requestHeader); found {
			h.keptHeaders[http.CanonicalHeaderKey(name)] = true
		}
	}
	h.subjects = nil
	for _, placeholder := range h.Identity {
		h.subjects = append(h.subjects, subjectSource{placeholder, h.claimsFor(placeholder)})
	}
	return nil
}

// subjectSource is a placeholder that may name the subject, and where the rest
// of that identity stands.
type subjectSource struct {
	placeholder string
	claims      IdentityClaims
}

// claimsFor are where the rest of an identity stands whose subject came from a
// placeholder.
func (h *Handler) claimsFor(placeholder string) IdentityClaims {
	var claims IdentityClaims
	switch {
	case strings.HasPrefix(placeholder, "{"+authUser):
		claims = userClaims
	case strings.HasPrefix(placeholder, "{"+clientCertificate):
		claims = certificateClaims
	}
	if h.IdentityClaims == nil {
		return claims
	}
	own := h.IdentityClaims.lists()
	for name, list := range claims.lists() {
		if configured := *own[name]; len(configured) > 0 {
			*list = configured
		}
	}
	return claims
}

// identitySource reads placeholders of one request.
type identitySource struct {
	repl     *caddy.Replacer
	verified bool // the client certificate, if there is one
}

func sourceOf(r *http.Request) identitySource {
	return identitySource{
		repl: r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer),
		// Caddy can ask for a certificate without checking it.
		verified: r.TLS != nil && len(r.TLS.VerifiedChains) > 0,
	}
}

// usable reports whether a placeholder may be believed in this request.
func (s identitySource) usable(placeholder string) bool {
	return s.verified || !strings.Contains(placeholder, clientCertificate)
}

// all are the values of the first placeholder that has one.
func (s identitySource) all(placeholders []string) []string {
	for _, p := range placeholders {
		if !s.usable(p) {
			continue
		}
		value, _ := s.repl.Get(strings.Trim(p, "{}"))
		if list := listOf(value); len(list) > 0 {
			return list
		}
	}
	return nil
}

// first is the value of the first placeholder that has one.
func (s identitySource) first(placeholders []string) string {
	for _, p := range placeholders {
		if text := s.text(p); text != "" {
			return text
		}
	}
	return ""
}

// text is the value of a placeholder; of several values the first.
func (s identitySource) text(placeholder string) string {
	if !s.usable(placeholder) {
		return ""
	}
	value, _ := s.repl.Get(strings.Trim(placeholder, "{}"))
	if list, many := value.([]string); many {
		return cmp.Or(list...)
	}
	return caddy.ToString(value)
}

// listOf reads a list as authentication providers write it: JSON, or words with
// spaces or commas.
func listOf(value any) []string {
	switch v := value.(type) {
	case nil:
		return nil
	case []string:
		return v
	}
	text := strings.TrimSpace(caddy.ToString(value))
	if strings.HasPrefix(text, "[") {
		var list []string
		if err := json.Unmarshal([]byte(text), &list); err == nil {
			return list
		}
		// As Go prints a list.
		text = strings.Trim(text, "[]")
	}
	return strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
}
