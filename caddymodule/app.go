package caddymodule

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(App{})
	// Logs that only old streams still hold have no configuration that hears
	// of the exit, so they are sealed here.
	caddy.OnExit(shutdownAll)
}

// App owns the audit logs of the process: where they lie, their keys and their
// durability. Handlers refer to a log by name.
//
// A log is opened and checked when the app starts, never while a
// configuration is only validated. A log that was shortened, replaced or
// emptied behind the server's back refuses the start, and the error names the
// way on; a running configuration stays as it is.
type App struct {
	// The logs by name. A handler that names none uses `default`, which needs
	// no configuration: it lies in Caddy's data directory.
	Logs map[string]LogConfig `json:"logs,omitempty"`

	settings map[string]*logSettings
	limits   map[limitKey]string // what each means, by its buckets
	leases   []*lease
	series   *seriesLease
	events   *eventSender
	pinFiles map[string]string // by server_id
	// dashboards are those of this configuration.
	dashboards []*Dashboard
	issuers    []*issuerKeys
	auth       *authGuards
	logger     *zap.Logger
	ctx        context.Context
	caddyCtx   caddy.Context
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "mcp_audit",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision checks the logs' options and resolves their placeholders. It has
// no side effect.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.caddyCtx, a.logger = ctx, ctx, ctx.Logger()
	a.auth = new(authGuards)
	a.settings = make(map[string]*logSettings)
	paths := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(a.Logs)) {
		s, err := a.Logs[name].resolve(name, a.logger)
		if err != nil {
			return err
		}
		if other, ok := paths[s.Path]; ok {
			return s.fault("output", fmt.Errorf("log %q has the same file %s; give each log its own folder", other, s.Path))
		}
		paths[s.Path] = name
		a.settings[name] = s
	}
	a.series = acquireSeries()
	if err := registerMetrics(ctx.GetMetricsRegistry(), a.series.series); err != nil {
		return fmt.Errorf("mcp_audit: registering metrics: %w", err)
	}
	events, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting the events app: %w", err)
	}
	app := events.(*caddyevents.App)
	a.events = newEventSender(ctx, app, a.series.series)
	return app.On("stopping", stoppingHandler{})
}

// use returns the settings of a log for a handler. Naming `default` without
// having configured it makes it.
func (a *App) use(name string) (*logSettings, error) {
	if name == "" {
		name = defaultLog
	}
	if s, ok := a.settings[name]; ok {
		return s, nil
	}
	if name != defaultLog {
		return nil, fmt.Errorf("mcp_audit: there is no log %q; add `log %s { … }` to the mcp_audit global option", name, name)
	}
	s, err := LogConfig{}.resolve(name, a.logger)
	if err != nil {
		return nil, err
	}
	a.settings[name] = s
	return s, nil
}

const defaultLog = "default"

// Start opens the logs. An error fails the load.
func (a *App) Start() error {
	if err := a.resolveGuards(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.settings)) {
		s := a.settings[name]
		l := acquire(s.Path)
		a.leases = append(a.leases, l)
		if err := l.start(a.ctx, s); err != nil {
			return fmt.Errorf("mcp_audit: log %q: %w", name, err)
		}
		st := l.current().Status()
		a.logger.Info("audit log open",
			zap.String("log", name), zap.String("path", s.Path),
			zap.String("origin", st.Origin), zap.Uint64("records", st.Records))
	}
	for _, keys := range a.issuers {
		keys.Start()
	}
	a.events.start()
	for _, d := range a.dashboards {
		// Its index is brought up to date before the first reader comes. If it
		// fails, readers are told.
		if _, err := d.started(); err != nil {
			a.logger.Error("the dashboard does not start", zap.Error(err))
		}
	}
	a.warnOfReach(a.caddyCtx)
	return nil
}

// Stop gives the logs back. One that a newer configuration or an open exchange
// still uses stays open.
func (a *App) Stop() error { return a.Cleanup() }

// Cleanup releases what Start acquired, also when the start failed half-way.
func (a *App) Cleanup() error {
	if a.events != nil {
		a.events.stop()
	}
	for _, l := range a.leases {
		l.release()
	}
	if a.series != nil {
		a.series.release()
	}
	return nil
}

// stoppingHandler ends what is open when the process, not only a
// configuration, stops: Caddy waits for streams that would never end.
type stoppingHandler struct{}

// Handle implements caddyevents.Handler.
func (stoppingHandler) Handle(ctx context.Context, _ caddy.Event) error {
	if caddy.Exiting() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		shutdownAll(ctx)
	}
	return nil
}

// Interface guards.
var (
	_ caddy.App           = (*App)(nil)
	_ caddy.Provisioner   = (*App)(nil)
	_ caddy.CleanerUpper  = (*App)(nil)
	_ caddyevents.Handler = stoppingHandler{}
)
