package caddymodule

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/ratelimit"
)

// logs holds one sharedLog per log file of the process, keyed by absolute
// path. It outlives configurations: overlapping ones write one chain.
var logs = caddy.NewUsagePool()

// unsealed holds every sharedLog until it is sealed. The pool forgets one before
// that: the goroutine that gave the last reference back is still closing it.
var unsealed sync.Map

// sharedLog is an audit log and what belongs to it beyond one configuration:
// the operations that are open, the sessions seen and the joining of refusals.
type sharedLog struct {
	path     string
	open     openOps
	sessions sessionTable
	tools    toolHeaders
	notes    toolAnnotations
	tasks    taskOrigins
	refusals refusalJoiner
	limits   *ratelimit.Store
	acquired time.Time
	outage   outage
	series   *seriesLease
	watched  watched
	// finishing counts the exchanges whose answer is with the client, or about
	// to be, and not recorded yet.
	finishing atomic.Int64

	mu       sync.Mutex
	log      *auditlog.Log
	settings *logSettings
	stopped  bool
	failed   error
	failedAt time.Time
}

// lease is one reference to a sharedLog. The app holds one per configured log,
// each exchange and each open operation holds its own, so that the log is
// closed when the last of them ends, in whatever order they do.
type lease struct {
	*sharedLog
	once sync.Once
}

// acquire takes a reference. It opens nothing: Provision and `caddy validate`
// must leave no trace, and so it cannot fail.
func acquire(path string) *lease {
	v, _, _ := logs.LoadOrNew(path, func() (caddy.Destructor, error) {
		s := &sharedLog{path: path, series: acquireSeries(), limits: ratelimit.NewStore(), acquired: time.Now()}
		s.refusals.flush = s.recordJoined
		unsealed.Store(s, nil)
		s.sessions.ended = func(key sessionKey) { s.open.endScope(scopeOf(key), sessionEnded) }
		return s, nil
	})
	return &lease{sharedLog: v.(*sharedLog)}
}

// release gives the reference back; only the first call counts.
func (l *lease) release() {
	l.once.Do(func() {
		// The error of closing a log is logged by Destruct, which knows the log.
		_, _ = logs.Delete(l.path)
	})
}

// retryOpen is how long a failed opening is remembered, so that a flood of
// requests does not open a broken log over and over.
const retryOpen = time.Second

var errStopped = errors.New("the server is shutting down")

// start opens the log with the given settings, or applies them to the open one.
func (s *sharedLog) start(ctx context.Context, settings *logSettings) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if s.log == nil {
		return s.openLocked(ctx, settings)
	}
	if !s.log.Status().Refused {
		return s.applyLocked(ctx, settings)
	}
	// Nothing is written to it any more. Opening it anew goes on if the operator
	// has put things right, and fails the load with the remedy if not.
	if err := s.log.Close(ctx); err != nil {
		settings.logger.Debug("closing a refused log", zap.Error(err))
	}
	s.log = nil
	return s.openLocked(ctx, settings)
}

// opened returns the log, opening it if the app has not come to it yet: apps
// start in random order, and the first request may be faster.
func (s *sharedLog) opened(ctx context.Context, settings *logSettings) (*auditlog.Log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, errStopped
	}
	if s.log == nil {
		if s.failed != nil && time.Since(s.failedAt) < retryOpen {
			return nil, s.failed
		}
		if err := s.openLocked(ctx, settings); err != nil {
			return nil, err
		}
	}
	return s.log, nil
}

func (s *sharedLog) openLocked(ctx context.Context, settings *logSettings) error {
	cfg, err := settings.auditConfig()
	cfg.Observe = func(c auditlog.BatchReport) { s.series.committed(settings.backend(), c) }
	if err == nil {
		s.log, err = auditlog.Open(context.WithoutCancel(ctx), cfg)
		if err != nil && cfg.Copier != nil {
			err = errors.Join(err, cfg.Copier.Close())
		}
	}
	if err == nil {
		if err = s.anchorLocked(ctx, settings); err != nil {
			err = errors.Join(err, s.log.Close(ctx))
			s.log = nil
		}
	}
	if err != nil {
		s.failed, s.failedAt = err, time.Now()
		return err
	}
	s.failed, s.settings = nil, settings
	return nil
}

// applyLocked makes an open log follow a new configuration. What may change is
// recorded; the name and the secret may not change under an open log.
func (s *sharedLog) applyLocked(ctx context.Context, settings *logSettings) error {
	if s.settings.identity != settings.identity {
		return fmt.Errorf("log %s: its output, name, keys, key_mode, secret or compat changed, but it is open with the former ones; restart Caddy to apply them", s.path)
	}
	if err := s.rekeyLocked(ctx, settings); err != nil {
		return fmt.Errorf("log %s: %w", s.path, err)
	}
	if from := s.settings.digest; from != settings.digest {
		if err := s.log.Config(ctx, from, settings.digest, "reload"); err != nil {
			return fmt.Errorf("log %s: recording the changed configuration: %w", s.path, err)
		}
		s.log.SetCommit(settings.commit)
		s.log.SetOptions(settings.durability, settings.CheckpointRecords, time.Duration(settings.CheckpointInterval))
		if err := s.log.SetRotation(settings.rotation); err != nil {
			return err
		}
		if err := s.anchorLocked(ctx, settings); err != nil {
			return err
		}
	}
	if err := s.recordPoliciesLocked(ctx, settings); err != nil {
		return fmt.Errorf("log %s: recording the changed policy: %w", s.path, err)
	}
	s.settings = settings
	return nil
}

// rekeyLocked rotates the keys of an open log if a new configuration names
// others.
func (s *sharedLog) rekeyLocked(ctx context.Context, settings *logSettings) error {
	was := s.settings
	given := !bytes.Equal(was.signingKey, settings.signingKey)
	if !given && was.KeyID == settings.KeyID {
		return nil
	}
	if given && (was.signingKey == nil || settings.signingKey == nil) {
		return errors.New("its signing key moved between the Caddyfile and the key file, but it is open with the former one; restart Caddy to apply that")
	}
	var r auditlog.KeyRotation
	if given {
		r.SigningKey = settings.signingKey
	} else if was.signingKey != nil {
		return errors.New("key_id changed, but key did not; give a new key, too, to rotate the keys")
	}
	if was.KeyID != settings.KeyID {
		r.KeyID = settings.KeyID
	}
	_, err := s.log.RotateKey(ctx, r)
	return err
}

// anchorLocked gives the open log the anchors of the settings, and ends those
// that it had.
func (s *sharedLog) anchorLocked(ctx context.Context, settings *logSettings) error {
	set, err := settings.anchorSet(s.log)
	if err != nil {
		return err
	}
	before := s.log.SetAnchors(set)
	if before == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), anchorTimeout)
	defer cancel()
	if err := before.Close(ctx); err != nil {
		settings.logger.Warn("an anchor was taken out of service before it had the newest checkpoint", zap.String("log", s.path), zap.Error(err))
	}
	return nil
}

// anchorTimeout bounds how long a reload waits for anchors that it replaces.
const anchorTimeout = 2 * time.Second

// current returns the open log, or nil.
func (s *sharedLog) current() *auditlog.Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log
}

// shutdown ends every open operation, seals the log and refuses new ones. It
// runs when the process exits; a reload never calls it.
func (s *sharedLog) shutdown(ctx context.Context) {
	s.mu.Lock()
	log := s.log
	s.stopped = true
	s.mu.Unlock()
	s.awaitFinishing(ctx)
	s.open.endAll(auditlog.InternalError, "shutdown")
	s.sessions.stop()
	s.refusals.stop()
	if log == nil {
		return
	}
	if err := log.Close(ctx); err != nil {
		caddy.Log().Named("mcp_audit").Error("closing the audit log", zap.String("log", s.path), zap.Error(err))
	}
}

// finishTime bounds how long a shutdown waits for answers that are with their
// clients to be recorded as such. It takes well under a millisecond.
const finishTime = time.Second

func (s *sharedLog) awaitFinishing(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.finishing.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Destruct closes the log when its last reference is gone. It implements
// caddy.Destructor.
func (s *sharedLog) Destruct() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	s.shutdown(ctx)
	unsealed.Delete(s)
	s.series.release()
	return nil
}

// closeTimeout bounds the sealing of a log at exit.
const closeTimeout = 5 * time.Second

// shutdownAll is shutdown for every log of the process, also for one that is
// being closed already.
func shutdownAll(ctx context.Context) {
	var all []*sharedLog
	unsealed.Range(func(s, _ any) bool {
		all = append(all, s.(*sharedLog))
		return true
	})
	for _, s := range all {
		s.shutdown(ctx)
	}
}

// fingerprint hashes parts unambiguously.
func fingerprint(parts ...[]byte) auditlog.Hash {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	return auditlog.Hash(h.Sum(nil))
}
