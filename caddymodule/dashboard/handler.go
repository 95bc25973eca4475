package dashboard

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// Options say what is shown, and to whom.
type Options struct {
	// Name is how the page calls the log. Path is the log's; its index lies
	// beside it, or at IndexPath.
	Name      string
	Path      string
	IndexPath string
	Log       Log
	// Pins is the file with the pins of tools. "": pins.json beside the log.
	Pins string
	// Status is the state of the writer, if it runs in this process; else nil,
	// and a function that returns nil says the same.
	Status func() *auditlog.Status
	// Token, if not empty, is demanded of every reader: as a bearer token, or
	// through the login form.
	Token string
	// Hosts are further origins (scheme and host) that may read, and by whose
	// host names a loopback address may be asked for.
	Hosts []string
	// Client is the address that failed logins are counted by. nil: RemoteAddr.
	Client func(*http.Request) string
	// Actor names who reads, in records. nil: the address.
	Actor func(*http.Request) string
	// Record, if not nil, writes to the log that it is read, before it is.
	Record func(context.Context, auditlog.Access) error
	// Day is the time zone of "today". nil: the local one.
	Day *time.Location
	// Logger may be nil.
	Logger *slog.Logger
	// Version is that of the program.
	Version string
}

// Handler serves the dashboard. It is safe for concurrent use.
type Handler struct {
	o        Options
	follower *follower
	verifier verifier
	gate     *gate
	reads    joinedReads
	sums     sumCache
	streams  chan struct{}
	searches chan struct{}
	proofs   chan struct{}
}

// The bounds of what goes on at once. What is beyond waits, streams are
// refused.
const (
	mostStreams  = 64
	mostSearches = 2
	mostProofs   = 1
)

// ErrNoCGO is returned by New in a program that was built without cgo.
var ErrNoCGO = index.ErrNoCGO

// Available says whether this program can show a log: the index needs cgo.
func Available() error { return index.Available() }

// New makes a handler and begins to follow the log. Close ends that.
func New(o Options) (*Handler, error) {
	if err := Available(); err != nil {
		return nil, fmt.Errorf("the dashboard reads the log by its index: %w", err)
	}
	if o.Token != "" {
		if err := CheckToken(o.Token); err != nil {
			return nil, err
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Client == nil {
		o.Client = func(r *http.Request) string { return r.RemoteAddr }
	}
	if o.Actor == nil {
		o.Actor = func(r *http.Request) string { return "reader at " + address(o.Client(r)) }
	}
	if o.Day == nil {
		o.Day = time.Local
	}
	if o.IndexPath == "" {
		o.IndexPath = o.Path + index.Suffix
	}
	h := &Handler{
		o: o, gate: newGate(o.Token),
		streams: make(chan struct{}, mostStreams), searches: make(chan struct{}, mostSearches), proofs: make(chan struct{}, mostProofs),
	}
	h.follower = follow(o)
	h.verifier.start(o)
	return h, nil
}

// Close stops following the log and ends streams.
func (h *Handler) Close() error {
	h.verifier.stop()
	return h.follower.close()
}

//go:embed assets
var assets embed.FS

// The page uses nothing from elsewhere and has no script or style of its own in
// its text.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Security-Policy", contentPolicy)
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("X-Frame-Options", "DENY")
	head.Set("Referrer-Policy", "same-origin")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cross-Origin-Opener-Policy", "same-origin")
	head.Set("Cache-Control", "no-store")
	if fault := mcp.CheckOrigin(r.Host, r.TLS != nil, r.Header.Values("Origin"), h.o.Hosts, loopback(r)); fault != "" {
		refuse(w, http.StatusForbidden, "origin or host not allowed")
		return
	}
	p := r.URL.Path
	api, asset := strings.LastIndex(p, "/api/"), strings.LastIndex(p, "/assets/")
	switch {
	case strings.HasSuffix(p, "/login"):
		h.login(w, r)
	case strings.HasSuffix(p, "/logout"):
		h.logout(w, r)
	case !reading(w, r):
	case api > asset && h.api(w, r, p[api+len("/api/"):]):
	case asset > api && serveAsset(w, p[asset+len("/assets/"):]):
	case strings.HasSuffix(p, "/"):
		serveAsset(w, "index.html")
	default:
		refuse(w, http.StatusNotFound, "there is nothing here; the dashboard's address ends with a slash")
	}
}

// reading lets only requests that read pass.
func reading(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	refuse(w, http.StatusMethodNotAllowed, "the dashboard only reads")
	return false
}

// loopback reports whether the request came in on a loopback address, where a
// page of any site could have sent the user's browser.
func loopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".txt": "text/plain; charset=utf-8",
}

func serveAsset(w http.ResponseWriter, name string) bool {
	kind, ok := contentTypes[path.Ext(name)]
	if !ok || !fs.ValidPath(name) {
		return false
	}
	data, err := assets.ReadFile("assets/" + name)
	if err != nil {
		return false
	}
	// The files change with the program alone, but the browser is not told when
	// that is.
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("Content-Type", kind)
	// A reader who went away is nobody to tell.
	_, _ = w.Write(data) //nolint:gosec // it is a file of this program
	return true
}

// api answers a request of the JSON API, or reports that there is none of this
// name.
func (h *Handler) api(w http.ResponseWriter, r *http.Request, name string) bool {
	serve := h.route(name)
	if serve == nil {
		return false
	}
	if !h.admit(w, r) {
		return true
	}
	err := serve(w, r)
	var fault *apiError
	switch {
	case err == nil:
	case errors.As(err, &fault):
		if fault.status == http.StatusServiceUnavailable {
			w.Header().Set("Retry-After", "2")
		}
		refuse(w, fault.status, fault.Error())
	case errors.Is(err, ErrNotFound):
		refuse(w, http.StatusNotFound, err.Error())
	case errors.Is(err, index.ErrMark):
		refuse(w, http.StatusGone, err.Error())
	case r.Context().Err() != nil:
	default:
		h.o.Logger.Error("the dashboard cannot answer", "path", r.URL.Path, "error", err)
		refuse(w, http.StatusServiceUnavailable, err.Error())
	}
	return true
}

type serveFunc func(http.ResponseWriter, *http.Request) error

// endpoints are those of the JSON API. {id} is an operation's id, or seq-N.
var endpoints = map[string]func(*Handler) serveFunc{
	"status":  func(h *Handler) serveFunc { return h.serveStatus },
	"entries": func(h *Handler) serveFunc { return h.serveEntries },
	"stats":   func(h *Handler) serveFunc { return h.serveStats },
	"series":  func(h *Handler) serveFunc { return h.serveSeries },
	"verify":  func(h *Handler) serveFunc { return h.serveVerify },
	"stream":  func(h *Handler) serveFunc { return h.serveStream },
}

func (h *Handler) route(name string) serveFunc {
	if serve, ok := endpoints[name]; ok {
		return serve(h)
	}
	id, ok := strings.CutPrefix(name, "operations/")
	if !ok || id == "" {
		return nil
	}
	if id, ok := strings.CutSuffix(id, "/proof"); ok {
		return func(w http.ResponseWriter, r *http.Request) error { return h.serveProof(w, r, id) }
	}
	if strings.Contains(id, "/") {
		return nil
	}
	return func(w http.ResponseWriter, r *http.Request) error { return h.serveOperation(w, r, id) }
}

// apiError is an error that the reader can do something about.
type apiError struct {
	status int
	text   string
}

func (e *apiError) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

func answer(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	// A reader who went away is nobody to tell.
	_ = json.NewEncoder(w).Encode(v)
	return nil
}
