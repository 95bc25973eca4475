package auditlog

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// AnchorSet takes a log's checkpoints to where its writer cannot change them.
// Package auditlog/anchor implements it. All methods are safe for concurrent
// use, and only Close waits.
type AnchorSet interface {
	// Offer hands over a checkpoint whose records are all durable. A newer one
	// takes the place of one that still waits.
	Offer(note []byte)
	// Blocked is why no new record may be taken: a required anchor fails. It is
	// nil as long as all required anchors work.
	Blocked() error
	// Alarm is why no checkpoint may be signed any more: an anchor holds what
	// contradicts the log. nil: none does.
	Alarm() error
	// Status says how each anchor is.
	Status() []AnchorStatus
	// Close hands over what still waits, as far as ctx allows, and ends.
	Close(ctx context.Context) error
}

// AnchorStatus is how one anchor is at one moment.
type AnchorStatus struct {
	Type     string    `json:"type"` // file, witness or command
	Name     string    `json:"name"`
	Required bool      `json:"required,omitempty"`
	Size     uint64    `json:"size"`             // records that it covers, since the log was opened or by its receipt
	Time     time.Time `json:"time,omitzero"`    // when it took them
	Waiting  uint64    `json:"waiting,omitzero"` // records of the checkpoint that it has yet to take
	Err      string    `json:"error,omitempty"`  // why the last attempt failed
	Alarm    bool      `json:"alarm,omitempty"`  // it holds what contradicts the log
}

// AnchorAlarm is the error of an anchor that holds what contradicts the log.
type AnchorAlarm struct {
	Finding string // the verifier's name for it: anchor_ahead, anchor_mismatch or anchor_equivocation
	Why     string
}

// Error is one sentence with the finding and the remedy.
func (a *AnchorAlarm) Error() string {
	return fmt.Sprintf("%s (%s); no further checkpoint is signed: keep a copy of the log's folder and of the anchor, and run `mcp-audit verify --anchor` with it", a.Why, a.Finding)
}

// SetAnchors gives the log's checkpoints to a set from now on, beginning with
// the newest, and returns the set before, which the caller closes. The log
// closes the last one, behind its last checkpoint. nil: none.
func (l *Log) SetAnchors(set AnchorSet) (before AnchorSet) {
	l.mu.Lock()
	before, l.anchors = l.anchors, set
	l.mu.Unlock()
	l.posMu.Lock()
	note, size := l.pos.note, l.pos.checkpointed
	l.posMu.Unlock()
	if set != nil && len(note) > 0 && size <= l.sync.durable.Load() {
		set.Offer(note)
	}
	return before
}

func (l *Log) anchorSet() AnchorSet {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.anchors
}

// offer hands a durable checkpoint over.
func (l *Log) offer(note []byte) {
	if set := l.anchorSet(); set != nil && len(note) > 0 {
		set.Offer(note)
	}
}

// blocked is why a required anchor keeps new records from being taken.
func (l *Log) blocked() error {
	if set := l.anchorSet(); set != nil {
		return set.Blocked()
	}
	return nil
}

// mayTake is why a new record may not be taken.
func (l *Log) mayTake() error {
	if l.closing.Load() {
		return unavailable(ErrClosed)
	}
	return unavailable(l.blocked())
}

// alarm is why no checkpoint may be signed.
func (l *Log) alarm() error {
	if set := l.anchorSet(); set != nil {
		return set.Alarm()
	}
	return nil
}

// closeAnchors ends the anchors behind the log's last checkpoint.
func (l *Log) closeAnchors(ctx context.Context) error {
	set := l.anchorSet()
	if set == nil {
		return nil
	}
	if err := set.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("anchoring the last checkpoint: %w", err)
	}
	return nil
}
