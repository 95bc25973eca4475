package caddymodule

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Health{})
	httpcaddyfile.RegisterHandlerDirective("mcp_audit_health", parseHealth)
	httpcaddyfile.RegisterDirectiveOrder("mcp_audit_health", httpcaddyfile.Before, "respond")
}

// Health answers readiness probes: 200 if the audit logs can be written, 503 if
// one cannot, so that calls of it are handled as its on_failure says. It tells
// nothing else; Caddy's admin endpoint has /mcp_audit/status for that.
//
// A site-level mcp_audit would record each probe: give the probe a site of its
// own.
type Health struct {
	// The logs that must be writable. Default: `default`.
	Logs []string `json:"logs,omitempty"`

	leases []*lease
}

// CaddyModule returns the Caddy module information.
func (Health) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_audit_health",
		New: func() caddy.Module { return new(Health) },
	}
}

// Provision finds the logs. It opens nothing.
func (h *Health) Provision(ctx caddy.Context) error {
	app, err := ctx.App("mcp_audit")
	if err != nil {
		return fmt.Errorf("getting the mcp_audit app: %w", err)
	}
	if len(h.Logs) == 0 {
		h.Logs = []string{defaultLog}
	}
	for _, name := range h.Logs {
		settings, err := app.(*App).use(name)
		if err != nil {
			return err
		}
		h.leases = append(h.leases, acquire(settings.Path))
	}
	return nil
}

// Cleanup gives back what Provision took.
func (h *Health) Cleanup() error {
	for _, l := range h.leases {
		l.release()
	}
	return nil
}

// ServeHTTP answers a probe.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		return caddyhttp.Error(http.StatusMethodNotAllowed, nil)
	}
	down := slices.ContainsFunc(h.leases, func(l *lease) bool {
		log := l.current()
		return log == nil || !log.Status().Healthy
	})
	status, text := http.StatusOK, "ok\n"
	if down {
		status, text = http.StatusServiceUnavailable, "an audit log cannot be written\n"
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, err := w.Write([]byte(text))
	return err
}

func parseHealth(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Health)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile parses the directive. Syntax:
//
//	mcp_audit_health [<log>...]
func (h *Health) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	h.Logs = d.RemainingArgs()
	if d.NextBlock(0) {
		return d.Errf("mcp_audit_health has no subdirectives; there is %q", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Health)(nil)
	_ caddy.CleanerUpper          = (*Health)(nil)
	_ caddyhttp.MiddlewareHandler = (*Health)(nil)
	_ caddyfile.Unmarshaler       = (*Health)(nil)
)
