package caddymodule

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

func init() {
	caddy.RegisterModule(OIDCAuth{})
}

// OIDCAuth lets requests in that carry an access token of an OpenID Connect or
// OAuth issuer: a JWT, in one Authorization header, signed with a key of the
// issuer and meant for this server. A request that is refused is one record in
// the audit log.
type OIDCAuth struct {
	// The issuer, as its tokens and its metadata name it, to the byte. It has an
	// address that begins with https, or lies on this machine.
	Issuer string `json:"issuer"`

	// What tokens for this server name as their audience. One of these must be
	// in a token.
	Audience []string `json:"audience"`

	// The address of the issuer's keys. Default: the issuer is asked for it.
	JWKSURI string `json:"jwks_uri,omitempty"`

	// The algorithms that a signature may have. Default: RS256, RS384, RS512,
	// PS256, PS384, PS512, ES256, ES384, ES512, EdDSA; there are no others.
	Algorithms []string `json:"algorithms,omitempty"`

	// What the header `typ` of a token may be; `none` stands for a token without
	// it. Default: at+jwt, JWT, none.
	TokenTypes []string `json:"token_types,omitempty"`

	// How far the clock of the issuer may differ. Default: 30s; to 5m. -1 stands
	// for 0.
	ClockSkew caddy.Duration `json:"clock_skew,omitempty"`

	// How long fetching the keys may take. Default: 5s; from 100ms to 1m.
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// How often the keys are fetched. Default: 5m; from 1s to 24h.
	RefreshInterval caddy.Duration `json:"refresh_interval,omitempty"`

	// How long keys count that cannot be fetched again. Default: 1h, or
	// refresh_interval if that is longer; to 168h.
	StaleFor caddy.Duration `json:"stale_for,omitempty"`

	// A PEM file with the authorities that the issuer's certificate may have.
	// Default: those of the system.
	CA string `json:"ca,omitempty"`

	// The claims that are read. Default: sub; client_id, azp; roles; scope, scp.
	Claims *TokenClaims `json:"claims,omitempty"`

	AuthOptions

	run      protection
	verifier *token.Verifier
	keys     *issuerKeys
}

// TokenClaims are the names of the claims that are read, of each list the first
// that a token has. A name with dots also means a member of a member, as in
// `realm_access.roles`.
type TokenClaims struct {
	// Who the caller is. Default: sub.
	Subject []string `json:"subject,omitempty"`

	// The client that the subject uses. Default: client_id, azp.
	ClientID []string `json:"client_id,omitempty"`

	// The subject's roles: one as a text, or a list. Default: roles.
	Roles []string `json:"roles,omitempty"`

	// The scopes granted to the client: a text with spaces, or a list. Default:
	// scope, scp.
	Scopes []string `json:"scopes,omitempty"`
}

// issuers holds the keys of issuers beyond one configuration: a reload while an
// issuer is down must not lose them.
var issuers = caddy.NewUsagePool()

// issuerKeys are an issuer's keys in that pool.
type issuerKeys struct {
	*token.IssuerKeys
	id string
}

// Destruct implements caddy.Destructor.
func (k *issuerKeys) Destruct() error {
	k.Close()
	return nil
}

// CaddyModule returns the Caddy module information.
func (OIDCAuth) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.authentication.providers.mcp_oidc",
		New: func() caddy.Module { return new(OIDCAuth) },
	}
}

// Provision checks the options. Nothing is fetched: the app does that when it
// starts.
func (o *OIDCAuth) Provision(ctx caddy.Context) error {
	if err := o.provision(ctx); err != nil {
		return fmt.Errorf("mcp_oidc: %w", err)
	}
	return nil
}

func (o *OIDCAuth) provision(ctx caddy.Context) error {
	c := token.Config{Algorithms: o.Algorithms, Skew: time.Duration(o.ClockSkew)}
	var err error
	if c.Issuer, err = resolved("issuer", o.Issuer); err != nil {
		return err
	}
	for _, a := range o.Audience {
		if a, err = resolved("audience", a); err != nil {
			return err
		}
		c.Audiences = append(c.Audiences, a)
	}
	for _, t := range o.TokenTypes {
		if t == "none" {
			t = ""
		}
		c.Types = append(c.Types, t)
	}
	if n := o.Claims; n != nil {
		c.Claims = token.ClaimNames{Subject: n.Subject, ClientID: n.ClientID, Roles: n.Roles, Scopes: n.Scopes}
	}
	if o.verifier, err = token.NewVerifier(c); err != nil {
		return err
	}
	if err := o.acquireKeys(c.Issuer); err != nil {
		return err
	}
	o.verifier.Keys = o.keys
	if len(o.AuthorizationServers) == 0 && token.CheckURL(c.Issuer) == nil {
		o.AuthorizationServers = []string{c.Issuer}
	}
	o.run.check = o.check
	if err := protect(ctx, &o.AuthOptions, &o.run); err != nil {
		return err
	}
	o.run.guard.app.issuers = append(o.run.guard.app.issuers, o.keys)
	return nil
}

// acquireKeys takes a reference to the keys of the issuer.
func (o *OIDCAuth) acquireKeys(issuer string) (err error) {
	c := token.IssuerConfig{
		Issuer: issuer, Refresh: time.Duration(o.RefreshInterval), StaleFor: time.Duration(o.StaleFor), Timeout: time.Duration(o.Timeout),
		// Asked for each time: the keys outlive configurations.
		Logger: func() *zap.Logger { return caddy.Log().Named("mcp_audit.issuer") },
	}
	if c.URI, err = resolved("jwks_uri", o.JWKSURI); err != nil {
		return err
	}
	var authorities []byte
	if o.CA != "" {
		if authorities, err = os.ReadFile(o.CA); err != nil {
			return fmt.Errorf("ca: %w", err)
		}
		c.Roots = x509.NewCertPool()
		if !c.Roots.AppendCertsFromPEM(authorities) {
			return fmt.Errorf("ca: %s has no certificate in PEM", o.CA)
		}
	}
	if err := c.Check(); err != nil {
		return err
	}
	sum := fingerprint([]byte(c.Issuer), []byte(c.URI), authorities)
	id := fmt.Sprintf("%x %s %s %s", sum[:], c.Refresh, c.StaleFor, c.Timeout)
	pooled, _, err := issuers.LoadOrNew(id, func() (caddy.Destructor, error) {
		keys, err := token.NewIssuerKeys(c)
		return &issuerKeys{keys, id}, err
	})
	if err != nil {
		return err
	}
	o.keys = pooled.(*issuerKeys)
	return nil
}

// Cleanup gives the keys back. Requests in flight may still ask for them.
func (o *OIDCAuth) Cleanup() error {
	if o.keys == nil {
		return nil
	}
	_, err := issuers.Delete(o.keys.id)
	o.keys = nil
	return err
}

// Authenticate implements caddyauth.Authenticator.
func (o *OIDCAuth) Authenticate(_ http.ResponseWriter, r *http.Request) (caddyauth.User, bool, error) {
	return o.run.authenticate(r)
}

func (o *OIDCAuth) check(r *http.Request) (*token.Claims, token.Reason, time.Duration) {
	raw, reason := token.FromHeader(r.Header)
	if reason != "" {
		return nil, reason, 0
	}
	claims, reason := o.verifier.Verify(r.Context(), raw, time.Now())
	return claims, reason, 0
}

// UnmarshalCaddyfile parses the provider. Syntax:
//
//	mcp_oidc {
//		issuer                <url>
//		audience              <names...>
//		jwks_uri              <url>
//		algorithms            <names...>
//		token_types           <types...>
//		clock_skew            <duration>
//		timeout               <duration>
//		refresh_interval      <duration>
//		stale_for             <duration>
//		ca                    <PEM file>
//		claims {
//			subject   <names...>
//			client_id <names...>
//			roles     <names...>
//			scopes    <names...>
//		}
//		require_scopes        <scopes...>
//		scopes_supported      <scopes...>
//		resource              <url>
//		authorization_servers <urls...>
//		log                   <name>
//	}
//
// `issuer` and `audience` are needed.
func (o *OIDCAuth) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if err := none(d); err != nil {
		return err
	}
	options := map[string]func() error{
		"issuer":   func() error { return one(d, &o.Issuer) },
		"audience": func() error { return some(d, &o.Audience) },
		"jwks_uri": func() error { return one(d, &o.JWKSURI) },
		"algorithms": func() error {
			if err := some(d, &o.Algorithms); err != nil {
				return err
			}
			_, err := token.NewVerifier(token.Config{Issuer: "x", Audiences: []string{"x"}, Algorithms: o.Algorithms})
			return at(d, err)
		},
		"token_types": func() error { return some(d, &o.TokenTypes) },
		"clock_skew": func() error {
			err := duration(d, &o.ClockSkew, 0, token.LongestSkew)
			if o.ClockSkew == 0 {
				o.ClockSkew = -1
			}
			return err
		},
		"timeout":          func() error { return duration(d, &o.Timeout, token.ShortestTimeout, token.LongestTimeout) },
		"refresh_interval": func() error { return duration(d, &o.RefreshInterval, token.ShortestRefresh, token.LongestRefresh) },
		"stale_for":        func() error { return duration(d, &o.StaleFor, token.ShortestRefresh, token.LongestStaleFor) },
		"ca":               func() error { return one(d, &o.CA) },
		"claims": func() error {
			o.Claims = new(TokenClaims)
			_, err := block(d, map[string]func() error{
				"subject":   func() error { return some(d, &o.Claims.Subject) },
				"client_id": func() error { return some(d, &o.Claims.ClientID) },
				"roles":     func() error { return some(d, &o.Claims.Roles) },
				"scopes":    func() error { return some(d, &o.Claims.Scopes) },
			})
			return err
		},
	}
	maps.Copy(options, o.common(d))
	if _, err := block(d, options); err != nil {
		return err
	}
	if o.Issuer == "" || len(o.Audience) == 0 {
		return at(d, errors.New("mcp_oidc needs an issuer and an audience, as in: issuer https://login.example.com/tenant"))
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner       = (*OIDCAuth)(nil)
	_ caddy.CleanerUpper      = (*OIDCAuth)(nil)
	_ caddyauth.Authenticator = (*OIDCAuth)(nil)
	_ caddyfile.Unmarshaler   = (*OIDCAuth)(nil)
)
