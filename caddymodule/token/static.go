package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
)

// ShortestStatic is the least length of a static token in bytes.
const ShortestStatic = 32

// Static are static tokens, kept as hashes, with whom they stand for. It is
// safe for concurrent use once all are added.
type Static struct {
	hashes [][sha256.Size]byte
	claims []*Claims
}

// Add adds a token. The error names no part of it.
func (s *Static) Add(token string, c *Claims) error {
	switch {
	case len(token) < ShortestStatic:
		return fmt.Errorf("the token has %d bytes; use %d or more, as in: openssl rand -hex 32", len(token), ShortestStatic)
	case len(token) > MaxLength:
		return fmt.Errorf("the token has %d bytes; use %d at most", len(token), MaxLength)
	case !isToken68(token):
		return errors.New("the token has characters that no bearer token may have; use letters, digits and -._~+/ alone, as in: openssl rand -hex 32")
	}
	hash := sha256.Sum256([]byte(token))
	for _, other := range s.hashes {
		if other == hash {
			return errors.New("the token is that of another principal; give each its own")
		}
	}
	s.hashes = append(s.hashes, hash)
	s.claims = append(s.claims, c)
	return nil
}

// Verify finds whom a token stands for. It takes the same time for each token
// of a length: it compares hashes with all of them, whichever it is.
func (s *Static) Verify(token string) (*Claims, Reason) {
	hash := sha256.Sum256([]byte(token))
	found := -1
	for i := range s.hashes {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(hash[:], s.hashes[i][:]), i, found)
	}
	if found < 0 {
		return nil, Unknown
	}
	return s.claims[found], notRefused
}
