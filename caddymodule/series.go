package caddymodule

import (
	"errors"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// seriesPool holds the process's one set of counters while any log or
// configuration uses it: each load has a new registry, and what was counted
// must not begin again with it.
var seriesPool = caddy.NewUsagePool()

const seriesKey = "series"

// series are the counters and histograms of what the handlers of the process
// did. Safe for concurrent use.
type series struct {
	entries      *prometheus.CounterVec
	toolCalls    *prometheus.CounterVec
	decisions    *prometheus.CounterVec
	rateLimited  *prometheus.CounterVec
	retries      *prometheus.CounterVec
	refusals     *prometheus.CounterVec
	unavailable  *prometheus.CounterVec
	writes       *prometheus.CounterVec
	writeSeconds *prometheus.HistogramVec
	batches      prometheus.Counter
	batchSize    prometheus.Histogram
	admission    prometheus.Histogram
	completion   prometheus.Histogram
	durations    *prometheus.HistogramVec

	eventsDropped prometheus.Counter

	tools   labelSet
	clients labelSet
}

// otherLabel stands for every value past the bound of a label.
const otherLabel = "other"

// maxLabels bounds the values of the tool and client labels, each.
const maxLabels = 200

// longestLabel bounds the length of a label's value, in bytes.
const longestLabel = 128

// labelSet holds the values that a label may have. Its zero value has none.
type labelSet struct {
	mu    sync.RWMutex
	known map[string]struct{}
}

// add makes a value known, if there is room for it.
func (s *labelSet) add(value string) {
	if s.has(value) || value == "" || len(value) > longestLabel {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxLabels {
		return
	}
	if s.known == nil {
		s.known = make(map[string]struct{})
	}
	s.known[value] = struct{}{}
}

func (s *labelSet) has(value string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.known[value]
	return ok
}

// label is the value itself if it is known.
func (s *labelSet) label(value string) string {
	if s.has(value) {
		return value
	}
	return otherLabel
}

func newSeries() *series {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "mcp_audit", Name: name, Help: help}, labels)
	}
	options := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "mcp_audit", Name: name, Help: help, Buckets: buckets}
	}
	quick := prometheus.ExponentialBuckets(20e-6, 2.5, 12) // 20 µs to 0.5 s
	return &series{
		entries:       counter("entries_total", "Operations that have ended, and requests that were refused.", "transport", "direction", "method", "status"),
		toolCalls:     counter("tool_calls_total", "Calls of tools that have ended or were refused.", "transport", "tool_name", "status"),
		decisions:     counter("policy_decisions_total", "Decisions of the policy.", "action"),
		rateLimited:   counter("rate_limit_rejections_total", "Requests that a rate limit refused.", "client_id", "tool_name"),
		retries:       counter("http_upstream_retries_total", "Repeated attempts of reverse_proxy to reach a server.", "reason"),
		refusals:      counter("http_refusals_total", "Requests refused before any decision of the policy.", "reason"),
		unavailable:   counter("log_unavailable_total", "Messages that the audit log could not take.", "action"),
		writes:        counter("storage_writes_total", "Batches of records written to the audit log.", "backend", "mode", "status"),
		writeSeconds:  prometheus.NewHistogramVec(options("storage_write_duration_seconds", "Time to write a batch of records, with the disk's barrier in mode sync.", quick), []string{"backend", "mode"}),
		batches:       prometheus.NewCounter(prometheus.CounterOpts{Namespace: "mcp_audit", Name: "async_batches_total", Help: "Batches of records."}),
		batchSize:     prometheus.NewHistogram(options("async_batch_size", "Records in a batch.", prometheus.ExponentialBuckets(1, 2, 13))),
		admission:     prometheus.NewHistogram(options("admission_seconds", "Time from a request's arrival until it is judged, recorded and handed on.", quick)),
		completion:    prometheus.NewHistogram(options("completion_seconds", "Time from the end of a server's answer until what it closes is handed to the log.", quick)),
		eventsDropped: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "mcp_audit", Name: "events_dropped_total", Help: "Events of Caddy's events app that were dropped, because their handlers are too slow."}),
		durations:     prometheus.NewHistogramVec(options("operation_duration_seconds", "Time from an operation's start to its end.", prometheus.ExponentialBuckets(1e-3, 3, 12)), []string{"method"}),
	}
}

// seriesLease is one reference to the process's series.
type seriesLease struct {
	*series
	once sync.Once
}

// acquireSeries takes a reference to the process's series.
func acquireSeries() *seriesLease {
	v, _, _ := seriesPool.LoadOrNew(seriesKey, func() (caddy.Destructor, error) { return newSeries(), nil })
	return &seriesLease{series: v.(*series)}
}

// release gives the reference back; only the first call counts.
func (l *seriesLease) release() {
	l.once.Do(func() { _, _ = seriesPool.Delete(seriesKey) })
}

// Destruct implements caddy.Destructor.
func (*series) Destruct() error { return nil }

// collectors are what a registry is given.
func (s *series) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		s.entries, s.toolCalls, s.decisions, s.rateLimited, s.retries, s.refusals, s.unavailable,
		s.writes, s.writeSeconds, s.batches, s.batchSize, s.admission, s.completion, s.durations, s.eventsDropped,
	}
}

// register adds the series to a configuration's registry.
func (s *series) register(registry *prometheus.Registry) error {
	var already prometheus.AlreadyRegisteredError
	for _, c := range s.collectors() {
		if err := registry.Register(c); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// entry is what an operation or a refusal is counted by.
//
// Its zero value stands for what is not counted.
type entry struct {
	transport string
	direction auditlog.Direction
	method    string
	tool      string
	clientID  string
	plain     bool // without the tool and client labels
}

func entryOf(m *auditlog.Message, plain bool) entry {
	return entry{m.Transport, m.Direction, m.Method, m.ToolName, m.ClientID, plain}
}

// methodLabel is the method if the protocol has it, so that clients cannot make
// series.
func methodLabel(method string) string {
	if _, known := mcp.Lookup(method); known {
		return method
	}
	return otherLabel
}

// statusOf is a result as the status label names it.
func statusLabel(result auditlog.Result) string {
	if result == auditlog.Success {
		return "ok"
	}
	return string(result)
}

func directionLabel(d auditlog.Direction) string {
	if d == auditlog.ServerToClient {
		return "server_to_client"
	}
	return "client_to_server"
}

// ended counts an operation, or a refused request, by its result.
func (s *series) ended(e entry, result auditlog.Result) {
	status := statusLabel(result)
	s.entries.WithLabelValues(e.transport, directionLabel(e.direction), methodLabel(e.method), status).Inc()
	if e.method != methodToolsCall {
		return
	}
	if result == auditlog.Success {
		s.tools.add(e.tool)
	}
	s.toolCalls.WithLabelValues(e.transport, s.toolLabel(e), status).Inc()
}

// closed counts an operation that had its time.
func (s *series) closed(e entry, result auditlog.Result, took time.Duration) {
	s.ended(e, result)
	s.durations.WithLabelValues(methodLabel(e.method)).Observe(took.Seconds())
}

// refused counts what is not forwarded: by the policy's decision, a rate limit,
// or the reason of an admission refusal.
func (s *series) refused(e entry, decided bool, reason string, result auditlog.Result) {
	s.ended(e, result)
	switch {
	case result == auditlog.RateLimited:
		client := otherLabel
		if !e.plain {
			s.clients.add(e.clientID)
			client = s.clients.label(e.clientID)
		}
		s.rateLimited.WithLabelValues(client, s.toolLabel(e)).Inc()
	case !decided:
		s.refusals.WithLabelValues(refusalLabel(reason)).Inc()
	}
}

// refusalLabel names the refusals that users of dashboards know from elsewhere
// by those words; the rest have our own.
func refusalLabel(reason string) string {
	switch reason {
	case "max_body", "record_too_large":
		return "body_too_large"
	case "":
		return otherLabel
	}
	return reason
}

func (s *series) toolLabel(e entry) string {
	if e.plain {
		return otherLabel
	}
	return s.tools.label(e.tool)
}

// decided counts a decision of the policy; nil: it was not asked.
func (s *series) decided(p *auditlog.Policy) {
	if p != nil {
		s.decisions.WithLabelValues(p.Decision).Inc()
	}
}

// learn makes the tools of a list known, so that they have their own series.
func (s *series) learn(result []byte) { mcp.ToolNames(result, s.tools.add) }

// retried counts a repeated attempt to reach a server. Whether the server had
// answered the one before is all that is seen of why.
func (s *series) retried(answered bool) {
	reason := "network"
	if answered {
		reason = "unknown"
	}
	s.retries.WithLabelValues(reason).Inc()
}

// notTaken counts a message that the log could not take.
func (s *series) notTaken(forwarded bool) {
	action := "refused"
	if forwarded {
		action = "forwarded"
	}
	s.unavailable.WithLabelValues(action).Inc()
}

// committed counts a batch of records.
func (s *series) committed(backend string, c auditlog.BatchReport) {
	mode, status := "async", "ok"
	if c.Durability == auditlog.Durable {
		mode = "sync"
	}
	if c.Err != nil {
		status = "error"
	}
	s.writes.WithLabelValues(backend, mode, status).Inc()
	s.writeSeconds.WithLabelValues(backend, mode).Observe(c.Took.Seconds())
	if c.Records > 0 {
		s.batches.Inc()
		s.batchSize.Observe(float64(c.Records))
	}
}
