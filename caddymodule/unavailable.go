package caddymodule

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// outage counts what a log that cannot be written cost, and keeps the server's
// log to one line a change of state and one a minute. Safe for concurrent use.
type outage struct {
	forwarded atomic.Uint64 // forwarded unrecorded, under allow
	refused   atomic.Uint64 // not forwarded
	lastLine  atomic.Int64  // Unix seconds
}

// unavailable notes one message that could not be recorded.
func (s *sharedLog) unavailable(forwarded bool, cause error, logger *zap.Logger) {
	s.series.notTaken(forwarded)
	if forwarded {
		s.outage.forwarded.Add(1)
		if log := s.current(); log != nil {
			log.Missed(1, cause.Error())
		}
	} else {
		s.outage.refused.Add(1)
	}
	now := time.Now().Unix()
	last := s.outage.lastLine.Load()
	if now-last < 60 || !s.outage.lastLine.CompareAndSwap(last, now) {
		return
	}
	logger.Error("the audit log cannot be written; calls are handled as on_failure says",
		zap.String("log", s.path), zap.Error(cause),
		zap.Uint64("forwarded_unrecorded", s.outage.forwarded.Load()),
		zap.Uint64("refused", s.outage.refused.Load()))
}
