package token

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// IssuerConfig says where an issuer's keys are, and how long they count.
type IssuerConfig struct {
	// Issuer is asked for the address of its keys if URI is empty.
	Issuer string
	// URI is the address of the keys.
	URI string
	// Refresh is how often the keys are fetched. Default: 5 m; 1 s to 24 h.
	Refresh time.Duration
	// StaleFor is how long keys count that cannot be fetched anew. Default: 1 h;
	// Refresh to 168 h.
	StaleFor time.Duration
	// Timeout bounds one fetch. Default: 5 s; 100 ms to 1 m.
	Timeout time.Duration
	// Roots verify the issuer's certificate. Default: those of the system.
	Roots *x509.CertPool
	// Logger returns what takes what goes wrong. Default: none.
	Logger func() *zap.Logger
}

// Bounds and defaults of an IssuerConfig.
const (
	DefaultRefresh  = 5 * time.Minute
	DefaultStaleFor = time.Hour
	DefaultTimeout  = 5 * time.Second
	ShortestRefresh = time.Second
	LongestRefresh  = 24 * time.Hour
	LongestStaleFor = 7 * 24 * time.Hour
	ShortestTimeout = 100 * time.Millisecond
	LongestTimeout  = time.Minute
)

const (
	// most bytes of a document.
	mostMetadata = 256 << 10
	mostKeySet   = 1 << 20

	// Keys that are not known are asked for at once, but at most demandBurst
	// times and then once in demandEvery: a token's key id is anybody's text.
	demandBurst = 4
	demandEvery = 10 * time.Second

	// retryAfter is how long a failed fetch is not repeated.
	retryAfter = time.Second
	// longestRetry bounds how long the background waits after one.
	longestRetry = 15 * time.Second

	// mostUnnamed bounds how many keys a token without a key id is tried with.
	mostUnnamed = 8
)

// Check fills in the defaults and says what is out of bounds.
func (c *IssuerConfig) Check() error {
	for _, d := range []struct {
		name      string
		value     *time.Duration
		otherwise time.Duration
		from, to  time.Duration
	}{
		{"refresh_interval", &c.Refresh, DefaultRefresh, ShortestRefresh, LongestRefresh},
		{"stale_for", &c.StaleFor, max(DefaultStaleFor, c.Refresh), ShortestRefresh, LongestStaleFor},
		{"timeout", &c.Timeout, DefaultTimeout, ShortestTimeout, LongestTimeout},
	} {
		if *d.value == 0 {
			*d.value = d.otherwise
		}
		if *d.value < d.from || *d.value > d.to {
			return fmt.Errorf("%s: %s is out of bounds; use %s to %s", d.name, *d.value, d.from, d.to)
		}
	}
	if c.StaleFor < c.Refresh {
		return fmt.Errorf("stale_for: %s is shorter than refresh_interval, %s; keys would not count until the next fetch", c.StaleFor, c.Refresh)
	}
	if c.URI != "" {
		if err := CheckURL(c.URI); err != nil {
			return fmt.Errorf("jwks_uri: %w", err)
		}
		return nil
	}
	if err := CheckURL(c.Issuer); err != nil {
		return fmt.Errorf("issuer: %w; or name the address of its keys with jwks_uri", err)
	}
	return nil
}

// CheckURL refuses an address that is not HTTPS, but for one of this machine.
func CheckURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%q is no address such as https://login.example.com/tenant", address)
	}
	if u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()) {
		return nil
	}
	return fmt.Errorf("%q is not HTTPS; only an address of this machine may be http", address)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// IssuerKeys are the keys of an issuer, fetched again and again: those it adds
// are known at the latest when a token needs them, those it removes are
// forgotten after Refresh, or after StaleFor while it cannot be reached. Safe for
// concurrent use.
type IssuerKeys struct {
	config IssuerConfig
	client *http.Client

	mu      sync.Mutex
	keys    Keys
	fetched time.Time // zero: never
	failed  time.Time // of the last fetch, if it failed
	address string    // of the keys, as the issuer last said
	flight  *flight
	demand  float64 // fetches on demand that are left
	asked   time.Time
	closed  bool

	background context.CancelFunc
	done       sync.WaitGroup
}

// flight is a fetch that is under way.
type flight struct {
	done chan struct{}
	err  error
}

// NewIssuerKeys returns the keys of an issuer. Nothing is fetched before Start
// or the first token.
func NewIssuerKeys(c IssuerConfig) (*IssuerKeys, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop
	}
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: c.Timeout}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: c.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    c.Timeout,
		ResponseHeaderTimeout:  c.Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		IdleConnTimeout:        30 * time.Second,
		MaxIdleConns:           2,
		ForceAttemptHTTP2:      true,
	}
	return &IssuerKeys{
		config: c,
		demand: demandBurst,
		client: &http.Client{
			Transport: transport,
			// A redirect could lead to an address that the configuration would
			// not allow.
			CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("a redirect is not followed") },
		},
	}, nil
}

// Start fetches the keys in the background, at once and then regularly, until
// Close. Only the first call counts.
func (k *IssuerKeys) Start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.background != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.background = cancel
	k.done.Add(1)
	go k.run(ctx)
}

// Close ends the background.
func (k *IssuerKeys) Close() {
	k.mu.Lock()
	k.closed = true
	if k.background != nil {
		k.background()
	}
	k.mu.Unlock()
	k.done.Wait()
	k.client.CloseIdleConnections()
}

func (k *IssuerKeys) run(ctx context.Context) {
	defer k.done.Done()
	for failures := 0; ; {
		wait := k.config.Refresh
		if err := k.refresh(ctx, time.Time{}); err != nil && ctx.Err() == nil {
			failures++
			wait = min(wait, longestRetry, retryAfter<<min(failures-1, 4))
		} else {
			failures = 0
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Find implements KeySource.
func (k *IssuerKeys) Find(ctx context.Context, id, algorithm string) ([]Key, Reason) {
	for last := false; ; {
		keys, fetched := k.current()
		if !fetched.IsZero() {
			found, refused := keys.choose(id, algorithm)
			if refused != UnknownKey || last {
				return found, refused
			}
		} else if last {
			return nil, NoKeys
		}
		own, err := k.demanded(ctx, fetched)
		switch {
		case errors.Is(err, errEnough):
			return nil, UnknownKey
		case err != nil:
			// Nobody can tell whether the issuer has that key by now.
			return nil, NoKeys
		}
		// A fetch that was under way may have been too early for the key.
		last = own
	}
}

// current are the keys that count, and when they were fetched; zero: there are
// none that do.
func (k *IssuerKeys) current() (Keys, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.fetched) > k.config.StaleFor {
		return nil, time.Time{}
	}
	return k.keys, k.fetched
}

// Find implements KeySource.
func (keys Keys) Find(_ context.Context, id, algorithm string) ([]Key, Reason) {
	return keys.choose(id, algorithm)
}

// choose are the keys to try, or why there are none.
func (keys Keys) choose(id, algorithm string) ([]Key, Reason) {
	found := keys.find(id, algorithm)
	switch {
	case id == "" && len(found) > mostUnnamed:
		return nil, UnknownKey
	case len(found) > 0:
		return found, notRefused
	}
	for _, k := range keys {
		if id != "" && k.ID == id {
			return nil, BadAlgorithm
		}
	}
	return nil, UnknownKey
}

var (
	errEnough  = errors.New("keys were asked for often enough")
	errTooSoon = errors.New("the keys could not be fetched just now")
)

// demanded fetches the keys because a token needs one that is not among those
// of the given time; zero: there are none. own says that the fetch began after
// the call.
func (k *IssuerKeys) demanded(ctx context.Context, than time.Time) (own bool, err error) {
	k.mu.Lock()
	now := time.Now()
	switch {
	case k.flight != nil, !than.IsZero() && k.fetched.After(than):
		k.mu.Unlock()
		return false, k.refresh(ctx, than)
	case now.Sub(k.failed) < retryAfter:
		k.mu.Unlock()
		return false, errTooSoon
	case !than.IsZero():
		k.demand = min(demandBurst, k.demand+now.Sub(k.asked).Seconds()/demandEvery.Seconds())
		k.asked = now
		if k.demand < 1 {
			err := errEnough
			if !k.failed.IsZero() {
				err = errTooSoon
			}
			k.mu.Unlock()
			return false, err
		}
		k.demand--
	}
	k.mu.Unlock()
	return true, k.refresh(ctx, than)
}

// refresh fetches the keys, or waits for who is doing that, unless there are
// newer ones than the given time's; zero: in any case.
func (k *IssuerKeys) refresh(ctx context.Context, than time.Time) error {
	k.mu.Lock()
	if !than.IsZero() && k.fetched.After(than) {
		k.mu.Unlock()
		return nil
	}
	f := k.flight
	if f == nil {
		f = &flight{done: make(chan struct{})}
		k.flight = f
		// The client that needs the key may leave; the others still want it.
		go k.fly(context.WithoutCancel(ctx), f)
	}
	k.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *IssuerKeys) fly(ctx context.Context, f *flight) {
	ctx, cancel := context.WithTimeout(ctx, k.config.Timeout)
	defer cancel()
	began := time.Now()
	keys, address, err := k.fetch(ctx)
	k.mu.Lock()
	again := !k.failed.IsZero()
	if err == nil {
		k.keys, k.fetched, k.failed, k.address = keys, began, time.Time{}, address
	} else {
		k.failed = time.Now()
	}
	age := time.Since(k.fetched)
	never := k.fetched.IsZero()
	f.err = err
	k.flight = nil
	k.mu.Unlock()
	close(f.done)
	switch {
	case err == nil && again:
		k.config.Logger().Info("the issuer's keys were fetched again", zap.String("issuer", k.config.Issuer), zap.Int("keys", len(keys)))
	case err != nil && never:
		k.config.Logger().Warn("the issuer's keys cannot be fetched; no token can be verified", zap.String("issuer", k.config.Issuer), zap.Error(err))
	case err != nil && !again:
		k.config.Logger().Warn("the issuer's keys cannot be fetched; those known count until stale_for is over",
			zap.String("issuer", k.config.Issuer), zap.Duration("age", age), zap.Duration("stale_for", k.config.StaleFor), zap.Error(err))
	}
}

// fetch asks for the keys.
func (k *IssuerKeys) fetch(ctx context.Context) (Keys, string, error) {
	address, err := k.discover(ctx)
	if err != nil {
		return nil, "", err
	}
	text, err := k.get(ctx, address, mostKeySet)
	if err != nil {
		return nil, "", err
	}
	keys, skipped, err := ParseKeys(text)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", withoutQuery(address), err)
	}
	if skipped > 0 {
		k.config.Logger().Debug("keys that cannot verify tokens were left out", zap.String("issuer", k.config.Issuer), zap.Int("keys", skipped))
	}
	return keys, address, nil
}

// discover finds the address of the keys: in OpenID Connect Discovery, else in
// RFC 8414. What the issuer said before counts while it cannot say it again.
func (k *IssuerKeys) discover(ctx context.Context) (string, error) {
	if k.config.URI != "" {
		return k.config.URI, nil
	}
	var failed error
	for _, address := range metadataAddresses(k.config.Issuer) {
		text, err := k.get(ctx, address, mostMetadata)
		if err == nil {
			var uri string
			if uri, err = keysAddress(text, k.config.Issuer); err == nil {
				return uri, nil
			}
			err = fmt.Errorf("%s: %w", address, err)
		}
		failed = errors.Join(failed, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.address != "" {
		return k.address, nil
	}
	return "", failed
}

// metadataAddresses are where an issuer describes itself.
func metadataAddresses(issuer string) []string {
	const openID, oauth = "/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"
	all := []string{strings.TrimSuffix(issuer, "/") + openID}
	if u, err := url.Parse(issuer); err == nil {
		u.Path, u.RawPath = oauth+strings.TrimSuffix(u.Path, "/"), ""
		all = append(all, u.String())
	}
	return all
}

func keysAddress(text []byte, issuer string) (string, error) {
	members, ok := object(text)
	if !ok {
		return "", errors.New("not a JSON object, or one with a member twice")
	}
	var said, uri string
	if !readText(members["issuer"], &said) || said != issuer {
		return "", errors.New("describes another issuer; write issuer exactly as it says it")
	}
	if !readText(members["jwks_uri"], &uri) {
		return "", errors.New("has no jwks_uri")
	}
	if err := CheckURL(uri); err != nil {
		return "", fmt.Errorf("jwks_uri: %w", err)
	}
	return uri, nil
}

// withoutQuery is an address as errors name it: a query may hold a credential.
func withoutQuery(address string) string {
	before, _, _ := strings.Cut(address, "?")
	return before
}

// get fetches a document.
func (k *IssuerKeys) get(ctx context.Context, address string, most int64) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json, application/jwk-set+json")
	shown := withoutQuery(address)
	answer, err := k.client.Do(r)
	if err != nil {
		var whole *url.Error
		if errors.As(err, &whole) {
			err = whole.Err // without the address
		}
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", shown, answer.Status)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s answers more than %d bytes", shown, most)
	}
	return text, nil
}
