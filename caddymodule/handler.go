package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler audits the MCP traffic of a route. Put it in front of
// `reverse_proxy`: it records the intent of every call before a byte reaches
// the server, forwards the original bytes, follows the answer as it streams by
// and records the outcome. What it cannot read unambiguously it refuses, and
// what it cannot record it does not forward.
//
// It sets these placeholders:
//
// Placeholder | Description
// ------------|-------------
// `{http.mcp_audit.operation_id}` | The id of the operation in the audit log
// `{http.mcp_audit.method}` | The JSON-RPC method, for example `tools/call`
// `{http.mcp_audit.tool}` | The tool's name, for tools/call
// `{http.mcp_audit.decision}` | `allow` or `deny`
type Handler struct {
	// The name of the log in the mcp_audit app. Default: default.
	Log string `json:"log,omitempty"`

	// How records name the MCP server behind this route. Default: empty.
	ServerID string `json:"server_id,omitempty"`

	// How records name the client; placeholders are allowed. Default: the
	// verified principal, else `anonymous`.
	ClientID string `json:"client_id,omitempty"`

	// Placeholders that may name the caller, first non-empty wins. Default:
	// `{http.auth.user.id}`, `{http.request.tls.client.subject}`. A header
	// that a client may set is no identity.
	Identity []string `json:"identity,omitempty"`

	// Where the issuer, client, roles and scopes of that caller stand.
	IdentityClaims *IdentityClaims `json:"identity_claims,omitempty"`

	// The identity of every caller, for a site without authentication.
	Principal *PrincipalConfig `json:"principal,omitempty"`

	// Which calls are allowed. Default: all.
	Policy *policy.Document `json:"policy,omitempty"`

	// How many requests pass in what time. Default: any.
	RateLimits []RateLimitConfig `json:"rate_limits,omitempty"`

	// What is kept out of the records. Default: on, with the default keys.
	Redact *redact.Document `json:"redact,omitempty"`

	// Leaves out of the lists that a server gives what the policy would not let
	// their reader use. Default: false.
	HideDenied bool `json:"hide_denied,omitempty"`

	// Pins the definitions of the server's tools. Default: none are pinned.
	PinTools *PinConfig `json:"pin_tools,omitempty"`

	// Origins of browser pages that may call this route, as
	// `https://app.example.com`. Default: same origin only. Requests without
	// an Origin header always pass.
	Origins []string `json:"origins,omitempty"`

	// The largest request body in bytes. Default: 10485760 (10 MiB); the
	// largest allowed is 30 MiB, because a record line holds at most 32 MiB.
	MaxBody int64 `json:"max_body,omitempty"`

	// How many bytes of a result are kept in its record; more is kept as
	// length and hash. Default: 1048576 (1 MiB).
	Capture int64 `json:"capture,omitempty"`

	// Headers of the client that go on to the server: `Authorization`, and those
	// by which a client could claim to be somebody, as `X-Forwarded-User`.
	// Cookie and Proxy-Authorization never go on. Default: those that `identity`
	// and `client_id` name.
	ForwardHeaders []string `json:"forward_headers,omitempty"`

	// The credential that requests to the server carry in place of the client's:
	// a bearer token by placeholder, `{file.*}` or `{env.*}`. It is read when the
	// configuration is loaded. Default: none.
	UpstreamToken string `json:"upstream_token,omitempty"`

	// `enforce` refuses and denies; `observe` forwards what it would refuse or
	// deny and records why, for a first rollout. Default: enforce.
	Mode string `json:"mode,omitempty"`

	// How MCP headers are compared with the body: `enforce`, `record` or
	// `off`. Default: enforce.
	Headers string `json:"headers,omitempty"`

	// How many refusals a second and client address have a record of their
	// own; more are joined into one event a second. Default: 200; -1 joins none.
	Refusals int `json:"refusals,omitempty"`

	// How long an MCP session that is idle is remembered: who opened it, and
	// the protocol version it negotiated. Default: 1h; from 1s to 720h.
	SessionTTL caddy.Duration `json:"session_ttl,omitempty"`

	// Sends a comment on a stream of events that was silent for this long, so
	// that proxies on the way keep it open. Default: none; from 1s to 1h.
	Keepalive caddy.Duration `json:"keepalive,omitempty"`

	// Holds the message that answers a call until the call's outcome is
	// recorded, so that no client ever acts on an answer that the log does not
	// have. If it cannot be recorded, `on_failure` decides: with `block` the
	// client gets an error in its place. Default: false.
	HoldAnswers bool `json:"hold_answers,omitempty"`

	// Cuts a stream of the HTTP+SSE transport whose server sends its clients
	// to another origin, around the audit. It is reported in any case.
	// Default: false.
	BlockForeignEndpoint bool `json:"block_foreign_endpoint,omitempty"`

	// Tells a denied client the rule's id and reason. Default: false.
	Explain bool `json:"explain,omitempty"`

	// Whether metrics name tools and clients: `on` or `off`. With `off` they
	// all are `other`. Default: on.
	ToolLabels string `json:"tool_labels,omitempty"`

	// The transport that records name: `http` or `stdio`. Default: http. The
	// shim sets it, since its traffic is a child's stdio.
	Transport string `json:"transport,omitempty"`

	settings   *logSettings
	lease      *lease
	events     *eventSender
	pins       *pins.Store // nil: none
	pinPath    string
	logger     *zap.Logger
	policy     *policy.Policy
	digest     string
	redact     *redact.Profile
	limits     []*ratelimit.Limit
	configured *auditlog.Principal
	subjects   []subjectSource
	// keptHeaders are the headers of stripIdentity that stay.
	keptHeaders map[string]bool
	// authorization is sent to the server; empty: none.
	authorization string
	hinted        *atomic.Bool // that a server answers 401 for want of a credential
}

// Values of Handler options.
const (
	modeEnforce = "enforce"
	modeObserve = "observe"

	headersEnforce = "enforce"
	headersRecord  = "record"
	headersOff     = "off"

	defaultMaxBody  = 10 << 20
	largestMaxBody  = 30 << 20
	defaultCapture  = 1 << 20
	largestCapture  = 24 << 20
	defaultRefusals = 200

	shortestSessionTTL = time.Second
	longestSessionTTL  = 30 * 24 * time.Hour
	shortestKeepalive  = time.Second
	longestKeepalive   = time.Hour
)

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_audit",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision checks the options and takes a reference to the log. It opens
// nothing: the app does that when it starts.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger, h.hinted = ctx.Logger(), new(atomic.Bool)
	app, err := ctx.App("mcp_audit")
	if err != nil {
		return fmt.Errorf("getting the mcp_audit app: %w", err)
	}
	if h.settings, err = app.(*App).use(h.Log); err != nil {
		return err
	}
	h.events = app.(*App).events
	app.(*App).noteAudit(ctx, h)
	if err := h.provisionDecisions(); err != nil {
		return err
	}
	if err := h.provisionLimits(); err != nil {
		return err
	}
	if err := h.provisionIdentity(); err != nil {
		return err
	}
	if err := h.provisionUpstreamToken(); err != nil {
		return err
	}
	if err := h.provisionRateLimits(app.(*App)); err != nil {
		return err
	}
	if err := h.provisionPins(app.(*App)); err != nil {
		return err
	}
	h.lease = acquire(h.settings.Path)
	return nil
}

// Cleanup gives back what Provision took; it also runs after a Provision that
// failed half-way. Exchanges hold their own references.
func (h *Handler) Cleanup() error {
	if h.lease != nil {
		h.lease.release()
	}
	h.releasePins()
	return nil
}

func (h *Handler) provisionDecisions() (err error) {
	if h.policy, err = h.Policy.Compile(); err != nil {
		return fmt.Errorf("mcp_audit: policy: %w", err)
	}
	if h.Policy != nil {
		h.digest = h.policy.Digest()
		h.settings.addPolicy(h.ServerID, h.digest)
	}
	if h.redact, err = h.Redact.Compile(h.settings.tagKey()); err != nil {
		return fmt.Errorf("mcp_audit: redact: %w", err)
	}
	if h.Principal != nil {
		if err := h.Principal.validate(); err != nil {
			return err
		}
		if len(h.Identity) > 0 || h.IdentityClaims != nil {
			return errors.New("mcp_audit: principal and identity exclude each other; keep one")
		}
		p := h.Principal
		h.configured = &auditlog.Principal{
			Subject: p.Subject, Issuer: p.Issuer, ClientID: p.ClientID,
			Roles: p.Roles, Scopes: p.Scopes, Source: p.Source,
		}
		if p.Source == "" {
			h.configured.Source = "configured"
		}
	}
	if len(h.Identity) == 0 {
		h.Identity = defaultIdentity
	}
	return nil
}

func (h *Handler) provisionLimits() error {
	for _, option := range []struct {
		name    string
		value   *string
		allowed []string
	}{
		{"mode", &h.Mode, []string{modeEnforce, modeObserve}},
		{"headers", &h.Headers, []string{headersEnforce, headersRecord, headersOff}},
		{"tool_labels", &h.ToolLabels, []string{"on", "off"}},
		{"transport", &h.Transport, []string{"http", "stdio"}},
	} {
		if *option.value == "" {
			*option.value = option.allowed[0]
		}
		if !slices.Contains(option.allowed, *option.value) {
			return fmt.Errorf("mcp_audit: %s: unknown value %q; use one of %q", option.name, *option.value, option.allowed)
		}
	}
	if h.HoldAnswers && h.observe() {
		return errors.New("mcp_audit: hold_answers holds answers back, which mode observe never does; keep one of them")
	}
	if h.MaxBody == 0 {
		h.MaxBody = defaultMaxBody
	}
	if h.MaxBody < 1 || h.MaxBody > largestMaxBody {
		return fmt.Errorf("mcp_audit: max_body: %d bytes is out of bounds; use 1 to %d", h.MaxBody, largestMaxBody)
	}
	if h.Capture == 0 {
		h.Capture = defaultCapture
	}
	if h.Capture < 1 || h.Capture > largestCapture {
		return fmt.Errorf("mcp_audit: capture: %d bytes is out of bounds; use 1 to %d", h.Capture, largestCapture)
	}
	for _, option := range []struct {
		name      string
		value     *caddy.Duration
		from, to  time.Duration
		otherwise time.Duration
	}{
		{"session_ttl", &h.SessionTTL, shortestSessionTTL, longestSessionTTL, defaultSessionTTL},
		{"keepalive", &h.Keepalive, shortestKeepalive, longestKeepalive, 0},
	} {
		if *option.value == 0 {
			*option.value = caddy.Duration(option.otherwise)
			continue
		}
		if d := time.Duration(*option.value); d < option.from || d > option.to {
			return fmt.Errorf("mcp_audit: %s: %s is out of bounds; use %s to %s", option.name, d, option.from, option.to)
		}
	}
	if h.Refusals == 0 {
		h.Refusals = defaultRefusals
	}
	for _, o := range h.Origins {
		if err := checkOriginOption(o); err != nil {
			return fmt.Errorf("mcp_audit: origins: %w", err)
		}
	}
	for i, name := range h.ForwardHeaders {
		name = http.CanonicalHeaderKey(name)
		if !canForward(name) {
			return fmt.Errorf("mcp_audit: forward_headers: %s cannot be named; only Authorization and headers of an identity, such as X-Forwarded-User, are withheld from the server and may be", name)
		}
		h.ForwardHeaders[i] = name
	}
	return nil
}

// ServeHTTP audits one HTTP exchange.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	// By path, not h.lease: this instance may have been cleaned up by a reload
	// while its requests are still in flight.
	l := acquire(h.settings.Path)
	defer l.release()
	ctx, abort := context.WithCancel(r.Context())
	defer abort()
	began := time.Now()
	x := newExchange(h, l, w, r.WithContext(ctx), r.Context(), abort)
	defer x.recycle()
	report := x.isShimReport()
	defer x.leaveSession()
	refused := x.admit()
	if refused == nil {
		refused = x.open()
	}
	if refused != nil {
		return x.refuse(refused)
	}
	l.series.admission.Observe(time.Since(began).Seconds())
	if report {
		return x.recordShimReport(next)
	}
	return x.forward(next)
}

// plainLabels reports whether metrics leave tools and clients unnamed.
func (h *Handler) plainLabels() bool { return h.ToolLabels == "off" }

// observe reports whether refusals and denials are only recorded.
func (h *Handler) observe() bool { return h.Mode == modeObserve }

// debug logs a decision at level debug.
func (h *Handler) debug(msg string, fields ...zap.Field) {
	if c := h.logger.Check(zapcore.DebugLevel, msg); c != nil {
		c.Write(fields...)
	}
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
