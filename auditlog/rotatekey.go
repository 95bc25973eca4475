package auditlog

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// KeyRotation says which keys a log goes over to.
type KeyRotation struct {
	// KeyID names the new keys. "": the current id with its number raised by
	// one, as in k2 after k1.
	KeyID string
	// SigningKey is the new Ed25519 key. nil: a random one is made and kept in
	// the keyring. It is needed if Config.SigningKey is set, and only then.
	SigningKey ed25519.PrivateKey
}

// RotateKey goes over to new keys while the log is in use. The new keys are in
// the keyring's file before the log says so; the record key_rotation, which the
// old and the new Ed25519 key sign, is the last one that the old keys seal. It
// returns the new public key (vkey) when that record is durable.
//
// With a Secret, the new MAC key is derived from it and from the new id; without
// one a random MAC key is made. Other processes that write to the log follow if
// they find the new keys in the keyring's file. Session hashes made with the
// new keys differ from those made before.
func (l *Log) RotateKey(ctx context.Context, r KeyRotation) (vkey string, err error) {
	if l.closing.Load() {
		return "", unavailable(ErrClosed)
	}
	keys, err := l.newKeys(r)
	if err != nil {
		return "", fmt.Errorf("rotating the keys of audit log %s: %w", l.store.Path(), err)
	}
	e := &entry{kind: keyEntry, keys: keys}
	if _, err := l.submit(ctx, e); err != nil {
		return "", fmt.Errorf("rotating the keys of audit log %s: %w", l.store.Path(), err)
	}
	if err := l.persist(); err != nil {
		return "", unavailable(err)
	}
	return keys.vkey, nil
}

// newKeys are the keys that a rotation goes over to.
type newKeys struct {
	keyID   string
	k0      []byte
	private ed25519.PrivateKey
	signer  note.Signer
	vkey    string
}

func (l *Log) newKeys(r KeyRotation) (*newKeys, error) {
	st := l.Status()
	k := &newKeys{keyID: r.KeyID, private: r.SigningKey}
	if k.keyID == "" {
		k.keyID = NextKeyID(st.KeyID)
	}
	explicit := len(l.cfg.SigningKey) > 0
	switch {
	case l.cfg.KeyMode == Evolving:
		return nil, errors.New("its keys evolve, and a new first key could not be kept elsewhere before it is used; begin a new log")
	case !ValidKeyID(k.keyID):
		return nil, fmt.Errorf("key id %q is not 1 to 64 of a-z, 0-9, _ and -", k.keyID)
	case k.keyID == st.KeyID:
		return nil, fmt.Errorf("the log is sealed with the keys %q already; choose another key id", k.keyID)
	case explicit && len(k.private) != ed25519.PrivateKeySize:
		return nil, errors.New("its signing key was given by the configuration, so the new one must be given, too")
	case !explicit && k.private != nil:
		return nil, errors.New("its signing key is in its key file, so the new one is made there and cannot be given")
	}
	if !explicit || l.cfg.Secret == nil {
		if err := l.cfg.Keys.rotate(k.keyID, l.cfg.Secret == nil); err != nil {
			return nil, err
		}
	}
	var err error
	if k.k0, err = l.cfg.macKey(k.keyID); err != nil {
		return nil, err
	}
	if !explicit {
		var ok bool
		if k.private, ok = l.cfg.Keys.SigningKey(k.keyID); !ok {
			return nil, fmt.Errorf("the keyring has no Ed25519 key %q", k.keyID)
		}
	}
	if k.signer, err = NoteSigner(st.Origin, k.private); err != nil {
		return nil, err
	}
	k.vkey, err = VKey(st.Origin, k.private.Public().(ed25519.PublicKey))
	return k, err
}

var numberedKey = regexp.MustCompile(`^(.*?)([0-9]*)(-i[0-9]+)?$`)

// NextKeyID is the key id that follows one: its number, raised by one, in front
// of that of the log's incarnation (k1-i2 becomes k2-i2).
func NextKeyID(keyID string) string {
	m := numberedKey.FindStringSubmatch(keyID)
	n, err := strconv.ParseUint(m[2], 10, 32)
	if err != nil {
		return m[1] + m[2] + "-2" + m[3]
	}
	return m[1] + strconv.FormatUint(n+1, 10) + m[3]
}

// writeKeys appends a key_rotation record and goes over to its keys. The commit
// lock is held.
func (l *Log) writeKeys(e *entry) error {
	now, k := l.cfg.Now(), e.keys
	e.written = true
	if k.keyID == l.pos.keyID {
		l.finish(e, fmt.Errorf("another process went over to the keys %q meanwhile", k.keyID))
		return nil
	}
	t := l.pos
	t.tree = l.pos.tree.Clone()
	text := fmt.Sprintf("auditlog/v3/key_rotation\n%s\n%d\n%s\n%s\n%s\n", t.origin, t.next, t.keyID, k.keyID, k.vkey)
	signed, err := note.Sign(&note.Note{Text: text}, l.signer, k.signer)
	if err != nil {
		l.finish(e, fmt.Errorf("signing the key rotation: %w", err))
		return nil
	}
	d := record(kindRotation, newStamp(now), textMember("new_key_id", k.keyID), textMember("new_vkey", k.vkey),
		textMember("note", string(signed)), textMember("run", l.run))
	e.seq, t.used = t.next, true
	if err := l.appendOne(&t, &d); err != nil {
		e.written = false
		return err
	}
	t.keyID, t.vkey, t.epoch = k.keyID, k.vkey, 0
	seal, err := newSealer(k.k0, t.origin, k.keyID, 0)
	if err != nil {
		return err
	}
	seal.find = l.cfg.macKey
	l.posMu.Lock()
	l.pos, l.seal, l.signer, l.vkey, l.keyed = t, seal, k.signer, k.vkey, k.keyID
	l.posMu.Unlock()
	if len(l.cfg.SigningKey) > 0 {
		l.cfg.SigningKey = k.private
	}
	l.enc.Store(&encoder{run: l.run, blind: newBlinder(blindKey(k.k0)), commit: l.options().commit})
	l.appended()
	return nil
}

// appendOne seals one record of the log's own behind t and appends it.
func (l *Log) appendOne(t *position, d *draft) error {
	c := &l.commits
	c.buf, c.pos = c.buf[:0], l.pos.offset
	l.sealRecord(t, d, false)
	if err := l.store.Append(c.buf, c.pos); err != nil {
		return l.writeFailed(err)
	}
	return nil
}

// appended notes that records were appended.
func (l *Log) appended() {
	l.noteUnchecked()
	l.sync.wake()
}

// epochs is what the committer remembers to end epochs and to break silence.
type epochs struct {
	keyID string
	epoch uint64
	first uint64    // records before the epoch
	began time.Time // when this writer first saw it
	next  uint64    // records when something was last appended
	quiet time.Time // when that was seen
}

// watch takes in what was appended since.
func (c *epochs) watch(p *position, now time.Time) {
	if c.began.IsZero() || c.keyID != p.keyID || c.epoch != p.epoch {
		c.keyID, c.epoch, c.first, c.began = p.keyID, p.epoch, p.next, now
	}
	if c.quiet.IsZero() || c.next != p.next {
		c.next, c.quiet = p.next, now
	}
}

// epochDue and heartbeatDue report whether the record is to be written now.
// posMu is held, or the commit lock.
func (l *Log) epochDue(now time.Time) bool {
	c, cfg := &l.commits.epochs, &l.cfg
	if l.pos.next == 0 || l.pos.ended || c.began.IsZero() {
		return false
	}
	return cfg.EpochEvery > 0 && l.pos.next-c.first >= uint64(cfg.EpochEvery) ||
		cfg.EpochAfter > 0 && now.Sub(c.began) >= cfg.EpochAfter && (l.pos.next > c.first || cfg.KeyMode == Evolving)
}

func (l *Log) heartbeatDue(now time.Time) bool {
	c := &l.commits.epochs
	return l.cfg.Heartbeat > 0 && l.pos.next > 0 && !l.pos.ended && !c.quiet.IsZero() && now.Sub(c.quiet) >= l.cfg.Heartbeat
}

// idleDue reports whether an epoch is to end or silence to be broken although
// nothing is to be recorded. The committer calls it.
func (l *Log) idleDue() bool {
	now := l.cfg.Now()
	l.posMu.Lock()
	defer l.posMu.Unlock()
	return !l.closing.Load() && (l.epochDue(now) || l.heartbeatDue(now))
}

// idleTick is how long the committer may sleep before idleDue.
func (l *Log) idleTick() time.Duration {
	c, now, tick := &l.commits.epochs, l.cfg.Now(), time.Hour
	if l.cfg.EpochAfter > 0 && !c.began.IsZero() {
		tick = min(tick, c.began.Add(l.cfg.EpochAfter).Sub(now))
	}
	if l.cfg.Heartbeat > 0 && !c.quiet.IsZero() {
		tick = min(tick, c.quiet.Add(l.cfg.Heartbeat).Sub(now))
	}
	return max(tick, 10*time.Millisecond)
}

// writeIdle appends the heartbeat and the epoch_end that are due. The commit
// lock is held.
func (l *Log) writeIdle() error {
	now := l.cfg.Now()
	l.commits.epochs.watch(&l.pos, now)
	if l.heartbeatDue(now) {
		if err := l.appendHeartbeat(now); err != nil {
			return err
		}
	}
	if l.cfg.KeyMode == Evolving || !l.epochDue(now) {
		return nil
	}
	return l.appendEpochEnd(now)
}

func (l *Log) appendHeartbeat(now time.Time) error {
	t := l.pos
	t.tree = l.pos.tree.Clone()
	d := record(kindHeartbeat, newStamp(now), textMember("run", l.run))
	if err := l.appendOne(&t, &d); err != nil {
		return err
	}
	l.setPosition(t)
	l.appended()
	l.commits.epochs.watch(&l.pos, now)
	return nil
}

// appendEpochEnd ends the epoch. The commit lock is held.
func (l *Log) appendEpochEnd(now time.Time) error {
	t := l.pos
	t.tree = l.pos.tree.Clone()
	d := record(kindEpochEnd, newStamp(now), numberMember("epoch", t.epoch))
	if err := l.appendOne(&t, &d); err != nil {
		return err
	}
	t.epoch++
	seal := l.seal.clone()
	seal.evolve(t.origin)
	if t.key != nil {
		t.key = seal.key
	}
	l.posMu.Lock()
	l.pos, l.seal = t, seal
	l.posMu.Unlock()
	l.appended()
	l.commits.epochs.watch(&l.pos, now)
	return nil
}
