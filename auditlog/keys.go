package auditlog

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

func hmacSHA256(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// StaticKey derives K_0 from an operator's secret (key_mode static).
func StaticKey(secret []byte, keyID string) []byte {
	return hmacSHA256(secret, []byte("auditlog/v3/static\n"+keyID))
}

// evolveKey derives K_{e+1} from K_e.
func evolveKey(key []byte, origin string, next uint64) []byte {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], next)
	return hmacSHA256(key, []byte("auditlog/v3/evolve\n"), []byte(origin), n[:])
}

// macKey derives MK_e, the key of the record MACs of one epoch.
func macKey(epochKey []byte) []byte { return hmacSHA256(epochKey, []byte("auditlog/v3/mac\n")) }

// blindKey derives BK, the key behind session and wire hashes.
func blindKey(k0 []byte) []byte { return hmacSHA256(k0, []byte("auditlog/v3/blind\n")) }

// commitment is the hash that stands in a record body for a committed member.
func commitment(name string, salt [16]byte, value []byte) Hash {
	h := sha256.New()
	h.Write([]byte("auditlog/v3/open\n"))
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(name)))
	h.Write(n[:])
	h.Write([]byte(name))
	h.Write(salt[:])
	h.Write(value)
	return sum(h)
}
