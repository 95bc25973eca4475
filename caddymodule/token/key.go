package token

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"
)

// Algorithms are all that may be allowed: asymmetric ones, so that what
// verifies a token cannot make one.
var Algorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

// Bounds of an issuer's keys.
const (
	shortestRSA = 2048
	longestRSA  = 8192
	mostKeys    = 100
)

// Key is a public key of an issuer, for the algorithms it fits.
type Key struct {
	ID         string
	algorithms []string
	public     any
}

// fits reports whether the key may verify a signature of that algorithm. A key
// says it by its kind, curve and `alg`, never the token.
func (k *Key) fits(algorithm string) bool { return slices.Contains(k.algorithms, algorithm) }

func (k *Key) verifies(algorithm, signed string, signature []byte) bool {
	if !k.fits(algorithm) {
		return false
	}
	verifier, err := jws.NewVerifier(jwa.SignatureAlgorithm(algorithm))
	return err == nil && verifier.Verify([]byte(signed), signature, k.public) == nil
}

// ParseKeys reads a JWK Set (RFC 7517). Keys that cannot verify tokens are left
// out: symmetric and private ones, those for encryption, of unknown kinds, too
// short or too long. skipped is how many.
func ParseKeys(text []byte) (keys []Key, skipped int, err error) {
	members, ok := object(text)
	if !ok {
		return nil, 0, errors.New("not a JSON object, or one with a member twice")
	}
	var all []jsontext.Value
	if set := members["keys"]; set.Kind() != '[' || json.Unmarshal(set, &all) != nil {
		return nil, 0, errors.New("no JWK Set: it has no list `keys`")
	}
	if len(all) > mostKeys {
		return nil, 0, errors.New("more keys than anybody needs")
	}
	for _, one := range all {
		k, ok := parseKey(one)
		if !ok {
			skipped++
			continue
		}
		keys = append(keys, k)
	}
	return keys, skipped, nil
}

func parseKey(text jsontext.Value) (Key, bool) {
	members, ok := object(text)
	if !ok {
		return Key{}, false
	}
	if _, private := members["d"]; private {
		return Key{}, false
	}
	parsed, err := jwk.ParseKey(text)
	if err != nil {
		return Key{}, false
	}
	if use := parsed.KeyUsage(); use != "" && use != string(jwk.ForSignature) {
		return Key{}, false
	}
	if uses := parsed.KeyOps(); len(uses) > 0 && !slices.Contains(uses, jwk.KeyOpVerify) {
		return Key{}, false
	}
	k := Key{ID: parsed.KeyID()}
	if err := parsed.Raw(&k.public); err != nil {
		return Key{}, false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		if bits := public.N.BitLen(); bits < shortestRSA || bits > longestRSA {
			return Key{}, false
		}
		k.algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
	case *ecdsa.PublicKey:
		// RFC 7518, section 3.4: each has its curve.
		algorithm, known := map[string]string{"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}[public.Curve.Params().Name]
		if _, err := public.ECDH(); err != nil || !known {
			return Key{}, false // not a point of it
		}
		k.algorithms = []string{algorithm}
	case ed25519.PublicKey:
		k.algorithms = []string{"EdDSA"}
	default:
		return Key{}, false
	}
	if declared := parsed.Algorithm().String(); declared != "" {
		if !k.fits(declared) {
			return Key{}, false
		}
		k.algorithms = []string{declared}
	}
	return k, true
}

// Keys is a fixed set of keys.
type Keys []Key

// find are the keys of an id that fit an algorithm.
func (keys Keys) find(id, algorithm string) (found []Key) {
	for _, k := range keys {
		if (id == "" || k.ID == id) && k.fits(algorithm) {
			found = append(found, k)
		}
	}
	return found
}
