package token

import (
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// compact is a token taken apart: the compact serialization of RFC 7515. Only
// its form has been checked.
type compact struct {
	header    header
	signed    string // header and payload, as they are signed
	payload   []byte
	signature []byte
}

// header is what is read of a token's header.
type header struct {
	algorithm, id, typ string
	nested             bool // the payload is a token
	foreign            bool // has what is never accepted
}

// strict is base64url without padding and without stray bits, so that a token
// has one spelling.
var strict = base64.RawURLEncoding.Strict()

func split(raw string) (t compact, refused Reason) {
	if len(raw) > MaxLength {
		return t, TooLarge
	}
	parts := strings.Split(raw, ".")
	switch len(parts) {
	case 3:
	case 5: // RFC 7516
		return t, Nested
	default:
		return t, Malformed
	}
	for _, p := range parts {
		// The decoder would pass over line breaks.
		if p == "" || strings.ContainsAny(p, "\r\n") {
			return t, Malformed
		}
	}
	head, err := strict.DecodeString(parts[0])
	if err != nil {
		return t, Malformed
	}
	if t.payload, err = strict.DecodeString(parts[1]); err != nil {
		return t, Malformed
	}
	if t.signature, err = strict.DecodeString(parts[2]); err != nil {
		return t, Malformed
	}
	t.signed = raw[:len(parts[0])+1+len(parts[1])]
	t.header, refused = parseHeader(head)
	return t, refused
}

// object reads a JSON object strictly: no name twice at any depth, no invalid
// UTF-8, nothing after it.
func object(text []byte) (map[string]jsontext.Value, bool) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return nil, false
	}
	return members, true
}

// foreignMembers are header members that bring a key or change how the token is
// to be read. RFC 8725 warns of each; a server that has its issuer's keys needs
// none.
var foreignMembers = []string{"jwk", "jku", "x5c", "x5u", "crit", "b64", "zip", "enc", "epk", "p2s", "p2c"}

func parseHeader(text []byte) (h header, refused Reason) {
	members, ok := object(text)
	if !ok {
		return h, Malformed
	}
	for _, name := range foreignMembers {
		if _, has := members[name]; has {
			h.foreign = true
		}
	}
	var contents string
	for name, into := range map[string]*string{"alg": &h.algorithm, "kid": &h.id, "typ": &h.typ, "cty": &contents} {
		if value, has := members[name]; has && !readText(value, into) {
			return h, Malformed
		}
	}
	if len(h.id) > longestKeyID {
		return h, Malformed
	}
	h.nested = contents != ""
	return h, notRefused
}

// readText reads a JSON string.
func readText(value jsontext.Value, into *string) bool {
	return value.Kind() == '"' && json.Unmarshal(value, into) == nil
}
