package caddymodule

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
)

// RateLimitConfig bounds how many requests pass: a token bucket for each value
// of what it counts by. A request takes a token of each limit that counts it,
// after the policy has allowed it, or of none if one of them has none left.
//
// The buckets belong to the log and outlive configurations; a limit whose rate
// or burst has changed goes on from what was used. They take at most 8 MiB.
type RateLimitConfig struct {
	// How many requests in what time, for example `60/1m`: from 1 to 1000000
	// requests, in 1ms to 30d.
	Rate string `json:"rate"`

	// What is counted by, one or more of `subject`, `issuer`, `client_id`,
	// `role` (the caller's roles, as one set), `tool_name`, `method`,
	// `server_id`, `session` (of the caller's own) and `remote_ip` (as Caddy's
	// trusted_proxies say; of IPv6 the /64).
	By []string `json:"by"`

	// How many requests may come at once. Default: those of the rate; from 1 to
	// 1000000, and it must come back within 366 days.
	Burst int `json:"burst,omitempty"`

	// The methods that are counted, exact or a beginning and `*`. `*` alone
	// stands for all requests; notifications are counted only by a pattern that
	// begins with `notifications/`. Default: tools/call.
	Methods []string `json:"methods,omitempty"`

	// How records name the limit. Routes of a log that have limits of the same
	// name have their buckets in common. Default: the limit as written, with
	// buckets of the server_id alone.
	Name string `json:"name,omitempty"`
}

// unmarshalRateLimit parses one limit. Syntax:
//
//	rate_limit <requests>/<duration> by <keys...> {
//		burst   <requests>
//		methods <methods...>
//		name    <name>
//	}
//
// The block is optional, and several limits may stand in a route.
func (h *Handler) unmarshalRateLimit(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) < 3 || args[1] != "by" {
		return d.Err("rate_limit takes a rate and what to count by, as in: rate_limit 60/1m by client_id tool_name")
	}
	c := RateLimitConfig{Rate: args[0], By: args[2:]}
	_, err := block(d, map[string]func() error{
		"burst": func() error {
			var text string
			if err := one(d, &text); err != nil {
				return err
			}
			n, err := ratelimit.ParseCount(text)
			if err != nil {
				return d.Errf("burst: %v", err)
			}
			c.Burst = n
			return nil
		},
		"methods": func() error { return some(d, &c.Methods) },
		"name":    func() error { return one(d, &c.Name) },
	})
	if err != nil {
		return err
	}
	h.RateLimits = append(h.RateLimits, c)
	// Compiled again when the handler is provisioned; here the mistake has a
	// line.
	_, err = compileLimits(h.RateLimits)
	return at(d, err)
}

func compileLimits(configs []RateLimitConfig) ([]*ratelimit.Limit, error) {
	var limits []ratelimit.Config
	for _, c := range configs {
		requests, window, err := ratelimit.ParseRate(c.Rate)
		if err != nil {
			return nil, fmt.Errorf("rate_limit: %w", err)
		}
		l := ratelimit.Config{Name: c.Name, Requests: requests, Window: window, Burst: c.Burst, Methods: c.Methods}
		for _, k := range c.By {
			l.By = append(l.By, ratelimit.Key(k))
		}
		for _, m := range c.Methods {
			if near := mcp.NearestMethod(m); near != "" {
				return nil, fmt.Errorf("rate_limit: there is no method %q; is it %s?", m, near)
			}
		}
		limits = append(limits, l)
	}
	compiled, err := ratelimit.New(limits)
	if err != nil {
		return nil, fmt.Errorf("rate_limit: %w", err)
	}
	return compiled, nil
}

// provisionRateLimits compiles the limits. Two routes whose limits have buckets
// in common must mean the same by them.
func (h *Handler) provisionRateLimits(app *App) (err error) {
	if h.limits, err = compileLimits(h.RateLimits); err != nil {
		return fmt.Errorf("mcp_audit: %w", err)
	}
	for _, l := range h.limits {
		key := limitKey{path: h.settings.Path, id: l.ID()}
		remedy := "give them the same rate and keys, or other names"
		if !l.Named() {
			key.server = h.ServerID
			remedy = "give the routes a server_id each, or the limits a name each"
		}
		if spec, known := app.limits[key]; known && spec != l.Spec() {
			return fmt.Errorf("mcp_audit: rate_limit: %q differs from a limit of another route of the same log that would share its buckets; %s", l.Name(), remedy)
		}
		if app.limits == nil {
			app.limits = make(map[limitKey]string)
		}
		app.limits[key] = l.Spec()
	}
	return nil
}

// limitKey names the buckets that limits of a configuration have in common.
type limitKey struct{ path, server, id string }

// judge asks the policy, and of what that allows the rate limits: a denied call
// takes no token.
func (x *exchange) judge(m *mcp.Message, base *auditlog.Message) *refusal {
	if refused := x.decide(m, base); refused != nil {
		return refused
	}
	return x.limit(m, base)
}

// limit judges a message that the policy allows by the rate limits.
func (x *exchange) limit(m *mcp.Message, base *auditlog.Message) *refusal {
	if len(x.h.limits) == 0 || base.Policy != nil && base.Policy.Decision == "deny" {
		return nil
	}
	r := ratelimit.Request{
		ClientID: x.clientID, ServerID: x.h.ServerID, RemoteIP: clientAddress(x.r), Method: base.Method,
	}
	if p := x.principal; p != nil {
		r.Subject, r.Issuer, r.Roles = p.Subject, p.Issuer, p.Roles
	}
	if base.Method == methodToolsCall {
		r.ToolName = mcp.Text(m.Name.Of(x.body))
	}
	if x.entered != nil && x.entered.owner == ownerOf(x.principal) {
		// Known, and so the caller's: an id alone is the client's own text.
		r.Session = scopeOf(x.entered.key)
	}
	v := x.lease.limits.Take(x.h.limits, &r, x.lease.uptime())
	if v.Limit == nil {
		return nil
	}
	base.Reason = "rate_limit: " + v.Limit.Name()
	if x.h.observe() {
		base.Anomaly = append(base.Anomaly, "rate_limited")
		return nil
	}
	return &refusal{
		status: http.StatusOK, code: mcp.RateLimitedCode(mcp.Modern(base.ProtocolVersion)),
		reason: "rate_limit", message: "rate limit exceeded", decided: base, m: m,
		over: v.Limit, wait: v.Wait,
	}
}

// uptime is the monotonic time that the rate limits count in.
func (s *sharedLog) uptime() time.Duration { return time.Since(s.acquired) }

// result is what the record of a refusal that was decided says.
func (ref *refusal) result() auditlog.Result {
	if ref.over != nil {
		return auditlog.RateLimited
	}
	return auditlog.Denied
}

// retryAfter adds to an error's data when a call may pass again.
func (ref *refusal) retryAfter(data []byte, explain bool) []byte {
	data = append(data, `,"retryAfterMs":`...)
	data = strconv.AppendInt(data, int64((ref.wait+time.Millisecond-1)/time.Millisecond), 10)
	if explain {
		data = append(data, `,"limit":`...)
		data = canon.AppendString(data, ref.over.Name())
	}
	return data
}

// answerLimited answers a notification over its limit, which has no id to
// answer to: with the status that HTTP has for it.
func (x *exchange) answerLimited(ref *refusal) {
	seconds := int64((ref.wait + time.Second - 1) / time.Second)
	x.w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	x.w.WriteHeader(http.StatusTooManyRequests)
}
