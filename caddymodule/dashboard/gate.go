package dashboard

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	cookieName  = "mcp_audit_dashboard"
	sessionTime = 12 * time.Hour
	realm       = `Bearer realm="mcp-audit-dashboard"`

	// minToken and maxToken bound a token, in bytes.
	minToken = 32
	maxToken = 4096

	// mostFailures within failureTime are let an address; then it waits.
	mostFailures = 10
	failureTime  = time.Minute
	// mostAddresses bounds what is remembered of failures.
	mostAddresses = 10_000
)

// CheckToken refuses a token that could be guessed or not be typed.
func CheckToken(token string) error {
	if len(token) < minToken || len(token) > maxToken {
		return fmt.Errorf("the dashboard's token has %d bytes; it needs %d to %d, for example from `openssl rand -hex 32`", len(token), minToken, maxToken)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("the dashboard's token has white space or control characters in it")
	}
	return nil
}

// gate lets readers in who know the token. A session is a time and its MAC
// under the token, so that it survives a reload, ends with the token, and
// nothing has to be remembered of it.
type gate struct {
	digest [sha256.Size]byte
	key    []byte
	open   bool // there is no token

	mu       sync.Mutex
	failures map[netip.Prefix]*failed
	swept    time.Time // when failures were last looked through
	now      func() time.Time
}

type failed struct {
	n     int
	since time.Time
}

func newGate(token string) *gate {
	g := &gate{open: token == "", failures: make(map[netip.Prefix]*failed), now: time.Now}
	if !g.open {
		g.digest = sha256.Sum256([]byte(token))
		mac := hmac.New(sha256.New, []byte(token))
		mac.Write([]byte("mcp-audit dashboard session"))
		g.key = mac.Sum(nil)
	}
	return g
}

// fits compares a token in constant time.
func (g *gate) fits(token string) bool {
	digest := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(digest[:], g.digest[:]) == 1
}

func (g *gate) session(until time.Time) string {
	at := strconv.FormatInt(until.Unix(), 10)
	return at + "." + hex.EncodeToString(g.mac(at))
}

func (g *gate) mac(at string) []byte {
	mac := hmac.New(sha256.New, g.key)
	mac.Write([]byte(at))
	return mac.Sum(nil)
}

func (g *gate) valid(session string) bool {
	at, sum, found := strings.Cut(session, ".")
	if !found {
		return false
	}
	given, err := hex.DecodeString(sum)
	if err != nil || !hmac.Equal(given, g.mac(at)) {
		return false
	}
	until, err := strconv.ParseInt(at, 10, 64)
	return err == nil && g.now().Unix() < until
}

// wait is how long an address has to wait after its failures.
func (g *gate) wait(who netip.Prefix) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.failures[who]
	if f == nil || f.n < mostFailures {
		return 0
	}
	return max(f.since.Add(failureTime).Sub(g.now()), 0)
}

// fail counts a failure.
func (g *gate) fail(who netip.Prefix) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	f := g.failures[who]
	if f == nil || now.Sub(f.since) >= failureTime {
		if f == nil && len(g.failures) >= mostAddresses && now.Sub(g.swept) >= time.Second {
			g.swept = now
			for key, old := range g.failures {
				if now.Sub(old.since) >= failureTime {
					delete(g.failures, key)
				}
			}
		}
		if f == nil && len(g.failures) >= mostAddresses {
			// So many at once are one attacker: all unknown addresses share one count.
			who = netip.Prefix{}
			if f = g.failures[who]; f != nil && now.Sub(f.since) < failureTime {
				f.n++
				return
			}
		}
		f = &failed{since: now}
		g.failures[who] = f
	}
	f.n++
}

// address is the host of an address with a port.
func address(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}

// source is who failures are counted by: an IPv4 address, or the /64 of an
// IPv6 address, which is one subscriber's.
func source(remote string) netip.Prefix {
	ip, err := netip.ParseAddr(address(remote))
	if err != nil {
		return netip.Prefix{}
	}
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// admit lets a request to the API pass, or answers it.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request) bool {
	if h.gate.open {
		return true
	}
	for _, c := range r.CookiesNamed(cookieName) {
		if h.gate.valid(c.Value) {
			return true
		}
	}
	token, given := bearer(r)
	who := source(h.o.Client(r))
	if given && h.throttled(w, who) {
		return false
	}
	if given && h.gate.fits(token) {
		return true
	}
	if given {
		h.gate.fail(who)
	}
	w.Header().Set("WWW-Authenticate", realm)
	refuse(w, http.StatusUnauthorized, "log in, or send the dashboard's token as a bearer token")
	return false
}

func (h *Handler) throttled(w http.ResponseWriter, who netip.Prefix) bool {
	wait := h.gate.wait(who)
	if wait == 0 {
		return false
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)+1))
	refuse(w, http.StatusTooManyRequests, "too many failed attempts; wait a minute")
	return true
}

func bearer(r *http.Request) (token string, given bool) {
	scheme, token, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// login answers the form: the token becomes a session of this path.
func (h *Handler) login(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, "the login form posts here")
		return
	}
	if h.gate.open {
		seeOther(w)
		return
	}
	who := source(h.o.Client(r))
	if h.throttled(w, who) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 2*maxToken)
	if err := r.ParseForm(); err != nil {
		refuse(w, http.StatusBadRequest, "the form could not be read")
		return
	}
	if !h.gate.fits(strings.TrimSpace(r.PostForm.Get("token"))) {
		h.gate.fail(who)
		h.o.Logger.Warn("a login at the dashboard failed", "client", address(h.o.Client(r)))
		w.Header().Set("WWW-Authenticate", realm)
		refuse(w, http.StatusUnauthorized, "this is not the token")
		return
	}
	until := h.gate.now().Add(sessionTime)
	h.setCookie(w, r, h.gate.session(until), int(sessionTime/time.Second))
	seeOther(w)
}

func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, "the logout button posts here")
		return
	}
	h.setCookie(w, r, "", -1)
	seeOther(w)
}

// setCookie sets the session. Without a Path it is sent to addresses beside the
// form's, which are the dashboard's, wherever that is mounted.
func (h *Handler) setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // on a loopback address there is no TLS
		Name: cookieName, Value: value, MaxAge: age, HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil,
	})
}

// seeOther sends the browser to the page beside the form. The address is
// relative, since the path that the browser sees may have been stripped.
func seeOther(w http.ResponseWriter) {
	w.Header().Set("Location", "./")
	w.WriteHeader(http.StatusSeeOther)
}
