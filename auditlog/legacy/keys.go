package legacy

import (
	"crypto/ed25519"
	"encoding/hex"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Keys are what signatures of other systems are checked with. The zero value
// checks none.
type Keys struct {
	// Secret is the other system's HMAC secret, as its configuration has it.
	Secret []byte
	// Ring holds further HMAC keys by key id, and Ed25519 public keys.
	Ring *auditlog.Keyring
	// KeyID, if not empty, is the only key id that is accepted in Integrity v2.
	KeyID string
	// Public are Ed25519 keys of a gateway.
	Public []ed25519.PublicKey
}

// entrySecrets are the secrets to try on an entry that names a key id; "" is
// the older signature, which names none.
func (k *Keys) entrySecrets(keyID string) [][]byte {
	var secrets [][]byte
	if len(k.Secret) > 0 {
		secrets = append(secrets, k.Secret)
	}
	if k.Ring == nil {
		return secrets
	}
	for _, id := range k.Ring.MACKeyIDs() {
		if key, ok := k.Ring.MACKey(id); ok && (keyID == "" || id == keyID) {
			secrets = append(secrets, key)
		}
	}
	return secrets
}

func (k *Keys) anySecret() bool {
	return len(k.Secret) > 0 || k.Ring != nil && len(k.Ring.MACKeyIDs()) > 0
}

// gatewaySecrets are the HMAC keys of a gateway, which reads its secret as
// hexadecimal up to the first character that is none.
func (k *Keys) gatewaySecrets() [][]byte {
	var keys [][]byte
	if len(k.Secret) > 0 {
		keys = append(keys, hexPrefix(k.Secret))
	}
	if k.Ring != nil {
		for _, id := range k.Ring.MACKeyIDs() {
			if key, ok := k.Ring.MACKey(id); ok {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

func (k *Keys) gatewayPublic() []ed25519.PublicKey {
	keys := append([]ed25519.PublicKey(nil), k.Public...)
	if k.Ring != nil {
		for _, key := range k.Ring.PublicKeys() {
			keys = append(keys, key.Key)
		}
	}
	return keys
}

// hexPrefix decodes hexadecimal digits, in pairs, up to what is none.
func hexPrefix(text []byte) []byte {
	n := 0
	for n+2 <= len(text) && isHex(text[n]) && isHex(text[n+1]) {
		n += 2
	}
	out, _ := hex.DecodeString(string(text[:n]))
	return out
}

func isHex(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
}
