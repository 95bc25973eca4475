package caddymodule

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
)

// gauges tells the state of the audit logs at each scrape. It keeps no state of
// its own, so it survives reloads.
type gauges struct{ all []gauge }

// gauge is one figure of a log.
type gauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	// of reads it; false: there is none.
	of func(*logFigures) (float64, bool)
}

// logFigures is the state of a log. After a reload that moved it, the former one
// may be open for a while under the same name: then it is that of both.
type logFigures struct {
	up       bool
	sessions int
	open     int
	limits   ratelimit.Stats
	status   auditlog.Status
	anchored time.Time // of the anchor that is furthest behind
	anchors  int
}

func newGauges() gauges {
	var g gauges
	add := func(name, help string, kind prometheus.ValueType, of func(*logFigures) (float64, bool)) {
		desc := prometheus.NewDesc("mcp_audit_"+name, help, []string{"log"}, nil)
		g.all = append(g.all, gauge{desc, kind, of})
	}
	number := func(of func(*logFigures) float64) func(*logFigures) (float64, bool) {
		return func(f *logFigures) (float64, bool) { return of(f), true }
	}
	add("sink_up", "Whether the audit log can be written (1) or calls are handled as on_failure says (0).", prometheus.GaugeValue,
		number(func(f *logFigures) float64 {
			if f.up {
				return 1
			}
			return 0
		}))
	add("sessions", "MCP sessions that are remembered: opened, not ended and not idle for session_ttl.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.sessions) }))
	add("open_operations", "Operations that are recorded and have no outcome yet.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.open) }))
	add("rate_limit_bytes", "Bytes that the buckets of the rate limits take at most.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.limits.Bytes) }))
	add("rate_limit_shared_total", "Requests that a rate limit counted in a shared bucket, for want of room.", prometheus.CounterValue,
		number(func(f *logFigures) float64 { return float64(f.limits.Shared) }))
	add("records_total", "Records of the log, by all that write it, since it was begun.", prometheus.CounterValue,
		number(func(f *logFigures) float64 { return float64(f.status.Records) }))
	add("unchecked_records", "Records that no checkpoint covers yet.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 {
			return float64(f.status.Records - min(f.status.Records, f.status.Checkpointed))
		}))
	add("dropped_total", "Messages that on_failure forwarded unrecorded since the log was opened; a gap record counts them.", prometheus.CounterValue,
		number(func(f *logFigures) float64 { return float64(f.status.Missed) }))
	add("owed_outcomes", "Outcomes that the log could not take yet and will.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.status.Owed) }))
	add("async_queue_depth", "Records that wait to be written.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.status.Queued) }))
	add("queue_bytes", "Bytes of the records that wait to be written.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.status.QueuedBytes) }))
	add("queue_capacity_bytes", "Bytes that may wait to be written.", prometheus.GaugeValue,
		number(func(f *logFigures) float64 { return float64(f.status.QueueLimit) }))
	add("async_backpressure_total", "Waits for space in the queue since the log was opened.", prometheus.CounterValue,
		number(func(f *logFigures) float64 { return float64(f.status.QueueWaits) }))
	add("last_checkpoint_age_seconds", "Time since the newest checkpoint; none if this process has seen none.", prometheus.GaugeValue,
		func(f *logFigures) (float64, bool) { return age(f.status.CheckpointTime) })
	add("last_anchor_age_seconds", "Time since the anchor that is furthest behind took a checkpoint; none without anchors, or if it never did.", prometheus.GaugeValue,
		func(f *logFigures) (float64, bool) { return age(f.anchored) })
	return g
}

func age(t time.Time) (float64, bool) {
	if t.IsZero() {
		return 0, false
	}
	return max(0, time.Since(t).Seconds()), true
}

// Describe implements prometheus.Collector.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range g.all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	byName := make(map[string]*logFigures)
	eachLog(func(s *sharedLog) {
		name, now := s.figures()
		if name == "" {
			return
		}
		if sum := byName[name]; sum != nil {
			sum.join(now)
			return
		}
		byName[name] = now
	})
	for name, figures := range byName {
		for _, m := range g.all {
			if value, ok := m.of(figures); ok {
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, name)
			}
		}
	}
}

// join adds the figures of another log of the same name.
func (f *logFigures) join(other *logFigures) {
	f.up = f.up && other.up
	f.sessions += other.sessions
	f.open += other.open
	f.limits.Callers += other.limits.Callers
	f.limits.Keys += other.limits.Keys
	f.limits.Bytes += other.limits.Bytes
	f.limits.Shared += other.limits.Shared
	a, b := &f.status, &other.status
	a.Records += b.Records
	a.Checkpointed += b.Checkpointed
	a.Missed += b.Missed
	a.Owed += b.Owed
	a.Queued += b.Queued
	a.QueuedBytes += b.QueuedBytes
	a.QueueLimit += b.QueueLimit
	a.QueueWaits += b.QueueWaits
	if b.CheckpointTime.After(a.CheckpointTime) {
		a.CheckpointTime = b.CheckpointTime
	}
	if f.anchors == 0 || other.anchors > 0 && other.anchored.Before(f.anchored) {
		f.anchored, f.anchors = other.anchored, f.anchors+other.anchors
	}
}

// figures is the log's name in the configuration, empty if it was never
// started, and its state.
func (s *sharedLog) figures() (name string, f *logFigures) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings == nil {
		return "", nil
	}
	f = &logFigures{sessions: s.sessions.count(), open: s.open.count(), limits: s.limits.Stats()}
	if s.log == nil {
		return s.settings.name, f
	}
	f.status = s.log.Status()
	f.up = f.status.Healthy
	f.anchors = len(f.status.Anchors)
	for i, a := range f.status.Anchors {
		if i == 0 || a.Time.Before(f.anchored) {
			f.anchored = a.Time
		}
	}
	return s.settings.name, f
}

// registerMetrics adds the collectors to a configuration's registry, which is
// a new one at each load.
func registerMetrics(registry *prometheus.Registry, s *series) error {
	var already prometheus.AlreadyRegisteredError
	if err := registry.Register(newGauges()); err != nil && !errors.As(err, &already) {
		return err
	}
	return s.register(registry)
}
