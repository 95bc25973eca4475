package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
)

// PrincipalConfig declares the identity of every caller of a site that has no
// authentication. Records carry it with the source `configured`.
type PrincipalConfig struct {
	// Who the callers are, for example a user name.
	Subject string `json:"subject,omitempty"`

	// Who vouches for the subject.
	Issuer string `json:"issuer,omitempty"`

	// The client the subject uses.
	ClientID string `json:"client_id,omitempty"`

	// The roles of the subject.
	Roles []string `json:"roles,omitempty"`

	// The scopes granted to the client.
	Scopes []string `json:"scopes,omitempty"`

	// What records name as the source of the identity. Default: configured.
	Source string `json:"source,omitempty"`
}

// capabilityVar is the request variable of the shim's per-run capability. The
// handler takes it off the request, so that it is neither recorded nor
// forwarded; the mcp_shim upstreams read the variable.
const capabilityVar = "mcp_audit.capability"

// anonymous is the client id of a caller nobody vouches for.
const anonymous = "anonymous"

// defaultIdentity is where a verified subject is looked for, first non-empty
// wins: Caddy's authentication, whichever provider it has, then mutual TLS.
var defaultIdentity = []string{"{http.auth.user.id}", "{http.request.tls.client.subject}"}

func (p *PrincipalConfig) validate() error {
	if p.Subject == "" && p.ClientID == "" {
		return errors.New("mcp_audit: principal: needs a subject or a client_id")
	}
	return nil
}

// identify says who sent the request, from verified credentials or the
// configuration, never from a header a client may set. The second result is
// the client id of the records.
func (h *Handler) identify(r *http.Request) (*auditlog.Principal, string) {
	source := sourceOf(r)
	p := h.configured
	if p == nil {
		p = h.verified(source)
	}
	if h.ClientID != "" && source.usable(h.ClientID) {
		if id := source.repl.ReplaceAll(h.ClientID, ""); id != "" {
			return p, id
		}
	}
	switch {
	case p == nil:
		return nil, anonymous
	case p.ClientID != "":
		return p, p.ClientID
	default:
		return p, p.Subject
	}
}

// verified takes the first placeholder of the list that has a value for the
// subject, and the rest from the same source: what Caddy's authentication says
// of a client belongs to its user.
func (h *Handler) verified(source identitySource) *auditlog.Principal {
	for i := range h.subjects {
		s := &h.subjects[i]
		subject := source.text(s.placeholder)
		if subject == "" {
			continue
		}
		return &auditlog.Principal{
			Subject: subject, Source: s.placeholder,
			Issuer: source.first(s.claims.Issuer), ClientID: source.first(s.claims.ClientID),
			Roles: source.all(s.claims.Roles), Scopes: source.all(s.claims.Scopes),
		}
	}
	return nil
}

// takeCapability moves the shim's capability from the request's headers into
// a variable.
func takeCapability(r *http.Request) {
	if token := capability.Take(r.Header); token != "" {
		caddyhttp.SetVar(r.Context(), capabilityVar, token)
	}
}

// clientAddress is the caller's address after trusted proxies.
func clientAddress(r *http.Request) string {
	if ip, ok := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string); ok && ip != "" {
		return ip
	}
	return r.RemoteAddr
}
