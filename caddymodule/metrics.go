package caddymodule

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// sinkUp tells at each scrape whether the audit logs can be written. It keeps
// no state of its own, so it survives reloads.
type sinkUp struct{ desc *prometheus.Desc }

func newSinkUp() sinkUp {
	return sinkUp{prometheus.NewDesc("mcp_audit_sink_up",
		"Whether the audit log can be written (1) or calls are handled as on_failure says (0).", []string{"log"}, nil)}
}

// Describe implements prometheus.Collector.
func (c sinkUp) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c sinkUp) Collect(ch chan<- prometheus.Metric) {
	eachLog(func(s *sharedLog) {
		name, healthy := s.health()
		if name == "" {
			return
		}
		up := 0.0
		if healthy {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, up, name)
	})
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
	if err := registry.Register(newSinkUp()); err != nil && !errors.As(err, &already) {
		return err
	}
	return nil
}
