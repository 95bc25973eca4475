package harness

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Wire is what a record says of the exact bytes of its messages, and how it is
// tied to other records.
type Wire struct {
	Nonce          string   `json:"nonce"`
	ParentSeq      *uint64  `json:"parent_seq"`
	RequestBytes   int      `json:"request_bytes"`
	RequestSHA256  string   `json:"request_sha256"`
	ResponseBytes  int      `json:"response_bytes"`
	ResponseSHA256 string   `json:"response_sha256"`
	Anomaly        []string `json:"anomaly"`
	Seal           struct {
		KeyID string `json:"key_id"`
	} `json:"seal"`
}

// Wire reads these members of a record.
func (r Record) Wire(t testing.TB) Wire {
	t.Helper()
	var w Wire
	if err := json.Unmarshal([]byte(r.Line), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// WireHashes computes the salted hashes that records carry, from the keys
// beside a log and the description in docs/log-format.md alone.
type WireHashes map[string][]byte // the blind key by key id

// ReadWireKeys reads keys.json beside a log.
func ReadWireKeys(t testing.TB, log string) WireHashes {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(filepath.Dir(log), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Keys []struct{ Kty, Kid, K string }
	}
	if err := json.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	hashes := make(WireHashes)
	for _, key := range set.Keys {
		if key.Kty != "oct" {
			continue
		}
		k0, err := base64.RawURLEncoding.DecodeString(key.K)
		if err != nil {
			t.Fatal(err)
		}
		hashes[key.Kid] = hmacSum(k0, []byte("auditlog/v3/blind\n"))
	}
	if len(hashes) == 0 {
		t.Fatalf("keys.json beside %s has no MAC key", log)
	}
	return hashes
}

func hmacSum(key []byte, data []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(data)
	return m.Sum(nil)
}

// sum is the hash of a message for the record w.
func (h WireHashes) sum(t testing.TB, w Wire, message []byte) string {
	t.Helper()
	nonce, err := base64.RawURLEncoding.DecodeString(w.Nonce)
	if err != nil || len(nonce) != 16 {
		t.Fatalf("nonce %q: %v", w.Nonce, err)
	}
	bk, ok := h[w.Seal.KeyID]
	if !ok {
		t.Fatalf("the key file has no key %q", w.Seal.KeyID)
	}
	s := sha256.New()
	s.Write([]byte("auditlog/v3/wire\n"))
	s.Write(hmacSum(bk, append([]byte("wire\n"), nonce...))[:16])
	s.Write(message)
	return base64.RawURLEncoding.EncodeToString(s.Sum(nil))
}

// CheckRequest checks that an intent or event vouches for exactly these bytes.
func (h WireHashes) CheckRequest(t testing.TB, r Record, message []byte) {
	t.Helper()
	w := r.Wire(t)
	h.check(t, r, "request", w, w.RequestBytes, w.RequestSHA256, message)
}

// CheckResponse checks that an outcome vouches for exactly these bytes.
func (h WireHashes) CheckResponse(t testing.TB, r Record, message []byte) {
	t.Helper()
	w := r.Wire(t)
	h.check(t, r, "response", w, w.ResponseBytes, w.ResponseSHA256, message)
}

func (h WireHashes) check(t testing.TB, r Record, what string, w Wire, n int, hash string, message []byte) {
	t.Helper()
	if n != len(message) {
		t.Errorf("%s_bytes is %d, the message has %d: %.200q\n%.300s", what, n, len(message), message, r.Line)
	} else if want := h.sum(t, w, message); hash != want {
		t.Errorf("%s_sha256 is %q, of the bytes it is %s: %.200q\n%.300s", what, hash, want, message, r.Line)
	}
}
