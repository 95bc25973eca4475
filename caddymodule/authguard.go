package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/token"
)

// authGuard stands around one `authentication` handler that has providers of
// ours. Caddy's handler only knows 401 and a provider cannot tell whether another
// one accepts the request, so the guard does what needs the whole: it records a
// rejection, gives it its status and challenge, and serves the metadata of the
// resource. It sets itself up in the routes around the handler while those are
// provisioned, so that a configuration needs no further line.
type authGuard struct {
	app       *App
	owners    []any // what the handler lies in, the innermost first
	way       []routeStep
	providers []*protection
	logger    *zap.Logger

	target *authTarget // set by App.resolveGuards
}

// routeStep is one route on the way from the server to the handler.
type routeStep struct {
	before caddyhttp.RouteList // which may rewrite the request
	match  caddyhttp.MatcherSets
}

// authTarget is where the records of rejections go, and what they say.
type authTarget struct {
	settings *logSettings
	serverID string
	refusals int
	plain    bool
	origins  []string // of pages that may call
}

// guardFor returns the guard of the `authentication` handler that is being
// provisioned, and sets it up if it is the first of its providers that asks.
func guardFor(ctx caddy.Context, app *App) (*authGuard, error) {
	modules := ctx.Modules() // the provider itself is the last
	if len(modules) < 2 {
		return nil, errors.New("needs an authentication handler around it")
	}
	handler := modules[len(modules)-2]
	if g := app.auth.guards[handler]; g != nil {
		return g, nil
	}
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return nil, errors.New("needs a route of an HTTP server around it")
	}
	g := &authGuard{app: app, logger: ctx.Logger(), owners: ownersOf(ctx)}
	lists := routesAround(server, modules)
	for _, list := range lists {
		i := provisioning(list)
		g.way = append(g.way, routeStep{before: list[:i], match: list[i].MatcherSets})
	}
	if len(lists) > 0 {
		inner := lists[len(lists)-1]
		front(&inner[provisioning(inner)], guardHandler{g})
	} else if !frontNamed(server, guardHandler{g}) {
		return nil, errors.New("its authentication handler lies in no route; put it into a route, a handle or a site")
	}
	if i := provisioning(server.Routes); i >= 0 {
		outer := &server.Routes[i]
		front(outer, metadataHandler{g, firstHandler(outer)})
		if len(outer.MatcherSets) > 0 {
			outer.MatcherSets = append(outer.MatcherSets, caddyhttp.MatcherSet{metadataMatcher{g}})
		}
	} else {
		g.logger.Warn("the metadata of this resource is not served: its authentication is part of a named route or an error route; write it in the site itself, or serve " + token.WellKnown + " in another way")
	}
	if app.auth.guards == nil {
		app.auth.guards = make(map[any]*authGuard)
	}
	app.auth.guards[handler] = g
	return g, nil
}

// routesAround are the lists of routes that a handler lies in, the server's
// first. Each has a route whose handlers are being provisioned.
func routesAround(server *caddyhttp.Server, modules []caddy.Module) (lists []caddyhttp.RouteList) {
	add := func(list caddyhttp.RouteList) {
		if provisioning(list) >= 0 {
			lists = append(lists, list)
		}
	}
	add(server.Routes)
	for _, m := range modules {
		if s, ok := m.(*caddyhttp.Subroute); ok {
			before := len(lists)
			if add(s.Routes); len(lists) == before && s.Errors != nil {
				add(s.Errors.Routes)
			}
		}
	}
	return lists
}

// provisioning is the route whose handlers are being provisioned: the first that
// has their configuration still, which Caddy drops when it is done with it. -1:
// none.
func provisioning(list caddyhttp.RouteList) int {
	for i := range list {
		if len(list[i].HandlersRaw) > 0 {
			return i
		}
	}
	return -1
}

// front puts a handler before those of a route that is being provisioned: Caddy
// appends to what is there, which is what came here before.
func front(route *caddyhttp.Route, h caddyhttp.MiddlewareHandler) {
	route.Handlers = append(route.Handlers, h)
}

// frontNamed puts a handler before those of the named routes that are not
// provisioned yet. One of them is being provisioned; in the others the handler
// has nothing to do.
func frontNamed(server *caddyhttp.Server, h caddyhttp.MiddlewareHandler) (found bool) {
	for _, route := range server.NamedRoutes {
		if len(route.HandlersRaw) > 0 {
			front(route, h)
			found = true
		}
	}
	return found
}

// firstHandler is the name of a route's first handler, by which Caddy's metrics
// know the route.
func firstHandler(route *caddyhttp.Route) string {
	var h struct {
		Handler string `json:"handler"`
	}
	if err := json.Unmarshal(route.HandlersRaw[0], &h); err != nil {
		return ""
	}
	return h.Handler
}

// ownersOf is what the module that is being provisioned lies in, the innermost
// first.
func ownersOf(ctx caddy.Context) (owners []any) {
	modules := ctx.Modules()
	for i := len(modules) - 2; i >= 0; i-- {
		owners = append(owners, modules[i])
	}
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		owners = append(owners, server)
	}
	return owners
}

// noteAudit notes where an mcp_audit lies, for the guards around it.
func (a *App) noteAudit(ctx caddy.Context, h *Handler) {
	if a.auth.audits == nil {
		a.auth.audits = make(map[any][]*Handler)
	}
	for _, owner := range ownersOf(ctx) {
		a.auth.audits[owner] = append(a.auth.audits[owner], h)
	}
}

// resolveGuards finds the log of each guard: that which a provider names, else
// that of the nearest mcp_audit, else the default one. All of the configuration
// is provisioned by then.
func (a *App) resolveGuards() error {
	a.auth.once.Do(func() {
		for _, g := range a.auth.guards {
			if a.auth.failed = g.resolve(); a.auth.failed != nil {
				return
			}
		}
	})
	return a.auth.failed
}

func (g *authGuard) resolve() (err error) {
	t := &authTarget{refusals: defaultRefusals}
	for _, owner := range g.owners {
		audits := g.app.auth.audits[owner]
		if len(audits) == 0 {
			continue
		}
		h := audits[0]
		t.settings, t.serverID, t.refusals, t.plain, t.origins = h.settings, h.ServerID, h.Refusals, h.plainLabels(), h.Origins
		for _, other := range audits[1:] {
			if other.ServerID != h.ServerID {
				t.serverID = "" // nobody can tell which of them it would have been
			}
		}
		break
	}
	for _, p := range g.providers {
		if p.options.Log != "" {
			if t.settings, err = g.app.use(p.options.Log); err != nil {
				return err
			}
		}
	}
	if t.settings == nil {
		if t.settings, err = g.app.use(""); err != nil {
			return err
		}
	}
	g.target = t
	return nil
}

// authVar is the request variable of the attempt to authenticate.
const authVar = "mcp_audit.authentication"

// authAttempt is what the providers of a guard found of one request.
type authAttempt struct {
	guard    *authGuard
	outer    *authAttempt // of a guard before this one
	accepted *protection
	failures []authFailure
}

// authFailure is why a provider does not accept a request.
type authFailure struct {
	by     *protection
	reason token.Reason
	wait   time.Duration
	claims *token.Claims // verified, but not enough
}

// weight orders the failures of several providers: the one counts that knows
// most of the token.
func (f *authFailure) weight() int {
	switch f.reason {
	case token.Missing:
		return 0
	case token.Malformed, token.TooLarge:
		return 1
	case token.Unknown:
		return 2
	case token.Throttled:
		return 3
	case token.ScopeMissing:
		return 5
	}
	return 4
}

// attemptOf is the attempt of the last guard that a request came by.
func attemptOf(r *http.Request) *authAttempt {
	a, _ := caddyhttp.GetVar(r.Context(), authVar).(*authAttempt)
	return a
}

// of is the attempt of a guard; nil: the request did not come by it.
func (a *authAttempt) of(g *authGuard) *authAttempt {
	for a != nil && a.guard != g {
		a = a.outer
	}
	return a
}

// userID is set by Caddy's authentication for a request that it accepts.
const userID = authUser + "id"

// guardHandler is the guard as the handler before `authentication`.
type guardHandler struct{ g *authGuard }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h guardHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if h.g.answerPreflight(w, r) {
		return nil
	}
	a := &authAttempt{guard: h.g, outer: attemptOf(r)}
	caddyhttp.SetVar(r.Context(), authVar, a)
	err := next.ServeHTTP(w, r)
	var refused caddyhttp.HandlerError
	var rejected rejection
	if err == nil || len(a.failures) == 0 || errors.As(err, &rejected) || !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
		return err
	}
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if _, authenticated := repl.Get(userID); authenticated {
		// By another provider; the 401 is of a handler behind.
		return err
	}
	return h.g.reject(w, r, a)
}

// reject records that a request is not authenticated, and answers it.
func (g *authGuard) reject(w http.ResponseWriter, r *http.Request, a *authAttempt) error {
	f := &a.failures[0]
	for i := range a.failures {
		if a.failures[i].weight() > f.weight() {
			f = &a.failures[i]
		}
	}
	if f.reason == token.Unknown && f.by.wrong != nil {
		f.by.wrong(r)
	}
	status := f.reason.Status()
	g.record(r, f, status)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if page := g.pageOf(r); page != "" {
		allowPage(h, page)
		h.Set("Access-Control-Expose-Headers", "WWW-Authenticate, Retry-After")
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(max(f.wait, time.Second).Seconds()))))
	default:
		h.Add("WWW-Authenticate", f.by.challenge(r, f.reason))
	}
	return caddyhttp.Error(status, rejection{f.reason})
}

// rejection is the error of a request that a guard has dealt with.
type rejection struct{ reason token.Reason }

func (r rejection) Error() string { return "not authenticated: " + string(r.reason) }

// record writes the one record of a rejection. Nothing of it is the client's
// text: the body is not read, and of the header only a trace context counts.
func (g *authGuard) record(r *http.Request, f *authFailure, status int) {
	if err := g.app.resolveGuards(); err != nil {
		g.logger.Error("a rejection could not be recorded", zap.Error(err))
		return
	}
	t := g.target
	l := acquire(t.settings.Path)
	defer l.release()
	e := auditlog.Event{
		Message: auditlog.Message{
			Direction:   auditlog.ClientToServer,
			Transport:   "http",
			ClientID:    anonymous,
			ServerID:    t.serverID,
			TraceParent: traceParent(r.Header.Get("Traceparent")),
			Reason:      string(f.reason),
			HTTPStatus:  status,
		},
		Result: auditlog.Denied,
	}
	if c := f.claims; c != nil {
		e.Principal = &auditlog.Principal{
			Subject: c.Subject, Issuer: c.Issuer, ClientID: c.ClientID, Roles: c.Roles, Scopes: c.Scopes,
			Source: "{" + userID + "}",
		}
		if e.ClientID = c.ClientID; e.ClientID == "" {
			e.ClientID = c.Subject
		}
	}
	l.series.refused(entryOf(&e.Message, t.plain), false, e.Reason, e.Result)
	log, err := l.opened(r.Context(), t.settings)
	if err == nil {
		if !l.refusals.admit(clientAddress(r), t.refusals) {
			return
		}
		// The request was there, whether or not its client still is.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), refusalTimeout)
		defer cancel()
		e.OperationID = auditlog.NewOperationID()
		_, err = log.Event(ctx, e)
	}
	if err != nil {
		l.unavailable(false, err, g.logger)
	}
	if c := g.logger.Check(zap.DebugLevel, "not authenticated"); c != nil {
		c.Write(zap.String("reason", e.Reason), zap.Int("status", status), zap.String("operation_id", e.OperationID))
	}
}

// guards of an App, and what tells them which log is theirs.
type authGuards struct {
	guards map[any]*authGuard // by their authentication handler
	audits map[any][]*Handler // by what the handler lies in
	once   sync.Once          // resolves
	failed error
}

// Interface guards.
var _ caddyhttp.MiddlewareHandler = guardHandler{}
