package auditlog

import (
	"strings"
	"sync"
)

// macKeys finds the MAC keys of a log. It is safe for concurrent use.
type macKeys struct {
	keyring *Keyring // nil, or with MAC keys
	secret  []byte
	keyID   string

	mu     sync.Mutex
	chosen bool
	// derived: keys come from the secret. Decided once, by the first record.
	derived bool
	ladders map[ladderID]*keyLadder
	steps   int
}

type ladderID struct{ origin, keyID string }

// keyLadder is the newest epoch key that was derived for a key id.
type keyLadder struct {
	epoch uint64
	key   []byte // K_epoch
}

// The bounds of key derivation, against logs that claim absurd epochs: how far
// one lookup may advance, and all lookups together.
const (
	maxEpochStep  = 1 << 10
	maxEpochSteps = 1 << 22
)

func newMACKeys(o *VerifyOptions) *macKeys {
	k := &macKeys{keyID: o.KeyID, ladders: map[ladderID]*keyLadder{}, secret: o.Secret}
	if o.Keys != nil && len(o.Keys.MACKeyIDs()) > 0 {
		k.keyring = o.Keys
	}
	k.derived = k.keyring == nil
	k.chosen = k.keyring == nil || len(o.Secret) == 0
	return k
}

// available reports whether MACs can be checked at all.
func (k *macKeys) available() bool { return k.keyring != nil || len(k.secret) > 0 }

// choose decides, by a first record, whether keys come from the keyring or
// from the secret, if both are given.
func (k *macKeys) choose(origin string, s *Seal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chosen {
		return
	}
	k.chosen = true
	for _, k.derived = range []bool{false, true} {
		key := k.base(s.KeyID)
		if key == nil || s.Epoch > maxEpoch {
			continue
		}
		if sealer, err := newSealer(key, origin, s.KeyID, s.Epoch); err == nil && sealer.checks(&Line{Seal: *s}) {
			return
		}
	}
	k.derived = false
}

// base returns K_0 of a key id, or nil.
func (k *macKeys) base(kid string) []byte {
	if k.derived {
		if len(k.secret) == 0 || k.keyID != "" && kid != k.keyID && !strings.HasPrefix(kid, k.keyID+"-i") {
			return nil
		}
		return StaticKey(k.secret, kid)
	}
	key, _ := k.keyring.MACKey(kid)
	return key
}

// known reports whether a key id is one that this verifier has a key for, by
// other means than the log's own word: named says that the log named it.
func (k *macKeys) known(kid string, named bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.derived {
		return named && (len(k.secret) == 0 || k.base(kid) != nil)
	}
	return k.base(kid) != nil
}

// macKey returns the MAC key of an epoch, or nil if there is none or it is too
// far from the last one that was asked for.
func (k *macKeys) macKey(origin, kid string, epoch uint64) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := ladderID{origin, kid}
	l := k.ladders[id]
	if l == nil || l.epoch > epoch {
		key := k.base(kid)
		if key == nil {
			return nil
		}
		l = &keyLadder{key: key}
	}
	if epoch-l.epoch > maxEpochStep || k.steps > maxEpochSteps {
		return nil
	}
	next := *l
	for next.epoch < epoch {
		next.epoch++
		next.key = evolveKey(next.key, origin, next.epoch)
		k.steps++
	}
	if len(k.ladders) < 1024 {
		k.ladders[id] = &next
	}
	return macKey(next.key)
}

// epochZero returns K_0 of a key id, or nil.
func (k *macKeys) epochZero(kid string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.base(kid)
}

// cachedMacer holds the MAC state of the key that a worker used last. It is
// not safe for concurrent use.
type cachedMacer struct {
	id    ladderID
	epoch uint64
	m     *macer
}

// get returns the MAC state for a record, or nil. A worker that asks too far
// ahead gets nil; the judge, who knows the current epoch, checks such records.
func (c *cachedMacer) get(keys *macKeys, origin, kid string, epoch uint64) *macer {
	if c.m != nil && c.epoch == epoch && c.id.keyID == kid && c.id.origin == origin {
		return c.m
	}
	if keys == nil || !keys.available() {
		return nil
	}
	key := keys.macKey(origin, kid, epoch)
	if key == nil {
		return nil
	}
	c.id, c.epoch, c.m = ladderID{origin, kid}, epoch, newMacer(key)
	return c.m
}
