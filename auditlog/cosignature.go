package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// The signature types of keys in signed notes (C2SP signed-note).
const (
	algEd25519     = 0x01 // a log's signature
	algCosignature = 0x04 // a witness's Ed25519 cosignature, with its time
)

// cosignatureSize is the length in bytes of a cosignature: u64 time ‖ Ed25519.
const cosignatureSize = 8 + ed25519.SignatureSize

// Cosigner is the public key of a witness (C2SP tlog-cosignature, Ed25519). It
// implements note.Verifier and is safe for concurrent use.
type Cosigner struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

// ParseCosigner reads a witness's verifier key: NAME+HASH+KEY with signature
// type 0x04, as `mcp-audit witness --print-vkey` prints it.
func ParseCosigner(vkey string) (*Cosigner, error) {
	name, alg, key, err := splitVKey(vkey)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the witness key %.200q is not a verifier key (%w); it has the form NAME+HASH+KEY, as `mcp-audit witness --print-vkey` prints it", vkey, err)
	case alg == algEd25519:
		return nil, fmt.Errorf("the key of %s is a log's key (type 0x01), not a witness's (0x04); take it from `mcp-audit witness --print-vkey`", name)
	case alg != algCosignature || len(key) != ed25519.PublicKeySize:
		return nil, fmt.Errorf("the witness key of %s has type 0x%02x; only Ed25519 cosignatures (0x04) are supported", name, alg)
	}
	return &Cosigner{name, noteKeyHash(name, algCosignature, key), key}, nil
}

// CosignerVKey is the verifier key text of a witness.
func CosignerVKey(name string, key ed25519.PublicKey) (string, error) {
	if !validNoteName(name) || len(key) != ed25519.PublicKeySize {
		return "", fmt.Errorf("%.200q cannot name a witness: a name has neither spaces nor a plus sign, and is not empty", name)
	}
	raw := append([]byte{algCosignature}, key...)
	return fmt.Sprintf("%s+%08x+%s", name, noteKeyHash(name, algCosignature, key), base64.StdEncoding.EncodeToString(raw)), nil
}

var _ note.Verifier = (*Cosigner)(nil)

// Name implements note.Verifier: the witness's name.
func (c *Cosigner) Name() string { return c.name }

// KeyHash implements note.Verifier.
func (c *Cosigner) KeyHash() uint32 { return c.hash }

// Key is the public key itself.
func (c *Cosigner) Key() ed25519.PublicKey { return c.key }

// VKey is the key's text.
func (c *Cosigner) VKey() string {
	text, err := CosignerVKey(c.name, c.key)
	if err != nil {
		return "" // cannot be: the name was checked when it was parsed
	}
	return text
}

// Verify implements note.Verifier. A cosignature without a time is none.
func (c *Cosigner) Verify(text, sig []byte) bool {
	if len(sig) != cosignatureSize {
		return false
	}
	at := binary.BigEndian.Uint64(sig)
	return at > 0 && at <= math.MaxInt64 && ed25519.Verify(c.key, cosignedMessage(text, at), sig[8:])
}

// cosignedMessage is what a witness signs: when, and the checkpoint's text.
func cosignedMessage(text []byte, at uint64) []byte {
	b := append([]byte("cosignature/v1\ntime "), strconv.FormatUint(at, 10)...)
	return append(append(b, '\n'), text...)
}

// Cosign makes a witness's signature line, with its LF, over a checkpoint's
// text: the note up to its blank line. A time before 1970-01-01T00:00:01Z is
// an error.
func Cosign(text []byte, name string, key ed25519.PrivateKey, at time.Time) ([]byte, error) {
	seconds := at.Unix()
	if seconds <= 0 {
		return nil, errors.New("a cosignature needs a time after 1970; set the clock")
	}
	public := key.Public().(ed25519.PublicKey)
	if _, err := CosignerVKey(name, public); err != nil {
		return nil, err
	}
	sig := binary.BigEndian.AppendUint32(nil, noteKeyHash(name, algCosignature, public))
	sig = binary.BigEndian.AppendUint64(sig, uint64(seconds))
	sig = append(sig, ed25519.Sign(key, cosignedMessage(text, uint64(seconds)))...)
	return []byte("— " + name + " " + base64.StdEncoding.EncodeToString(sig) + "\n"), nil
}

// Cosignature is a witness's signature that was found valid.
type Cosignature struct {
	Witness string    `json:"witness"` // its name
	Time    time.Time `json:"time"`    // when it signed, by its own clock
}

// cosignatureOf reads a valid signature of a note.
func cosignatureOf(sig note.Signature) Cosignature {
	raw, err := base64.StdEncoding.DecodeString(sig.Base64)
	if err != nil || len(raw) != 4+cosignatureSize {
		return Cosignature{Witness: sig.Name}
	}
	return Cosignature{Witness: sig.Name, Time: time.Unix(int64(binary.BigEndian.Uint64(raw[4:])), 0).UTC()}
}

// splitVKey takes a verifier key apart and checks its hash.
func splitVKey(vkey string) (name string, alg byte, key []byte, err error) {
	name, rest, _ := strings.Cut(vkey, "+")
	hash, text, ok := strings.Cut(rest, "+")
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	switch {
	case !ok || err != nil || len(raw) < 2 || !validNoteName(name):
		return "", 0, nil, errors.New("malformed")
	case strings.ContainsAny(text, "\r\n"):
		return "", 0, nil, errors.New("malformed")
	case hash != fmt.Sprintf("%08x", noteKeyHash(name, raw[0], raw[1:])):
		return "", 0, nil, errors.New("its hash does not belong to its name and key")
	}
	return name, raw[0], raw[1:], nil
}

// noteKeyHash is the key id of a key in signed notes.
func noteKeyHash(name string, alg byte, key []byte) uint32 {
	h := sha256.New()
	h.Write([]byte(name + "\n"))
	h.Write([]byte{alg})
	h.Write(key)
	return binary.BigEndian.Uint32(h.Sum(nil))
}

// validNoteName reports whether a name can stand in a signature line.
func validNoteName(name string) bool {
	return name != "" && len(name) <= 255 && strings.ToValidUTF8(name, "") == name && !strings.Contains(name, "+") &&
		len(strings.Fields(name)) == 1 && strings.Fields(name)[0] == name && !bytes.ContainsFunc([]byte(name), func(r rune) bool { return r < ' ' })
}
