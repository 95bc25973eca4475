package token_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

const issuer = "https://login.example.com/tenant"

// now is the time at which the tokens of these tests are judged.
var now = time.Unix(1_800_000_000, 0)

// private are the issuer's keys, by id.
var private = sync.OnceValue(func() map[string]crypto.Signer {
	must := func(key crypto.Signer, err error) crypto.Signer {
		if err != nil {
			panic(err)
		}
		return key
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	return map[string]crypto.Signer{
		"rsa":   must(rsa.GenerateKey(rand.Reader, 2048)),
		"rsa1":  must(rsa.GenerateKey(rand.Reader, 1024)),
		"p256":  must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)),
		"p384":  must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)),
		"p521":  must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)),
		"ed":    must(ed, err),
		"other": must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)),
	}
})

// set is a JWK Set of the public keys of these ids, with more members each.
func set(t testing.TB, ids []string, more ...map[string]any) []byte {
	t.Helper()
	keys := []any{}
	for i, id := range ids {
		k, err := jwk.FromRaw(private()[id].Public())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		members := map[string]any{}
		if err := json.Unmarshal(text, &members); err != nil {
			t.Fatal(err)
		}
		members["kid"] = id
		if i < len(more) {
			maps.Copy(members, more[i])
		}
		keys = append(keys, members)
	}
	text, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func parse(t testing.TB, text []byte) token.Keys {
	t.Helper()
	keys, _, err := token.ParseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func verifier(t testing.TB, change func(*token.Config)) *token.Verifier {
	t.Helper()
	c := token.Config{
		Issuer: issuer, Audiences: []string{"mcp-audit", "https://mcp.example.com/mcp"},
		Keys: parse(t, set(t, []string{"rsa", "p256", "p384", "p521", "ed"})),
	}
	if change != nil {
		change(&c)
	}
	v, err := token.NewVerifier(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// claims are those of a token that is accepted.
func claims() map[string]any {
	return map[string]any{
		"iss": issuer, "aud": "mcp-audit", "sub": "alice", "client_id": "desk",
		"exp": now.Unix() + 60, "nbf": now.Unix() - 60, "iat": now.Unix() - 60,
		"roles": []string{"operator", "reader"}, "scope": "mcp:read mcp:write",
	}
}

func encode(v any) string {
	text, ok := v.(string)
	if !ok {
		raw, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		text = string(raw)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// sign makes a token of any header and payload.
func sign(algorithm, key string, head, payload any) string {
	signed := encode(head) + "." + encode(payload)
	signer, err := jws.NewSigner(jwa.SignatureAlgorithm(algorithm))
	if err != nil {
		panic(err)
	}
	signature, err := signer.Sign([]byte(signed), private()[key])
	if err != nil {
		panic(err)
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// signed is a token with ES256 and these claims.
func signed(payload any) string {
	return sign("ES256", "p256", map[string]any{"alg": "ES256", "kid": "p256", "typ": "at+jwt"}, payload)
}

func changed(member string, value any) map[string]any {
	c := claims()
	if value == nil {
		delete(c, member)
	} else {
		c[member] = value
	}
	return c
}

func TestTokensOfAllAlgorithmsAreAccepted(t *testing.T) {
	v := verifier(t, nil)
	for algorithm, key := range map[string]string{
		"RS256": "rsa", "RS384": "rsa", "RS512": "rsa", "PS256": "rsa", "PS384": "rsa", "PS512": "rsa",
		"ES256": "p256", "ES384": "p384", "ES512": "p521", "EdDSA": "ed",
	} {
		for _, head := range []map[string]any{
			{"alg": algorithm, "kid": key, "typ": "at+jwt"},
			{"alg": algorithm, "kid": key, "typ": "application/AT+JWT"},
			{"alg": algorithm, "kid": key, "typ": "JWT"},
			{"alg": algorithm, "kid": key, "x5t": "abc"},
			{"alg": algorithm},
		} {
			got, reason := v.Verify(context.Background(), sign(algorithm, key, head, claims()), now)
			want := &token.Claims{Subject: "alice", Issuer: issuer, ClientID: "desk", Roles: []string{"operator", "reader"}, Scopes: []string{"mcp:read", "mcp:write"}}
			if reason != "" || !reflect.DeepEqual(got, want) {
				t.Errorf("%v: %v %s", head, got, reason)
			}
		}
	}
}

func TestTokensAreRefused(t *testing.T) {
	good := signed(claims())
	parts := strings.Split(good, ".")
	head := func(members ...any) map[string]any {
		h := map[string]any{"alg": "ES256", "kid": "p256", "typ": "at+jwt"}
		for i := 0; i+1 < len(members); i += 2 {
			h[members[i].(string)] = members[i+1]
		}
		return h
	}
	es256 := func(members ...any) string { return sign("ES256", "p256", head(members...), claims()) }
	public, err := x509.MarshalPKIXPublicKey(private()["rsa"].Public())
	if err != nil {
		t.Fatal(err)
	}
	hs256 := func(secret []byte) string {
		signed := encode(head("alg", "HS256", "kid", "rsa")) + "." + encode(claims())
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed))
		return signed + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	embedded, err := jwk.FromRaw(private()["other"].Public())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		token string
		want  token.Reason
	}{
		"nothing":                          {"", token.Malformed},
		"one part":                         {"abc", token.Malformed},
		"two parts":                        {parts[0] + "." + parts[1], token.Malformed},
		"four parts":                       {good + ".x", token.Malformed},
		"encrypted":                        {good + ".x.y", token.Nested},
		"too long":                         {good + strings.Repeat("A", token.MaxLength), token.TooLarge},
		"padding":                          {good + "==", token.Malformed},
		"line break":                       {good[:10] + "\n" + good[10:], token.Malformed},
		"other alphabet":                   {strings.Replace(good, ".", "+.", 1), token.Malformed},
		"header no JSON":                   {encode("x") + "." + parts[1] + "." + parts[2], token.Malformed},
		"header a list":                    {encode("[]") + "." + parts[1] + "." + parts[2], token.Malformed},
		"header null":                      {encode("null") + "." + parts[1] + "." + parts[2], token.Malformed},
		"header with a member twice":       {sign("ES256", "p256", `{"alg":"ES256","alg":"none","kid":"p256"}`, claims()), token.Malformed},
		"header with more after it":        {sign("ES256", "p256", `{"alg":"ES256","kid":"p256"}{}`, claims()), token.Malformed},
		"none":                             {encode(head("alg", "none")) + "." + parts[1] + ".", token.Malformed},
		"none with a signature":            {encode(head("alg", "none")) + "." + parts[1] + "." + parts[2], token.BadAlgorithm},
		"None":                             {es256("alg", "None"), token.BadAlgorithm},
		"no alg":                           {sign("ES256", "p256", `{"kid":"p256"}`, claims()), token.BadAlgorithm},
		"alg in other letters":             {es256("alg", "es256"), token.BadAlgorithm},
		"alg a list":                       {es256("alg", []string{"ES256"}), token.Malformed},
		"HMAC with the public key":         {hs256(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})), token.BadAlgorithm},
		"HMAC with the public key, in DER": {hs256(public), token.BadAlgorithm},
		"HMAC with nothing":                {hs256(nil), token.BadAlgorithm},
		"secp256k1":                        {es256("alg", "ES256K"), token.BadAlgorithm},
		"another key's algorithm":          {es256("alg", "RS256"), token.BadAlgorithm},
		"another curve's algorithm":        {es256("alg", "ES384"), token.BadAlgorithm},
		"another key's id":                 {es256("kid", "p384"), token.BadAlgorithm},
		"an unknown id":                    {es256("kid", "nobody"), token.UnknownKey},
		"an id that is a path":             {es256("kid", "../../../../dev/null"), token.UnknownKey},
		"an id that is a query":            {es256("kid", "x' UNION SELECT 'k'--"), token.UnknownKey},
		"an id that is an address":         {es256("kid", "http://127.0.0.1:1/jwks"), token.UnknownKey},
		"an id of other letters":           {es256("kid", "P256"), token.UnknownKey},
		"an id too long":                   {es256("kid", strings.Repeat("k", 2000)), token.Malformed},
		"an id that is a number":           {es256("kid", 1), token.Malformed},
		"an id that is null":               {es256("kid", nil), token.Malformed},
		"its own key":                      {sign("ES256", "other", head("jwk", embedded), claims()), token.BadHeader},
		"an address of its key":            {es256("jku", "https://evil.example/jwks"), token.BadHeader},
		"a certificate":                    {es256("x5c", []string{"MIIB"}), token.BadHeader},
		"an address of a certificate":      {es256("x5u", "https://evil.example/x"), token.BadHeader},
		"a critical extension":             {es256("crit", []string{"exp"}), token.BadHeader},
		"an unencoded payload":             {es256("b64", false), token.BadHeader},
		"compressed":                       {es256("zip", "DEF"), token.BadHeader},
		"nested":                           {sign("ES256", "p256", head("cty", "JWT"), good), token.Nested},
		"a DPoP proof":                     {es256("typ", "dpop+jwt"), token.BadType},
		"a logout token":                   {es256("typ", "logout+jwt"), token.BadType},
		"signed by another":                {sign("ES256", "other", head(), claims()), token.BadSignature},
		"signed by another, without an id": {sign("ES256", "other", `{"alg":"ES256"}`, claims()), token.BadSignature},
		"another payload":                  {parts[0] + "." + encode(changed("sub", "bob")) + "." + parts[2], token.BadSignature},
		"another header":                   {encode(head("x", 1)) + "." + parts[1] + "." + parts[2], token.BadSignature},
		"half a signature":                 {parts[0] + "." + parts[1] + "." + parts[2][:40], token.BadSignature},
		"a signature of zeros":             {parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)), token.BadSignature},
		"payload no JSON":                  {signed("x"), token.BadClaims},
		"payload null":                     {signed("null"), token.BadClaims},
		"a claim twice":                    {signed(`{"iss":"` + issuer + `","aud":"x","aud":"mcp-audit","exp":1900000000,"sub":"alice"}`), token.BadClaims},
		"a claim twice within":             {signed(fmt.Sprintf(`{"iss":%q,"aud":"mcp-audit","exp":1900000000,"sub":"alice","a":{"b":1,"b":2}}`, issuer)), token.BadClaims},
		"no issuer":                        {signed(changed("iss", nil)), token.BadIssuer},
		"issuer with a slash":              {signed(changed("iss", issuer+"/")), token.BadIssuer},
		"issuer in capitals":               {signed(changed("iss", strings.ToUpper(issuer))), token.BadIssuer},
		"issuer a list":                    {signed(changed("iss", []string{issuer})), token.BadIssuer},
		"no audience":                      {signed(changed("aud", nil)), token.BadAudience},
		"another audience":                 {signed(changed("aud", "mcp-audit-2")), token.BadAudience},
		"other audiences":                  {signed(changed("aud", []string{"a", "b"})), token.BadAudience},
		"no audience in the list":          {signed(changed("aud", []string{})), token.BadAudience},
		"audience a number":                {signed(changed("aud", 1)), token.BadAudience},
		"audience beside a number":         {signed(changed("aud", []any{"mcp-audit", 1})), token.BadAudience},
		"no expiry":                        {signed(changed("exp", nil)), token.BadClaims},
		"expiry a text":                    {signed(changed("exp", "1900000000")), token.BadClaims},
		"expiry null":                      {signed(`{"iss":"` + issuer + `","aud":"mcp-audit","exp":null,"sub":"alice"}`), token.BadClaims},
		"expiry beyond all":                {signed(changed("exp", 1e300)), token.BadClaims},
		"expiry before 1970":               {signed(changed("exp", -1)), token.BadClaims},
		"not before a text":                {signed(changed("nbf", "0")), token.BadClaims},
		"no subject":                       {signed(changed("sub", nil)), token.BadClaims},
		"subject empty":                    {signed(changed("sub", "")), token.BadClaims},
		"subject a number":                 {signed(changed("sub", 7)), token.BadClaims},
		"subject with a line break":        {signed(changed("sub", "a\nb")), token.BadClaims},
		"subject too long":                 {signed(changed("sub", strings.Repeat("a", 2000))), token.BadClaims},
		"client a list":                    {signed(changed("client_id", []string{"a"})), token.BadClaims},
		"roles of numbers":                 {signed(changed("roles", []int{1})), token.BadClaims},
		"roles an object":                  {signed(changed("roles", map[string]any{"a": 1})), token.BadClaims},
		"too many roles":                   {signed(changed("roles", strings.Fields(strings.Repeat("r ", 300)))), token.BadClaims},
		"bound to a DPoP key":              {signed(changed("cnf", map[string]any{"jkt": "x"})), token.Bound},
		"bound to a certificate":           {signed(changed("cnf", map[string]any{"x5t#S256": "x"})), token.Bound},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason := verifier(t, nil).Verify(context.Background(), c.token, now)
			if reason != c.want || got != nil {
				t.Errorf("%q, want %q", reason, c.want)
			}
			if code := token.Challenge(reason, token.Resource{}, nil); code != `Bearer error="invalid_token"` || reason.Status() != 401 {
				t.Errorf("challenge %s, status %d", code, reason.Status())
			}
		})
	}
}

func TestClocksMayDifferByTheSkew(t *testing.T) {
	at := now.Unix()
	for name, c := range map[string]struct {
		skew   time.Duration
		member string
		value  any
		want   token.Reason
	}{
		"expires in a moment":            {30 * time.Second, "exp", at + 1, ""},
		"expires now":                    {30 * time.Second, "exp", at, ""},
		"expired within the skew":        {30 * time.Second, "exp", at - 29, ""},
		"expired in parts of a second":   {30 * time.Second, "exp", float64(at) - 29.5, ""},
		"expired at the skew":            {30 * time.Second, "exp", at - 30, token.Expired},
		"expired long ago":               {30 * time.Second, "exp", at - 3600, token.Expired},
		"expires now, without skew":      {-1, "exp", at, token.Expired},
		"expires next, without skew":     {-1, "exp", at + 1, ""},
		"valid from now":                 {30 * time.Second, "nbf", at, ""},
		"valid at the skew":              {30 * time.Second, "nbf", at + 30, ""},
		"valid past the skew":            {30 * time.Second, "nbf", at + 31, token.NotYetValid},
		"valid from now, without skew":   {-1, "nbf", at, ""},
		"valid from next, without skew":  {-1, "nbf", at + 1, token.NotYetValid},
		"issued in the future":           {30 * time.Second, "iat", at + 31, token.NotYetValid},
		"no nbf":                         {30 * time.Second, "nbf", nil, ""},
		"an expiry with an exponent":     {30 * time.Second, "exp", json.RawMessage("1.9e9"), ""},
		"expired, with the longest skew": {5 * time.Minute, "exp", at - 299, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := verifier(t, func(c2 *token.Config) { c2.Skew = c.skew })
			if _, reason := v.Verify(context.Background(), signed(changed(c.member, c.value)), now); reason != c.want {
				t.Errorf("%q, want %q", reason, c.want)
			}
		})
	}
}

func TestClaimsAreReadByTheirNames(t *testing.T) {
	for name, c := range map[string]struct {
		names   token.ClaimNames
		payload map[string]any
		want    token.Claims
	}{
		"scopes as a list": {token.ClaimNames{}, changed("scope", []string{"a", "b"}),
			token.Claims{Subject: "alice", ClientID: "desk", Roles: []string{"operator", "reader"}, Scopes: []string{"a", "b"}}},
		"one role as a text": {token.ClaimNames{}, changed("roles", "head of all"),
			token.Claims{Subject: "alice", ClientID: "desk", Roles: []string{"head of all"}, Scopes: []string{"mcp:read", "mcp:write"}}},
		"nothing but a subject": {token.ClaimNames{}, map[string]any{"iss": issuer, "aud": []string{"x", "mcp-audit"}, "exp": now.Unix() + 9, "sub": "bob"},
			token.Claims{Subject: "bob"}},
		"azp and scp": {token.ClaimNames{}, map[string]any{"iss": issuer, "aud": "mcp-audit", "exp": now.Unix() + 9, "sub": "bob", "azp": "web", "scp": []string{"a"}},
			token.Claims{Subject: "bob", ClientID: "web", Scopes: []string{"a"}}},
		"members of members": {token.ClaimNames{Roles: []string{"realm_access.roles"}}, changed("realm_access", map[string]any{"roles": []string{"r"}}),
			token.Claims{Subject: "alice", ClientID: "desk", Roles: []string{"r"}, Scopes: []string{"mcp:read", "mcp:write"}}},
		"a name with a dot": {token.ClaimNames{Roles: []string{"https://example.com/roles"}}, changed("https://example.com/roles", []string{"r"}),
			token.Claims{Subject: "alice", ClientID: "desk", Roles: []string{"r"}, Scopes: []string{"mcp:read", "mcp:write"}}},
		"another subject": {token.ClaimNames{Subject: []string{"none", "email"}}, changed("email", "a@example.com"),
			token.Claims{Subject: "a@example.com", ClientID: "desk", Roles: []string{"operator", "reader"}, Scopes: []string{"mcp:read", "mcp:write"}}},
		"no member of that": {token.ClaimNames{Roles: []string{"sub.roles", "roles.x"}}, claims(),
			token.Claims{Subject: "alice", ClientID: "desk", Scopes: []string{"mcp:read", "mcp:write"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Issuer = issuer
			got, reason := verifier(t, func(c2 *token.Config) { c2.Claims = c.names }).Verify(context.Background(), signed(c.payload), now)
			if reason != "" || !reflect.DeepEqual(*got, c.want) {
				t.Errorf("%+v %s, want %+v", got, reason, c.want)
			}
		})
	}
}

func TestOnlyAllowedAlgorithmsCount(t *testing.T) {
	v := verifier(t, func(c *token.Config) { c.Algorithms = []string{"EdDSA"} })
	if _, reason := v.Verify(context.Background(), signed(claims()), now); reason != token.BadAlgorithm {
		t.Error(reason)
	}
	for _, bad := range []string{"none", "HS256", "ES256K", "es256", ""} {
		if _, err := token.NewVerifier(token.Config{Issuer: issuer, Audiences: []string{"a"}, Algorithms: []string{bad}}); err == nil {
			t.Errorf("%q may be allowed", bad)
		}
	}
}

func TestKeysThatCannotVerifyAreLeftOut(t *testing.T) {
	secret := map[string]any{"kty": "oct", "k": "AAAA", "alg": "HS256"}
	whole, err := jwk.FromRaw(private()["p256"])
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"symmetric":           mustJSON(map[string]any{"keys": []any{secret}}),
		"private":             mustJSON(map[string]any{"keys": []any{whole}}),
		"for encryption":      set(t, []string{"p256"}, map[string]any{"use": "enc"}),
		"for signing alone":   set(t, []string{"p256"}, map[string]any{"key_ops": []string{"sign"}}),
		"too short":           set(t, []string{"rsa1"}),
		"of another kind":     mustJSON(map[string]any{"keys": []any{map[string]any{"kty": "X"}}}),
		"another algorithm":   set(t, []string{"p256"}, map[string]any{"alg": "ES384"}),
		"a symmetric one":     set(t, []string{"rsa"}, map[string]any{"alg": "HS256"}),
		"not on its curve":    set(t, []string{"p256"}, map[string]any{"x": base64.RawURLEncoding.EncodeToString(big.NewInt(5).FillBytes(make([]byte, 32)))}),
		"no key":              mustJSON(map[string]any{"keys": []any{1}}),
		"with a member twice": []byte(`{"keys":[{"kty":"EC","kty":"RSA"}]}`),
	} {
		keys, skipped, err := token.ParseKeys(text)
		if name == "with a member twice" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if len(keys) != 0 || skipped != 1 || err != nil {
			t.Errorf("%s: %v, %d skipped, %v", name, keys, skipped, err)
		}
	}
	for _, text := range []string{"", "[]", "{}", `{"keys":{}}`, `{"keys":null}`, "null", `{"keys":[]}x`} {
		if _, _, err := token.ParseKeys([]byte(text)); err == nil {
			t.Errorf("%q is a set of keys", text)
		}
	}
	if keys, _, err := token.ParseKeys([]byte(`{"keys":[]}`)); len(keys) != 0 || err != nil {
		t.Error(keys, err)
	}
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}

// A key that declares its algorithm verifies no other.
func TestKeysKeepToTheirAlgorithm(t *testing.T) {
	v := verifier(t, func(c *token.Config) { c.Keys = parse(t, set(t, []string{"rsa"}, map[string]any{"alg": "PS256"})) })
	for algorithm, want := range map[string]token.Reason{"PS256": "", "RS256": token.BadAlgorithm, "PS512": token.BadAlgorithm} {
		raw := sign(algorithm, "rsa", map[string]any{"alg": algorithm, "kid": "rsa"}, claims())
		if _, reason := v.Verify(context.Background(), raw, now); reason != want {
			t.Errorf("%s: %q, want %q", algorithm, reason, want)
		}
	}
}

// FuzzVerify: whatever is accepted, jwx accepts as well, with one of the keys.
func FuzzVerify(f *testing.F) {
	v := verifier(f, nil)
	for _, algorithm := range []string{"RS256", "ES256", "EdDSA"} {
		key := map[string]string{"RS256": "rsa", "ES256": "p256", "EdDSA": "ed"}[algorithm]
		f.Add(sign(algorithm, key, map[string]any{"alg": algorithm, "kid": key}, claims()))
	}
	f.Add("a.b.c")
	f.Add("..")
	f.Add(encode(`{"alg":"none"}`) + "." + encode(claims()) + ".AA")
	f.Fuzz(func(t *testing.T, raw string) {
		c, reason := v.Verify(context.Background(), raw, now)
		if (c == nil) == (reason == "") {
			t.Fatalf("claims %v, reason %q", c, reason)
		}
		if reason != "" {
			return
		}
		for id := range private() {
			for _, algorithm := range token.Algorithms {
				if _, err := jws.Verify([]byte(raw), jws.WithKey(jwa.SignatureAlgorithm(algorithm), private()[id].Public())); err == nil {
					return
				}
			}
		}
		t.Fatalf("accepted, but jwx refuses it: %q", raw)
	})
}
