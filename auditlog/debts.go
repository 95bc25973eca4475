package auditlog

import (
	"slices"
	"time"

	"go.uber.org/zap"
)

// health is whether the log can be written.
type health struct {
	failing bool  // the last attempt failed
	full    bool  // the disk is full, and the reserve is in use
	retry   bool  // try again at once, once
	noted   bool  // the present failure has its record, or will have
	cause   error // why failing
	refused *RefusedError
}

// debts is what the log owes: records that it makes of itself, and outcomes
// that could not be written.
type debts struct {
	notices   []notice
	owed      []*entry
	owedBytes int
	missed    missed
	missedAll uint64 // since the log was opened
	torn      int64  // bytes moved aside since it was opened
}

// notice is a record that the log makes of itself.
type notice struct {
	kind    string
	members []member
}

// missed counts messages that were forwarded unrecorded.
type missed struct {
	count    uint64
	from, to time.Time
	reason   string // of the first
}

func (d *debts) any() bool {
	return len(d.notices) > 0 || len(d.owed) > 0 || d.missed.count > 0
}

// Missed counts n messages that were forwarded although they could not be
// recorded. As soon as the log can be written, a `gap` record says how many
// they were, from when to when, and why (the first reason counts).
func (l *Log) Missed(n int, reason string) {
	if n <= 0 {
		return
	}
	now := l.cfg.Now()
	l.mu.Lock()
	m := &l.debts.missed
	if m.count == 0 {
		m.from, m.reason = now, reason
	}
	m.count += uint64(n)
	m.to = now
	l.debts.missedAll += uint64(n)
	l.mu.Unlock()
	l.queue.signal()
}

// addNotice plans a record of the log's own.
func (l *Log) addNotice(n notice, torn int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.debts.notices = append(l.debts.notices, n)
	l.debts.torn += torn
}

// announcements are the records that the log makes of itself, and what to do
// when they are written. A full disk's last space is not for gaps.
func (l *Log) announcements(full bool) (list []*entry, said func()) {
	now := l.cfg.Now()
	add := func(kind string, members ...member) {
		list = append(list, &entry{draft: record(kind, newStamp(now), members...)})
	}
	if l.pos.next == 0 {
		members := originMembers(l.pos.origin, l.vkey, l.pos.keyID, l.cfg.KeyMode, l.cfg.ConfigSHA256, l.pos.segment)
		add(kindGenesis, append(members, textMember("run", l.run), importMember(l.cfg.Import))...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	notices := len(l.debts.notices)
	for _, n := range l.debts.notices {
		add(n.kind, slices.Clone(n.members)...)
		if n.kind == kindDiskFull {
			list = append(list, &entry{kind: checkpointEntry})
		}
	}
	gap := l.debts.missed
	if full {
		gap = missed{}
	}
	if gap.count > 0 {
		add(kindGap, timeMember("from", gap.from), timeMember("to", gap.to), numberMember("count", gap.count), textOrNone("reason", gap.reason))
	}
	return list, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.debts.notices = slices.Delete(l.debts.notices, 0, notices)
		if l.debts.missed.count -= gap.count; l.debts.missed.count == 0 {
			l.debts.missed = missed{}
		} else if gap.count > 0 {
			l.debts.missed.from = gap.to
		}
	}
}

// owe keeps an outcome that could not be written. Beyond the bound of the
// queue its payloads are kept as $trunc.
func (l *Log) owe(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.owed {
		return
	}
	if e.shrink != nil && l.debts.owedBytes+e.size() > l.cfg.QueueBytes {
		if d, err := e.shrink(); err == nil {
			e.recycle()
			e.draft = d
		}
	}
	e.owed, e.shrink = true, nil
	l.debts.owed = append(l.debts.owed, e)
	l.debts.owedBytes += e.size()
}

// owed returns what is owed, in groups that fit into one batch.
func (l *Log) owed() (groups [][]*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, start := 0, 0
	list := slices.Clone(l.debts.owed)
	for i, e := range list {
		if i > start && (size+e.size() > maxBatchBytes || i-start == maxQueue) {
			groups = append(groups, list[start:i])
			size, start = 0, i
		}
		size += e.size()
	}
	if start < len(list) {
		groups = append(groups, list[start:])
	}
	return groups
}

// paid takes a written outcome off the list.
func (l *Log) paid(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !e.owed {
		return
	}
	e.owed = false
	if i := slices.Index(l.debts.owed, e); i >= 0 {
		l.debts.owed = slices.Delete(l.debts.owed, i, i+1)
		l.debts.owedBytes -= e.size()
	}
}

// abandon closes an operation whose caller never got it.
func (l *Log) abandon(op *Operation, result Result, reason string) {
	if op.ended.Swap(true) {
		return
	}
	e, err := op.outcome(Outcome{Result: result, Reason: reason, Duration: time.Since(op.began)})
	if err != nil {
		l.log.Error("an abandoned operation could not be closed", zap.String("log", l.store.Path()), zap.Error(err))
		return
	}
	l.owe(e)
}

// orphan returns the outcome for an intent of this run that was found in the
// log although its write had failed: nobody waits for it. posMu is held.
func (l *Log) orphan(f folded, line []byte) *entry {
	if f.kind != kindIntent || f.intent.run != l.run || l.ops[f.intent.seq] != nil {
		return nil
	}
	d, err := unknownOutcome(f.intent, line, l.run, InternalError, "the request was refused: writing its record had failed", newStamp(l.cfg.Now()))
	if err != nil {
		return nil
	}
	return &entry{draft: d, kind: outcomeEntry, intentSeq: f.intent.seq}
}

// note keeps a refusal: nothing is written any more.
func (l *Log) note(err error) error {
	if err == nil {
		return nil
	}
	refused, ok := asRefused(err)
	if !ok && isReplaced(err) {
		refused, ok = l.refuse("lock_replaced", err.Error()), true
	}
	if !ok {
		return err
	}
	l.mu.Lock()
	first := l.health.refused == nil
	if first {
		l.health.refused = refused
	}
	l.mu.Unlock()
	if first {
		l.log.Error("the audit log is not continued", zap.Error(refused))
	}
	return refused
}

func (l *Log) refused() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health.refused != nil {
		return l.health.refused
	}
	return nil
}

// settle takes in how an attempt to write went, and says so when it changed.
func (l *Log) settle(err error) {
	l.mu.Lock()
	was := l.health.failing
	l.health.failing, l.health.cause = err != nil, err
	if err == nil {
		l.health.noted = false
	}
	l.mu.Unlock()
	switch {
	case err != nil && !was:
		l.log.Error("the audit log cannot be written", zap.String("log", l.store.Path()), zap.Error(err))
	case err == nil && was:
		l.log.Info("the audit log can be written again", zap.String("log", l.store.Path()))
	}
}

// unwell returns why not everything was written, for Close.
func (l *Log) unwell() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.health.refused != nil {
		return l.health.refused
	}
	if l.debts.any() {
		return unavailable(l.health.cause)
	}
	return nil
}
