package caddymodule

import (
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

// The events that the product emits in Caddy's events app. Their data holds
// only what records hold, by the same names.
const (
	eventDenied            = "mcp_audit_denied"
	eventRateLimited       = "mcp_audit_rate_limited"
	eventDefinitionChanged = "mcp_audit_definition_changed"
	eventSinkFailed        = "mcp_audit_sink_failed"
	eventSinkRecovered     = "mcp_audit_sink_recovered"
	eventChainRefused      = "mcp_audit_chain_refused"
	eventCheckpointOverdue = "mcp_audit_checkpoint_overdue"
	eventAnchorFailed      = "mcp_audit_anchor_failed"
)

// eventNames are all of them.
var eventNames = []string{
	eventDenied, eventRateLimited, eventDefinitionChanged, eventSinkFailed, eventSinkRecovered,
	eventChainRefused, eventCheckpointOverdue, eventAnchorFailed,
}

// maxEvents bounds the events that wait for their handlers. A handler may be
// slow, a request must not wait for it: past the bound they are counted and
// dropped. The records have them all.
const maxEvents = 1024

// eventSender hands events to Caddy's events app, in order and off the path of
// requests.
type eventSender struct {
	app    *caddyevents.App
	ctx    caddy.Context
	series *series
	logger *zap.Logger

	queue chan pendingEvent
	quit  chan struct{}
	once  sync.Once
}

type pendingEvent struct {
	name string
	data map[string]any
}

func newEventSender(ctx caddy.Context, app *caddyevents.App, s *series) *eventSender {
	return &eventSender{
		app: app, ctx: ctx, series: s, logger: ctx.Logger(),
		queue: make(chan pendingEvent, maxEvents), quit: make(chan struct{}),
	}
}

func (s *eventSender) start() { go s.run() }

// stop ends the sender, without waiting for a handler that is at work. What is
// still queued is not sent.
func (s *eventSender) stop() { s.once.Do(func() { close(s.quit) }) }

func (s *eventSender) run() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.quit:
			return
		case e := <-s.queue:
			s.app.Emit(s.ctx, e.name, e.data)
		case now := <-ticker.C:
			eachLog(func(l *sharedLog) { s.watch(l, now) })
		}
	}
}

// send queues an event if anybody listens.
func (s *eventSender) send(name string, data func() map[string]any) {
	if s == nil || !s.app.ShouldEmit(name) {
		return
	}
	select {
	case s.queue <- pendingEvent{name, data()}:
	default:
		s.series.eventsDropped.Inc()
		s.logger.Warn("an event was dropped, because its handlers are too slow", zap.String("event", name))
	}
}

// refused tells of a request that the policy or a rate limit refused.
func (s *eventSender) refused(log string, e *auditlog.Event) {
	name := eventDenied
	if e.Result == auditlog.RateLimited {
		name = eventRateLimited
	}
	s.send(name, func() map[string]any {
		data := map[string]any{
			"log": log, "audit_operation_id": e.OperationID, "method": e.Method, "mcp_name": e.MCPName,
			"tool_name": e.ToolName, "client_id": e.ClientID, "server_id": e.ServerID,
		}
		if e.Policy != nil {
			data["rule_id"], data["reason"] = e.Policy.RuleID, e.Policy.Reason
		}
		if e.Principal != nil {
			data["subject"] = e.Principal.Subject
		}
		return data
	})
}

// definitionChanged tells of a tool whose definition is not the one that is
// pinned.
func (s *eventSender) definitionChanged(h *Handler, c *pins.Change) {
	s.send(eventDefinitionChanged, func() map[string]any {
		return map[string]any{
			"log": h.settings.name, "server_id": h.ServerID, "tool_name": h.redact.Text(c.Tool), "change": c.Kind, "from": h.redact.Text(c.From),
		}
	})
}

// watchEvery is how often the logs are looked at.
const watchEvery = 500 * time.Millisecond

// watched is what of a log's state has been told, across configurations.
type watched struct {
	mu                                sync.Mutex
	failed, refused, overdue, anchors bool
}

// watch tells what has changed of a log since the last look.
func (s *eventSender) watch(l *sharedLog, now time.Time) {
	l.mu.Lock()
	log, settings := l.log, l.settings
	l.mu.Unlock()
	if log == nil || settings == nil {
		return
	}
	st := log.Status()
	data := func() map[string]any {
		return map[string]any{"log": settings.name, "path": l.path, "error": st.Err, "records": st.Records, "checkpointed": st.Checkpointed}
	}
	l.watched.mu.Lock()
	defer l.watched.mu.Unlock()
	w := &l.watched
	if failed := !st.Healthy; failed != w.failed {
		w.failed = failed
		if failed {
			s.send(eventSinkFailed, data)
		} else {
			s.send(eventSinkRecovered, data)
		}
	}
	if st.Refused && !w.refused {
		s.send(eventChainRefused, data)
	}
	w.refused = st.Refused
	overdue := checkpointOverdue(settings, &st, now)
	if overdue && !w.overdue {
		s.send(eventCheckpointOverdue, data)
	}
	w.overdue = overdue
	failing := ""
	for _, a := range st.Anchors {
		if a.Err != "" {
			failing = a.Name + ": " + a.Err
		}
	}
	if failing != "" && !w.anchors {
		s.send(eventAnchorFailed, func() map[string]any {
			d := data()
			d["error"] = failing
			return d
		})
	}
	w.anchors = failing != ""
}

// checkpointOverdue reports whether a record has waited for its checkpoint far
// longer than configured.
func checkpointOverdue(settings *logSettings, st *auditlog.Status, now time.Time) bool {
	every := time.Duration(settings.CheckpointInterval)
	if every == 0 {
		every = auditlog.DefaultCheckpointAfter
	}
	return every > 0 && !st.UncheckedSince.IsZero() && now.Sub(st.UncheckedSince) > 3*every+time.Second
}
