package caddymodule

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// gauges tells the state of the audit logs at each scrape. It keeps no state of
// its own, so it survives reloads.
type gauges struct{ sinkUp, sessions *prometheus.Desc }

func newGauges() gauges {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("mcp_audit_"+name, help, []string{"log"}, nil)
	}
	return gauges{
		sinkUp:   desc("sink_up", "Whether the audit log can be written (1) or calls are handled as on_failure says (0)."),
		sessions: desc("sessions", "MCP sessions that are remembered: opened, not ended and not idle for session_ttl."),
	}
}

// Describe implements prometheus.Collector.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.sinkUp
	ch <- g.sessions
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	type state struct {
		up       bool
		sessions int
	}
	// After a reload that moved a log, the former one may be open for a while
	// under the same name.
	byName := make(map[string]state)
	eachLog(func(s *sharedLog) {
		name, healthy := s.health()
		if name == "" {
			return
		}
		sum, more := byName[name]
		byName[name] = state{healthy && (sum.up || !more), sum.sessions + s.sessions.count()}
	})
	for name, s := range byName {
		up := 0.0
		if s.up {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(g.sinkUp, prometheus.GaugeValue, up, name)
		ch <- prometheus.MustNewConstMetric(g.sessions, prometheus.GaugeValue, float64(s.sessions), name)
	}
}

// health is the log's name in the configuration, empty if it was never
// started, and whether it can be written.
func (s *sharedLog) health() (name string, healthy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings == nil {
		return "", false
	}
	return s.settings.name, s.log != nil && s.log.Status().Healthy
}

// registerMetrics adds the collectors to a configuration's registry, which is
// a new one at each load.
func registerMetrics(registry *prometheus.Registry) error {
	var already prometheus.AlreadyRegisteredError
	if err := registry.Register(newGauges()); err != nil && !errors.As(err, &already) {
		return err
	}
	return nil
}
