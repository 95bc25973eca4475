package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

// AuthOptions are what the authentication providers of this module have in
// common.
type AuthOptions struct {
	// The scopes that each request needs. One that lacks some is refused with 403
	// and the error `insufficient_scope`. Default: none.
	RequireScopes []string `json:"require_scopes,omitempty"`

	// Further scopes that the metadata of the resource names. Default: none.
	ScopesSupported []string `json:"scopes_supported,omitempty"`

	// The address by which clients know this resource, if it is another than
	// that of their requests: behind a proxy that changes the path. Default: the
	// address of the request.
	Resource string `json:"resource,omitempty"`

	// Where clients get tokens, for the metadata of the resource. Default: the
	// issuer; none for static tokens.
	AuthorizationServers []string `json:"authorization_servers,omitempty"`

	// The name of the log that has the records of rejected requests. Default:
	// that of the nearest `mcp_audit`, else `default`.
	Log string `json:"log,omitempty"`
}

// protection is what a provider does at run time. It is immutable after
// provisioning.
type protection struct {
	options  *AuthOptions
	resource *token.Resource // configured; nil: as clients call it
	guard    *authGuard

	// check says who sends a request, or why nobody does and for how long.
	check func(r *http.Request) (*token.Claims, token.Reason, time.Duration)
	// wrong is told of a token that nobody knows. It may be nil.
	wrong func(r *http.Request)
}

// protect sets up a provider of this configuration.
func protect(ctx caddy.Context, o *AuthOptions, p *protection) error {
	p.options = o
	iface, err := ctx.App("mcp_audit")
	if err != nil {
		return fmt.Errorf("getting the mcp_audit app: %w", err)
	}
	app := iface.(*App)
	if o.Log != "" {
		if _, err := app.use(o.Log); err != nil {
			return err
		}
	}
	if o.Resource != "" {
		resource, err := token.ParseResource(o.Resource)
		if err != nil {
			return fmt.Errorf("resource: %w", err)
		}
		p.resource = &resource
	}
	for _, scope := range append(o.RequireScopes, o.ScopesSupported...) {
		if !isScope(scope) {
			return fmt.Errorf("scopes: %q is no scope; RFC 6749 allows printable ASCII without space, quote and backslash", scope)
		}
	}
	for _, address := range o.AuthorizationServers {
		if err := token.CheckURL(address); err != nil {
			return fmt.Errorf("authorization_servers: %w", err)
		}
	}
	if p.guard, err = guardFor(ctx, app); err != nil {
		return err
	}
	p.guard.providers = append(p.guard.providers, p)
	return nil
}

// isScope reports whether a text is a scope: RFC 6749, section 3.3.
func isScope(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return text != ""
}

// authenticate judges a request for Caddy's authentication. Of a refused one the
// guard writes the record and the answer.
func (p *protection) authenticate(r *http.Request) (caddyauth.User, bool, error) {
	a := attemptOf(r).of(p.guard)
	if a == nil {
		return caddyauth.User{}, false, errors.New("the request did not come by the route that was provisioned")
	}
	claims, reason, wait := p.check(r)
	if reason == "" && len(claims.Missing(p.options.RequireScopes)) > 0 {
		reason = token.ScopeMissing
	}
	if reason != "" {
		a.failures = append(a.failures, authFailure{by: p, reason: reason, wait: wait, claims: claims})
		// Whoever was authenticated before is not the user of this request.
		r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer).Delete(userID)
		return caddyauth.User{}, false, nil
	}
	a.accepted = p
	return caddyauth.User{ID: claims.Subject, Metadata: map[string]string{
		"issuer":    claims.Issuer,
		"client_id": claims.ClientID,
		"roles":     placeholderList(claims.Roles),
		"scopes":    placeholderList(claims.Scopes),
	}}, true, nil
}

// placeholderList writes a list so that listOf reads it back: words, or JSON if
// a value is no word.
func placeholderList(list []string) string {
	for _, text := range list {
		if strings.ContainsAny(text, " ,") || strings.HasPrefix(text, "[") {
			if raw, err := json.Marshal(list); err == nil {
				return string(raw)
			}
		}
	}
	return strings.Join(list, " ")
}

// challenge is the WWW-Authenticate of a refused request.
func (p *protection) challenge(r *http.Request, reason token.Reason) string {
	return token.Challenge(reason, p.guard.resourceAt(r, originalPath(r)), p.options.RequireScopes)
}

// challenge adds to a refusal of the audit itself what a client needs to know to
// authenticate, if the route is one of the providers'.
func (x *exchange) challenge(status int) {
	if status != http.StatusUnauthorized && status != http.StatusForbidden {
		return
	}
	for a := attemptOf(x.r); a != nil; a = a.outer {
		if a.accepted != nil {
			x.w.Header().Add("WWW-Authenticate", a.accepted.challenge(x.r, ""))
			return
		}
	}
}

// resolved is the value of an option with its placeholders replaced. One that
// resolves to nothing is an error.
func resolved(option, value string) (string, error) {
	out, err := caddy.NewReplacer().ReplaceOrErr(value, true, true)
	if err != nil {
		return "", fmt.Errorf("%s: %w; set it, or remove the option", option, err)
	}
	return strings.TrimSpace(out), nil
}

// secretOf is the value of an option that must not stand in the configuration,
// which Caddy shows and saves.
func secretOf(option, placeholder string) (string, error) {
	if !isSecretPlaceholder(placeholder) {
		return "", fmt.Errorf("%s: the secret stands in the configuration, where Caddy shows and saves it; write a placeholder in its place, such as {file./run/secrets/token} or {env.TOKEN}", option)
	}
	value, err := resolved(option, placeholder)
	if err != nil {
		return "", err
	}
	if value == "" {
		return "", fmt.Errorf("%s: %s is empty", option, placeholder)
	}
	return value, nil
}

func isSecretPlaceholder(text string) bool {
	return isPlaceholder(text) && (strings.HasPrefix(text, "{file.") || strings.HasPrefix(text, "{env."))
}

// common are the subdirectives of AuthOptions.
func (o *AuthOptions) common(d *caddyfile.Dispenser) map[string]func() error {
	return map[string]func() error{
		"require_scopes":        func() error { return some(d, &o.RequireScopes) },
		"scopes_supported":      func() error { return some(d, &o.ScopesSupported) },
		"resource":              func() error { return one(d, &o.Resource) },
		"authorization_servers": func() error { return some(d, &o.AuthorizationServers) },
		"log":                   func() error { return one(d, &o.Log) },
	}
}
