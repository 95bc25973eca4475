package auditlog

import "time"

// Status is how a log is at one moment.
type Status struct {
	// Healthy says that the last attempt to write succeeded. Err is why not,
	// and its remedy.
	Healthy bool   `json:"healthy"`
	Err     string `json:"error,omitempty"`
	// Refused says that what lies on the disk is not what this writer left
	// there. Nothing is written until the log is opened anew.
	Refused bool `json:"refused"`

	Path   string `json:"path"`
	Origin string `json:"origin"`
	KeyID  string `json:"key_id"`
	VKey   string `json:"vkey"` // the public key that checkpoints are verified with
	Run    string `json:"run"`  // this writer

	// The watermarks, in records. Records is also the seq of the next record.
	// Records below Durable are on the disk; those below Checkpointed are
	// covered by a signed checkpoint (0: none was seen yet).
	Records      uint64 `json:"records"`
	Durable      uint64 `json:"durable"`
	Checkpointed uint64 `json:"checkpointed"`
	// UncheckedSince is when the oldest record that no checkpoint covers was
	// seen; zero if there is none.
	UncheckedSince time.Time `json:"unchecked_since,omitzero"`
	// CheckpointTime is when the newest checkpoint was written or first seen,
	// since the log was opened.
	CheckpointTime time.Time `json:"checkpoint_time,omitzero"`
	Segment        uint64    `json:"segment"` // number of the log's file, from 0
	Bytes          int64     `json:"bytes"`   // size of the log's file

	OpenOperations int    `json:"open_operations"` // of this writer
	OpenIntents    int    `json:"open_intents"`    // of all writers
	Owed           int    `json:"owed"`            // outcomes that could not be written yet
	OwedBytes      int    `json:"owed_bytes"`
	Queued         int    `json:"queued"`
	QueuedBytes    int    `json:"queued_bytes"`
	QueueLimit     int    `json:"queue_limit"`    // bytes
	QueueWaits     uint64 `json:"queue_waits"`    // of callers, for space in the queue, since the log was opened
	Missed         uint64 `json:"missed"`         // forwarded unrecorded, since the log was opened
	MissedPending  uint64 `json:"missed_pending"` // of those, not yet in a gap record
	RepeatedEnds   uint64 `json:"repeated_ends"`  // calls of Operation.End beyond the first
	TornBytes      int64  `json:"torn_bytes"`     // of interrupted writes, moved aside since the log was opened

	Anchors []AnchorStatus `json:"anchors,omitempty"`
	Copy    *CopyStatus    `json:"copy,omitempty"` // of the Copier, if there is one
}

// Status reports how the log is. It waits for no disk.
func (l *Log) Status() Status {
	var s Status
	l.posMu.Lock()
	s.Origin, s.KeyID, s.Records, s.Checkpointed, s.Bytes = l.pos.origin, l.pos.keyID, l.pos.next, l.pos.checkpointed, l.pos.offset
	s.Segment, s.VKey = l.pos.segment, l.vkey
	s.OpenOperations, s.OpenIntents = len(l.ops), len(l.pos.open)
	s.CheckpointTime = l.checkpointTime
	l.posMu.Unlock()
	s.Path, s.Run = l.store.Path(), l.run
	s.Durable = l.sync.durable.Load()
	s.RepeatedEnds = l.repeated.Load()
	s.Queued, s.QueuedBytes, s.QueueWaits = l.queue.length()
	s.QueueLimit = l.queue.limit
	var blocked error
	if set := l.anchorSet(); set != nil {
		s.Anchors, blocked = set.Status(), set.Blocked()
	}
	if l.cfg.Copier != nil {
		c := l.cfg.Copier.Status()
		s.Copy = &c
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.UncheckedSince = l.unchecked
	s.Owed, s.OwedBytes = len(l.debts.owed), l.debts.owedBytes
	s.Missed, s.MissedPending, s.TornBytes = l.debts.missedAll, l.debts.missed.count, l.debts.torn
	switch {
	case l.health.refused != nil:
		s.Err, s.Refused = l.health.refused.Error(), true
	case l.health.failing && l.health.cause != nil:
		s.Err = l.health.cause.Error()
	case blocked != nil:
		s.Err = blocked.Error()
	default:
		s.Healthy = !l.health.failing
	}
	return s
}
