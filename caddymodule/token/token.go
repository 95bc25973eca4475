// Package token verifies the access tokens of OAuth clients: JSON Web Tokens as
// RFC 9068 and RFC 8725 want them, and static bearer tokens. It knows nothing of
// Caddy, writes nothing, and no error of it holds a byte of a token.
package token

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reason says in one word why a request is not authenticated. Records have it.
type Reason string

// The reasons. A record has one of these and nothing of the token.
const (
	Missing      Reason = "token_missing"       // no Authorization header, or one of another scheme
	Repeated     Reason = "token_repeated"      // more than one Authorization header
	Malformed    Reason = "token_malformed"     // not what the header or a JWT looks like
	TooLarge     Reason = "token_too_large"     // longer than MaxLength
	Unknown      Reason = "token_unknown"       // no static token is this
	Nested       Reason = "token_nested"        // encrypted, or with another token inside
	BadHeader    Reason = "token_header"        // brings its own key or a critical extension
	BadType      Reason = "token_type"          // a token for something else
	BadAlgorithm Reason = "token_algorithm"     // not signed as the configuration allows
	UnknownKey   Reason = "token_key_unknown"   // signed with a key that the issuer does not have
	BadSignature Reason = "token_signature"     // not signed by that key
	BadIssuer    Reason = "token_issuer"        // of somebody else
	BadAudience  Reason = "token_audience"      // for somebody else
	Expired      Reason = "token_expired"       // too late
	NotYetValid  Reason = "token_not_yet_valid" // too early
	BadClaims    Reason = "token_claims"        // lacks a claim, or has one that cannot be read
	Bound        Reason = "token_bound"         // bound to a key of the client, which is not checked
	ScopeMissing Reason = "scope_missing"       // valid, but without a scope that the route requires
	Throttled    Reason = "throttled"           // too many wrong tokens from this address
	NoKeys       Reason = "keys_unavailable"    // the issuer's keys are not known, so nothing can be verified

	notRefused Reason = ""
)

// Bounds and defaults.
const (
	// MaxLength bounds a token in bytes.
	MaxLength = 16 << 10
	// LongestSkew bounds how far clocks may differ.
	LongestSkew = 5 * time.Minute

	defaultSkew   = 30 * time.Second
	longestKeyID  = 1024
	longestClaim  = 1024
	mostListed    = 256
	latestSeconds = 253402300800 // the year 10000
)

// Claims are what a token says of its bearer.
type Claims struct {
	Subject  string
	Issuer   string
	ClientID string
	Roles    []string
	Scopes   []string
}

// Missing are the scopes of want that the claims do not have.
func (c *Claims) Missing(want []string) (missing []string) {
	for _, scope := range want {
		if !slices.Contains(c.Scopes, scope) {
			missing = append(missing, scope)
		}
	}
	return missing
}

// ClaimNames are the claims that are read, the first that a token has. A name
// with dots also means a member of a member, as in `realm_access.roles`.
type ClaimNames struct {
	Subject, ClientID, Roles, Scopes []string
}

// Config says which tokens are accepted.
type Config struct {
	// Issuer must be the claim `iss`, to the byte.
	Issuer string
	// Audiences: one of them must be in the claim `aud`, to the byte.
	Audiences []string
	// Algorithms that a signature may have. Default: Algorithms.
	Algorithms []string
	// Types that the header `typ` may have, without regard to case or to
	// `application/`. Default: at+jwt, JWT and none.
	Types []string
	// Skew is how far clocks may differ. Default: 30 s; at most 5 m. Negative: 0.
	Skew time.Duration
	// Claims are the names of what is read. Default: sub; client_id, azp; roles;
	// scope, scp.
	Claims ClaimNames
	// Keys are those of the issuer.
	Keys KeySource
}

// KeySource finds the keys that may have signed a token.
type KeySource interface {
	// Find returns the keys of a key id that fit an algorithm; without an id
	// all that fit. If there are none, it says why.
	Find(ctx context.Context, id, algorithm string) ([]Key, Reason)
}

// Verifier verifies tokens of one issuer. It is immutable and safe for
// concurrent use.
type Verifier struct{ Config }

// NewVerifier checks the configuration and fills in the defaults.
func NewVerifier(c Config) (*Verifier, error) {
	if c.Issuer == "" {
		return nil, errors.New("issuer: needs the issuer of the tokens, as in https://login.example.com/tenant")
	}
	if len(c.Audiences) == 0 || slices.Contains(c.Audiences, "") {
		return nil, errors.New("audience: needs what tokens for this server name as their audience")
	}
	if len(c.Algorithms) == 0 {
		c.Algorithms = Algorithms
	}
	for _, a := range c.Algorithms {
		if !slices.Contains(Algorithms, a) {
			return nil, fmt.Errorf("algorithms: %q is not accepted; use some of %s", a, strings.Join(Algorithms, ", "))
		}
	}
	switch {
	case c.Skew < 0:
		c.Skew = 0
	case c.Skew == 0:
		c.Skew = defaultSkew
	case c.Skew > LongestSkew:
		return nil, fmt.Errorf("clock_skew: %s is too much; use 0s to %s", c.Skew, LongestSkew)
	}
	if len(c.Types) == 0 {
		c.Types = []string{"at+jwt", "jwt", ""}
	}
	c.Types = slices.Clone(c.Types)
	for i := range c.Types {
		c.Types[i] = foldType(c.Types[i])
	}
	for _, names := range []struct {
		list      *[]string
		otherwise []string
	}{
		{&c.Claims.Subject, []string{"sub"}},
		{&c.Claims.ClientID, []string{"client_id", "azp"}},
		{&c.Claims.Roles, []string{"roles"}},
		{&c.Claims.Scopes, []string{"scope", "scp"}},
	} {
		if len(*names.list) == 0 {
			*names.list = names.otherwise
		}
	}
	return &Verifier{c}, nil
}

// foldType is a `typ` as it is compared: RFC 7515, section 4.1.9.
func foldType(typ string) string {
	return strings.TrimPrefix(strings.ToLower(typ), "application/")
}

// Verify checks a token and returns what it says, or why it is refused. Only a
// key that is unknown so far makes it wait, for the issuer's answer.
func (v *Verifier) Verify(ctx context.Context, raw string, now time.Time) (*Claims, Reason) {
	t, refused := split(raw)
	if refused != notRefused {
		return nil, refused
	}
	if refused := v.checkHeader(&t.header); refused != notRefused {
		return nil, refused
	}
	keys, refused := v.Keys.Find(ctx, t.header.id, t.header.algorithm)
	if refused != notRefused {
		return nil, refused
	}
	if !slices.ContainsFunc(keys, func(k Key) bool { return k.verifies(t.header.algorithm, t.signed, t.signature) }) {
		return nil, BadSignature
	}
	return v.checkClaims(t.payload, now)
}

func (v *Verifier) checkHeader(h *header) Reason {
	switch {
	case h.nested:
		return Nested
	case h.foreign:
		return BadHeader
	case !slices.Contains(v.Algorithms, h.algorithm):
		return BadAlgorithm
	case !slices.Contains(v.Types, foldType(h.typ)):
		return BadType
	}
	return notRefused
}
