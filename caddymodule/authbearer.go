package caddymodule

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

func init() {
	caddy.RegisterModule(BearerAuth{})
}

// BearerAuth lets requests in that carry one of a few static tokens in their
// Authorization header. Each token stands for a principal. A request that is
// refused is one record in the audit log.
type BearerAuth struct {
	// The tokens, each with its principal. Default: that of the environment
	// variable `MCP_AUDIT_STATIC_BEARER_TOKEN`.
	Tokens []StaticToken `json:"tokens,omitempty"`

	// How many wrong tokens an address may send in what time, as in `10/1m`;
	// with IPv6 a /64. After that its requests are refused with 429 until that
	// time is over, whatever they carry. `off` allows any number. Default: 10/1m.
	Throttle string `json:"throttle,omitempty"`

	AuthOptions

	run        protection
	static     token.Static
	throttle   *token.Throttle
	throttleID string
}

// StaticToken is a token and whom it stands for.
type StaticToken struct {
	// The token as a placeholder, `{file.*}` or `{env.*}`. It has 32 bytes or
	// more of letters, digits and `-._~+/`.
	Token string `json:"token"`

	// Who the bearer is. Default, for the only token: local.
	Subject string `json:"subject,omitempty"`

	// Who vouches for that. Default: static.
	Issuer string `json:"issuer,omitempty"`

	// The client that the subject uses. Default: none.
	ClientID string `json:"client_id,omitempty"`

	// The roles of the subject. Default: none.
	Roles []string `json:"roles,omitempty"`

	// The scopes granted to the client. Default: none.
	Scopes []string `json:"scopes,omitempty"`
}

const (
	staticTokenVariable = "MCP_AUDIT_STATIC_BEARER_TOKEN" //nolint:gosec // its name, not its value
	defaultThrottle     = "10/1m"
	throttleOff         = "off"
)

// throttles holds the counts of wrong tokens beyond one configuration: a reload
// gives nobody new attempts.
var throttles = caddy.NewUsagePool()

// pooledThrottle is a throttle in that pool.
type pooledThrottle struct{ token.Throttle }

// Destruct implements caddy.Destructor.
func (*pooledThrottle) Destruct() error { return nil }

// CaddyModule returns the Caddy module information.
func (BearerAuth) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.authentication.providers.mcp_bearer",
		New: func() caddy.Module { return new(BearerAuth) },
	}
}

// Provision reads the tokens.
func (b *BearerAuth) Provision(ctx caddy.Context) error {
	if err := b.provision(ctx); err != nil {
		return fmt.Errorf("mcp_bearer: %w", err)
	}
	return nil
}

func (b *BearerAuth) provision(ctx caddy.Context) error {
	hash := sha256.New()
	tokens := b.Tokens
	if len(tokens) == 0 {
		if os.Getenv(staticTokenVariable) == "" {
			return fmt.Errorf("there is no token; name one with `token {file./run/secrets/token}`, or set the environment variable %s", staticTokenVariable)
		}
		tokens = []StaticToken{{Token: "{env." + staticTokenVariable + "}"}}
	}
	for i := range tokens {
		t := tokens[i]
		raw, err := secretOf("token", t.Token)
		if err != nil {
			return err
		}
		if t.Subject == "" {
			if len(tokens) > 1 {
				return fmt.Errorf("token %s: needs a subject, because there are several tokens", t.Token)
			}
			t.Subject = "local"
		}
		if t.Issuer == "" {
			t.Issuer = "static"
		}
		c := &token.Claims{Subject: t.Subject, Issuer: t.Issuer, ClientID: t.ClientID, Roles: t.Roles, Scopes: t.Scopes}
		if err := b.static.Add(raw, c); err != nil {
			return fmt.Errorf("token %s: %w", t.Token, err)
		}
		sum := sha256.Sum256([]byte(raw))
		hash.Write(sum[:])
	}
	most, window, err := parseThrottle(b.Throttle)
	if err != nil {
		return err
	}
	if most > 0 {
		b.throttleID = fmt.Sprintf("%x %d %s", hash.Sum(nil), most, window)
		pooled, _, _ := throttles.LoadOrNew(b.throttleID, func() (caddy.Destructor, error) {
			return &pooledThrottle{token.Throttle{Most: most, Window: window}}, nil
		})
		b.throttle = &pooled.(*pooledThrottle).Throttle
		b.run.wrong = func(r *http.Request) { b.throttle.Wrong(clientAddress(r), time.Now()) }
	}
	b.run.check = b.check
	return protect(ctx, &b.AuthOptions, &b.run)
}

// Cleanup gives the counts of wrong tokens back.
func (b *BearerAuth) Cleanup() error {
	// Requests in flight may still count.
	if b.throttleID == "" {
		return nil
	}
	_, err := throttles.Delete(b.throttleID)
	b.throttleID = ""
	return err
}

// parseThrottle reads how many wrong tokens may come in what time; 0: any.
func parseThrottle(text string) (most int, window time.Duration, err error) {
	switch text {
	case throttleOff:
		return 0, 0, nil
	case "":
		text = defaultThrottle
	}
	if most, window, err = ratelimit.ParseRate(text); err != nil {
		return 0, 0, fmt.Errorf("throttle: %w; or write off", err)
	}
	return most, window, nil
}

// Authenticate implements caddyauth.Authenticator.
func (b *BearerAuth) Authenticate(_ http.ResponseWriter, r *http.Request) (caddyauth.User, bool, error) {
	return b.run.authenticate(r)
}

func (b *BearerAuth) check(r *http.Request) (*token.Claims, token.Reason, time.Duration) {
	raw, reason := token.FromHeader(r.Header)
	if reason == token.Missing {
		return nil, reason, 0
	}
	// Whether the token is right must not show before the wait is over.
	if throttle := b.throttle; throttle != nil {
		if wait := throttle.Wait(clientAddress(r), time.Now()); wait > 0 {
			return nil, token.Throttled, wait
		}
	}
	if reason != "" {
		return nil, reason, 0
	}
	claims, reason := b.static.Verify(raw)
	return claims, reason, 0
}

// UnmarshalCaddyfile parses the provider. Syntax:
//
//	mcp_bearer {
//		token <{file.*} or {env.*}> {
//			subject   <name>
//			issuer    <name>
//			client_id <name>
//			roles     <names...>
//			scopes    <names...>
//		}
//		throttle              off | <tokens>/<duration>
//		require_scopes        <scopes...>
//		scopes_supported      <scopes...>
//		resource              <url>
//		authorization_servers <urls...>
//		log                   <name>
//	}
//
// `token` may stand several times, and its block is optional.
func (b *BearerAuth) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if err := none(d); err != nil {
		return err
	}
	options := map[string]func() error{
		"token": func() error { return b.unmarshalToken(d) },
		"throttle": func() error {
			if err := one(d, &b.Throttle); err != nil {
				return err
			}
			_, _, err := parseThrottle(b.Throttle)
			return at(d, err)
		},
	}
	maps.Copy(options, b.common(d))
	_, err := block(d, options, "token")
	return err
}

func (b *BearerAuth) unmarshalToken(d *caddyfile.Dispenser) error {
	var t StaticToken
	if err := one(d, &t.Token); err != nil {
		return err
	}
	if !isSecretPlaceholder(t.Token) {
		return d.Err("token: write a placeholder in place of the secret, such as {file./run/secrets/token} or {env.TOKEN}")
	}
	_, err := block(d, map[string]func() error{
		"subject":   func() error { return one(d, &t.Subject) },
		"issuer":    func() error { return one(d, &t.Issuer) },
		"client_id": func() error { return one(d, &t.ClientID) },
		"roles":     func() error { return some(d, &t.Roles) },
		"scopes":    func() error { return some(d, &t.Scopes) },
	})
	b.Tokens = append(b.Tokens, t)
	return err
}

// Validate implements caddy.Validator.
func (b *BearerAuth) Validate() error {
	for _, t := range b.Tokens {
		for _, scope := range t.Scopes {
			if !isScope(scope) {
				return errors.New("mcp_bearer: scopes: a token has one that is no scope; RFC 6749 allows printable ASCII without space, quote and backslash")
			}
		}
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner       = (*BearerAuth)(nil)
	_ caddy.Validator         = (*BearerAuth)(nil)
	_ caddy.CleanerUpper      = (*BearerAuth)(nil)
	_ caddyauth.Authenticator = (*BearerAuth)(nil)
	_ caddyfile.Unmarshaler   = (*BearerAuth)(nil)
)
