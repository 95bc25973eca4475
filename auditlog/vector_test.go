package auditlog

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// vector is the part of evidence-vector.json that the seal layer reproduces.
type vector struct {
	Inputs struct {
		Seed   string `json:"ed25519_seed_hex"`
		Secret string `json:"hmac_secret"`
		KeyID  string `json:"key_id"`
		Origin string `json:"origin"`
	} `json:"inputs"`
	Keys struct {
		Blind string `json:"blind_key_hex"`
		K0    string `json:"k0_hex"`
		K1    string `json:"k1_hex"`
		MAC0  string `json:"mac_key_0_hex"`
		VKey  string `json:"vkey"`
	} `json:"keys"`
	Checkpoint struct {
		Note string `json:"note"`
	} `json:"checkpoint"`
	Records []struct {
		Body string `json:"body"`
		Leaf string `json:"leaf"`
		Seq  uint64 `json:"seq"`
	} `json:"records"`
}

func loadVector(t *testing.T) (v vector, lines [][]byte) {
	t.Helper()
	raw, err := os.ReadFile("testdata/evidence-vector.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile("testdata/evidence-vector.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	return v, bytes.Split(bytes.TrimSuffix(log, []byte("\n")), []byte("\n"))
}

func TestVectorIsReproducedByteForByte(t *testing.T) {
	v, lines := loadVector(t)
	seed, _ := hex.DecodeString(v.Inputs.Seed)
	key := ed25519.NewKeyFromSeed(seed)
	k0 := StaticKey([]byte(v.Inputs.Secret), v.Inputs.KeyID)
	if got := hex.EncodeToString(k0); got != v.Keys.K0 {
		t.Fatalf("K_0 = %s", got)
	}
	if got := hex.EncodeToString(evolveKey(k0, v.Inputs.Origin, 1)); got != v.Keys.K1 {
		t.Fatalf("K_1 = %s", got)
	}
	if got := hex.EncodeToString(blindKey(k0)); got != v.Keys.Blind {
		t.Fatalf("BK = %s", got)
	}
	if got := hex.EncodeToString(macKey(k0)); got != v.Keys.MAC0 {
		t.Fatalf("MK_0 = %s", got)
	}
	m := newMacer(macKey(k0))
	chain := GenesisChain(v.Inputs.Origin)
	var tree Range
	for i, line := range lines {
		l, fault := SplitLine(line)
		if fault != LineOK {
			t.Fatalf("line %d: %s", i, fault)
		}
		if string(l.Body()) != v.Records[i].Body {
			t.Fatalf("line %d: body %s", i, l.Body())
		}
		s := Seal{Seq: uint64(i), Leaf: LeafHash(l.Body()), KeyID: v.Inputs.KeyID}
		chain = ChainHash(chain, s.Seq, s.Leaf)
		s.Chain, s.MAC = chain, m.mac(chain)
		tree.Append(s.Leaf)
		if s != l.Seal || s.Leaf != l.LeafHash() {
			t.Fatalf("line %d: seal %+v, want %+v", i, s, l.Seal)
		}
		if got := AppendLine(nil, l.Body(), &s, l.Open); !bytes.Equal(got[:len(got)-1], line) {
			t.Fatalf("line %d differs:\n%s\n%s", i, got, line)
		}
	}
	head := TreeHead{Origin: v.Inputs.Origin, Size: tree.Size, Root: tree.Root()}
	signed, err := SignTreeHead(head, key)
	if err != nil {
		t.Fatal(err)
	}
	if string(signed) != v.Checkpoint.Note {
		t.Fatalf("checkpoint:\n%s\nwant:\n%s", signed, v.Checkpoint.Note)
	}
	got, err := OpenTreeHead(signed, v.Keys.VKey)
	if err != nil || got != head {
		t.Fatalf("OpenTreeHead = %+v, %v", got, err)
	}
}
