// Package issuer is a real OpenID Connect issuer that runs inside a test:
// zitadel/oidc with its example storage, whose keys and lifetimes the test
// changes. Its clients get JWT access tokens with client_credentials.
package issuer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
	"golang.org/x/oauth2/clientcredentials"
)

// Audience is that of the issuer's tokens.
const Audience = "mcp-audit"

// Roles is the scope that puts the claim roles into a token.
const Roles = "roles"

// Issuer is a running issuer.
type Issuer struct {
	URL   string
	store *store
	gate  gate
}

// Start starts an issuer, which ends with the test. Its first key is k1.
func Start(t testing.TB) *Issuer {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	i := &Issuer{URL: "http://" + server.Listener.Addr().String()}
	i.store = &store{Storage: storage.NewStorage(storage.NewUserStore(i.URL)), lifetime: 5 * time.Minute}
	i.Rotate(t, "k1", false)
	provider, err := op.NewProvider(&op.Config{
		CryptoKey: [32]byte{1}, CodeMethodS256: true, AuthMethodPost: true, GrantTypeRefreshToken: true,
	}, i.store, op.StaticIssuer(i.URL), op.WithAllowInsecure(), op.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err != nil {
		t.Fatal(err)
	}
	i.gate.next = provider
	server.Config.Handler = &i.gate
	server.Start()
	t.Cleanup(server.Close)
	return i
}

// Secret is the client secret of a client; any client id has one.
func Secret(client string) string { return client + "-client-secret" }

// Token is a token of a client.
func (i *Issuer) Token(t testing.TB, client string, scopes ...string) string {
	t.Helper()
	c := clientcredentials.Config{ClientID: client, ClientSecret: Secret(client), TokenURL: i.URL + "/oauth/token", Scopes: scopes}
	token, err := c.Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return token.AccessToken
}

// Rotate makes the issuer sign with a new key, and keep showing the former ones
// or not.
func (i *Issuer) Rotate(t testing.TB, id string, keep bool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i.store.mu.Lock()
	defer i.store.mu.Unlock()
	if !keep {
		i.store.keys = nil
	}
	i.store.keys = append(i.store.keys, key{id, private})
}

// Lifetime sets how long tokens are valid from now on.
func (i *Issuer) Lifetime(d time.Duration) {
	i.store.mu.Lock()
	defer i.store.mu.Unlock()
	i.store.lifetime = d
}

// Down makes the issuer answer 503 to everything, or not.
func (i *Issuer) Down(down bool) {
	i.gate.mu.Lock()
	defer i.gate.mu.Unlock()
	i.gate.down = down
}

type gate struct {
	next http.Handler
	mu   sync.Mutex
	down bool
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	down := g.down
	g.mu.Unlock()
	if down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	g.next.ServeHTTP(w, r)
}

type store struct {
	*storage.Storage
	mu       sync.Mutex
	keys     []key // the last one signs
	lifetime time.Duration
}

func (s *store) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[len(s.keys)-1], nil
}

func (s *store) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.ES256}, nil
}

func (s *store) KeySet(context.Context) (shown []op.Key, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		shown = append(shown, publicKey{k})
	}
	return shown, nil
}

func (s *store) CreateAccessToken(ctx context.Context, request op.TokenRequest) (string, time.Time, error) {
	id, _, err := s.Storage.CreateAccessToken(ctx, request)
	s.mu.Lock()
	defer s.mu.Unlock()
	return id, time.Now().Add(s.lifetime), err
}

func (s *store) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	if secret != Secret(id) {
		return nil, errors.New("wrong client secret")
	}
	c, err := s.Storage.ClientCredentials(ctx, "sid1", "verysecret")
	return client{c, id}, err
}

func (s *store) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Audience: []string{Audience}, Scopes: scopes}, nil
}

// GetPrivateClaimsFromScopes puts the granted scopes into a token, too, as RFC
// 9068 wants it; the library alone does not.
func (s *store) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	claims := map[string]any{"scope": strings.Join(scopes, " ")}
	if slices.Contains(scopes, Roles) {
		claims["roles"] = []string{"operator", "reader"}
	}
	return claims, nil
}

// client is one with JWT access tokens.
type client struct {
	op.Client
	id string
}

func (c client) GetID() string                       { return c.id }
func (c client) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

type key struct {
	id      string
	private *ecdsa.PrivateKey
}

func (k key) ID() string                                  { return k.id }
func (k key) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.ES256 }
func (k key) Key() any                                    { return k.private }

type publicKey struct{ key }

func (k publicKey) Algorithm() jose.SignatureAlgorithm { return jose.ES256 }
func (k publicKey) Use() string                        { return "sig" }
func (k publicKey) Key() any                           { return k.private.Public() }
