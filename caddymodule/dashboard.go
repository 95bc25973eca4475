package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/dashboard"
	"github.com/caddy-mcp-audit/mcp-audit/verify/cli"
)

func init() {
	caddy.RegisterModule(new(Dashboard))
	httpcaddyfile.RegisterHandlerDirective("mcp_audit_dashboard", parseDashboard)
	httpcaddyfile.RegisterDirectiveOrder("mcp_audit_dashboard", httpcaddyfile.Before, "respond")
}

// Dashboard shows an audit log in a browser: figures and charts, the calls as
// they happen, one call with its messages and what protects its records, and
// what a verification finds. The same is a JSON API below `api/`. It only
// reads, by the index beside the log, and holds up no writer.
//
// It works under any path, whose address ends with a slash. Who may read is
// decided by an authentication handler in front of it, or by its own token.
// Without both, it should listen on a loopback address; pages of other sites
// are refused in any case.
type Dashboard struct {
	// The log that is shown. Default: `default`.
	Log string `json:"log,omitempty"`

	// A token of 32 bytes or more that every reader must have, by placeholder,
	// as in `{file./run/secrets/dashboard}`: as a bearer token, or in the login
	// form. An address that fails 10 times within a minute has to wait. Default:
	// none is demanded.
	Token string `json:"token,omitempty"`

	// Whether readings are recorded in the log, as records of the kind
	// `access`, before anything is shown. A reader who asks for the same within
	// a minute is recorded once. Default: false.
	AuditReads bool `json:"audit_reads,omitempty"`

	// Further origins, as in `https://ops.example.com`, whose pages may read, and
	// by whose host names a loopback address may be asked for. Default: none.
	Origins []string `json:"origins,omitempty"`

	// Files, or folders of them, with checkpoints that were kept elsewhere, for
	// the verification. The log's own file anchors and witnesses count anyway.
	Anchors []string `json:"anchors,omitempty"`

	settings *logSettings
	lease    *lease
	token    string
	logger   *zap.Logger
	slogger  *slog.Logger

	mu      sync.Mutex
	handler *dashboard.Handler
	failed  error
	closed  bool
}

// CaddyModule returns the Caddy module information.
func (*Dashboard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_audit_dashboard",
		New: func() caddy.Module { return new(Dashboard) },
	}
}

// Provision checks the options and finds the log. It opens nothing.
func (d *Dashboard) Provision(ctx caddy.Context) error {
	d.logger, d.slogger = ctx.Logger(), ctx.Slogger()
	if err := dashboard.Available(); err != nil {
		return fmt.Errorf("mcp_audit_dashboard: %w", err)
	}
	for _, origin := range d.Origins {
		if err := checkOriginOption(origin); err != nil {
			return fmt.Errorf("mcp_audit_dashboard: origins: %w", err)
		}
	}
	if d.Token != "" {
		token, err := caddy.NewReplacer().ReplaceOrErr(d.Token, true, true)
		if err != nil {
			return fmt.Errorf("mcp_audit_dashboard: token: %w; set it, or remove the option", err)
		}
		if d.token = strings.TrimSpace(token); d.token == "" {
			return errors.New("mcp_audit_dashboard: token: it is empty; set it, or remove the option")
		}
		if err := dashboard.CheckToken(d.token); err != nil {
			return fmt.Errorf("mcp_audit_dashboard: token: %w", err)
		}
	}
	app, err := ctx.App("mcp_audit")
	if err != nil {
		return fmt.Errorf("getting the mcp_audit app: %w", err)
	}
	if d.settings, err = app.(*App).use(d.Log); err != nil {
		return err
	}
	app.(*App).dashboards = append(app.(*App).dashboards, d)
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	d.lease = acquire(d.settings.Path)
	// Its streams would keep the server from ending.
	return events.(*caddyevents.App).On("stopping", dashboardStopping{d})
}

// dashboardStopping ends a dashboard with the configuration it is of.
type dashboardStopping struct{ d *Dashboard }

// Handle implements caddyevents.Handler.
func (s dashboardStopping) Handle(context.Context, caddy.Event) error { return s.d.close() }

// Cleanup gives back what Provision took.
func (d *Dashboard) Cleanup() error {
	err := d.close()
	if d.lease != nil {
		d.lease.release()
	}
	return err
}

func (d *Dashboard) close() error {
	d.mu.Lock()
	h := d.handler
	d.handler, d.closed = nil, true
	d.mu.Unlock()
	if h == nil {
		return nil
	}
	return h.Close()
}

// started is the handler, which follows the log from its first use on, or from
// the app's start.
func (d *Dashboard) started() (*dashboard.Handler, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("this configuration is being replaced")
	}
	if d.handler == nil && d.failed == nil {
		d.handler, d.failed = dashboard.New(d.options())
	}
	return d.handler, d.failed
}

func (d *Dashboard) options() dashboard.Options {
	s := d.settings
	reader := &cli.LogReader{Path: s.Path, Secret: s.secret, Anchors: d.Anchors}
	if _, err := os.Stat(s.KeysFile); err == nil && s.secret == nil {
		reader.KeysFile = s.KeysFile
	}
	for _, a := range s.anchors {
		switch a.Type {
		case "file":
			reader.Anchors = append(reader.Anchors, a.Path)
		case "witness":
			reader.VKeys = append(reader.VKeys, a.VKey)
		}
	}
	o := dashboard.Options{
		Name: s.name, Path: s.Path, Log: reader, Token: d.token, Hosts: d.Origins, Client: clientAddress, Actor: d.actor,
		Logger: d.slogger, Version: cli.Version(),
		Status: func() *auditlog.Status {
			log := d.lease.current()
			if log == nil {
				return nil
			}
			st := log.Status()
			return &st
		},
	}
	if d.AuditReads {
		o.Record = func(ctx context.Context, a auditlog.Access) error {
			log, err := d.lease.opened(ctx, s)
			if err != nil {
				return err
			}
			return log.Access(ctx, a)
		}
	}
	return o
}

// actor names a reader: the verified user, or what is known instead.
func (d *Dashboard) actor(r *http.Request) string {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		for _, placeholder := range defaultIdentity {
			if user := repl.ReplaceAll(placeholder, ""); user != "" {
				return user
			}
		}
	}
	who := "anonymous"
	if d.token != "" {
		who = "holder of the dashboard's token"
	}
	address := clientAddress(r)
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return who + " at " + address
}

// ServeHTTP answers a reader.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h, err := d.started()
	if err != nil {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	h.ServeHTTP(w, r)
	return nil
}

// parseDashboard parses the directive.
func parseDashboard(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Dashboard)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile parses the directive. Syntax:
//
//	mcp_audit_dashboard [<matcher>] {
//		log         <name>
//		token       <token, by placeholder>
//		audit_reads
//		origins     <origin>...
//		anchor      <file or folder>...
//	}
func (d *Dashboard) UnmarshalCaddyfile(disp *caddyfile.Dispenser) error {
	disp.Next()
	if disp.NextArg() {
		return disp.ArgErr()
	}
	_, err := block(disp, map[string]func() error{
		"log":         func() error { return one(disp, &d.Log) },
		"token":       func() error { return one(disp, &d.Token) },
		"audit_reads": func() error { d.AuditReads = true; return none(disp) },
		"origins": func() error {
			if err := some(disp, &d.Origins); err != nil {
				return err
			}
			for _, origin := range d.Origins {
				if err := checkOriginOption(origin); err != nil {
					return disp.WrapErr(err)
				}
			}
			return nil
		},
		"anchor": func() error { return some(disp, &d.Anchors) },
	})
	return err
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Dashboard)(nil)
	_ caddy.CleanerUpper          = (*Dashboard)(nil)
	_ caddyhttp.MiddlewareHandler = (*Dashboard)(nil)
	_ caddyfile.Unmarshaler       = (*Dashboard)(nil)
	_ caddyevents.Handler         = dashboardStopping{}
)
