package auditlog

import "fmt"

// beginEvolving gives a log's first position its key, if keys evolve.
func (l *Log) beginEvolving(p *position) error {
	if l.cfg.KeyMode != Evolving {
		return nil
	}
	k0, err := l.cfg.macKey(p.keyID)
	if err != nil {
		return fmt.Errorf("opening audit log %s: %w; make one with `mcp-audit keygen`, keep a copy of it elsewhere, and start again", l.store.Path(), err)
	}
	p.key, p.blind = k0, blindKey(k0)
	return nil
}

// eraseFirstKey takes K_0 out of the keyring and its file once the state has
// the key. What a disk keeps of an erased file is beyond it.
func (l *Log) eraseFirstKey() error {
	if l.cfg.KeyMode != Evolving || l.probing {
		return nil
	}
	return l.cfg.Keys.erase(l.pos.keyID)
}

// evolveDue reports whether the committer is to go on to the next key: at a
// start, and when the epoch is long enough.
func (l *Log) evolveDue() bool {
	if l.cfg.KeyMode != Evolving || l.closing.Load() {
		return false
	}
	now, c := l.cfg.Now(), &l.commits
	l.posMu.Lock()
	defer l.posMu.Unlock()
	return l.pos.next > 0 && !l.pos.ended && (!c.evolved || c.unsaved || l.epochDue(now))
}

// endEpoch goes on to the next key if that is due. All locks are held.
func (l *Log) endEpoch() error {
	if !l.evolveDue() {
		return nil
	}
	return l.evolve()
}

// evolve ends the epoch, makes that durable, and puts the state with the next
// key in its place before anything is sealed with it. All locks are held.
func (l *Log) evolve() error {
	c := &l.commits
	if !c.unsaved {
		if c.evolved && l.pos.next == c.epochs.first {
			// Silence says something, too: the epoch's number follows the time.
			if err := l.appendHeartbeat(l.cfg.Now()); err != nil {
				return err
			}
		}
		if err := l.appendEpochEnd(l.cfg.Now()); err != nil {
			return err
		}
		c.evolved, c.unsaved = true, true
	}
	if err := l.flushClosed(); err != nil {
		return err
	}
	if err := l.saveTurn(); err != nil {
		l.diskFailed("epoch", err, l.pos.offset)
		return err
	}
	c.unsaved = false
	return nil
}
