//go:build cgo

package sqlite

import (
	"bytes"
	"encoding/base64"
)

// saltText is the length of a salt of 16 bytes in base64url.
const saltText = 22

// splitOpening takes a member of `open`, ["<salt>",<value>], apart.
func splitOpening(pair []byte) (salt, value []byte, ok bool) {
	const head, tail = len(`["`) + saltText + len(`",`), len(`]`)
	if len(pair) <= head+tail || !bytes.HasPrefix(pair, []byte(`["`)) || string(pair[head-2:head]) != `",` || pair[len(pair)-1] != ']' {
		return nil, nil, false
	}
	salt, err := base64.RawURLEncoding.Strict().DecodeString(string(pair[2 : 2+saltText]))
	return salt, pair[head : len(pair)-1], err == nil
}
