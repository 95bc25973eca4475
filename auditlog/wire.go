package auditlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"
	"sync"
)

// blinder computes the keyed hashes that stand in records for what may be
// guessed: session ids and exact message bytes. It is safe for concurrent use.
type blinder struct{ macs sync.Pool }

// newBlinder takes BK, the blind key. Reusing HMAC states saves half the cost.
func newBlinder(bk []byte) *blinder {
	b := new(blinder)
	b.macs.New = func() any { return hmac.New(sha256.New, bk) }
	return b
}

func (b *blinder) sum16(label, data []byte) (out [16]byte) {
	m := b.macs.Get().(hash.Hash)
	m.Reset()
	m.Write(label)
	m.Write(data)
	var full [HashSize]byte
	copy(out[:], m.Sum(full[:0]))
	b.macs.Put(m)
	return out
}

var (
	sessionLabel = []byte("session\n")
	taskLabel    = []byte("task\n")
	wireLabel    = []byte("wire\n")
	wirePrefix   = []byte("auditlog/v3/wire\n")
)

func (b *blinder) session(id string) string { return b.handle(sessionLabel, id) }

// task is the keyed hash of a task id. Whoever knows such an id may ask for the
// task's result, so that a record must not show it.
func (b *blinder) task(id string) string { return b.handle(taskLabel, id) }

func (b *blinder) handle(label []byte, id string) string {
	if id == "" {
		return ""
	}
	h := b.sum16(label, []byte(id))
	return b64.EncodeToString(h[:])
}

// wire starts the salted hash of message bytes for the record with this nonce.
func (b *blinder) wire(nonce [16]byte) hash.Hash {
	salt := b.sum16(wireLabel, nonce[:])
	h := sha256.New()
	h.Write(wirePrefix)
	h.Write(salt[:])
	return h
}

// WireHash computes the salted hash of an answer's exact bytes while they
// pass, so that they need not be kept. It is not safe for concurrent use.
type WireHash struct {
	nonce [16]byte // of the outcome that will carry the hash
	h     hash.Hash
	n     int64
}

// Write adds bytes of the answer. It never fails.
func (w *WireHash) Write(p []byte) (int, error) {
	w.n += int64(len(p))
	return w.h.Write(p)
}

// Len is the number of bytes written so far.
func (w *WireHash) Len() int64 { return w.n }
