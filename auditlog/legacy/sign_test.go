package legacy

import (
	"encoding/json"
	"os"
	"testing"
)

// vectorSecret is the secret of the worked example.
const vectorSecret = "example secret, never use it 0001"

// vector is the worked example's entry in Integrity v2 form.
type vector struct {
	Compat struct {
		Signature string `json:"integrity_signature"`
		Legacy    string `json:"legacy_signature"`
		KeyID     string `json:"key_id"`
		Line      string `json:"line"`
		Signed    string `json:"signed_payload"`
	} `json:"compat_v2"`
}

func loadVector(t testing.TB) (v vector) {
	t.Helper()
	raw, err := os.ReadFile("../testdata/evidence-vector.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSignaturesOfTheWorkedExample(t *testing.T) {
	v := loadVector(t)
	e, err := parseEntry([]byte(v.Compat.Line))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := e.signedV2()
	if err != nil || string(signed) != v.Compat.Signed {
		t.Errorf("signed text is %s, %v", signed, err)
	}
	if got, err := signV2([]byte(vectorSecret), e); err != nil || got != v.Compat.Signature {
		t.Errorf("Integrity v2 is %s, %v", got, err)
	}
	if got := signV1([]byte(vectorSecret), e, e.params); got != v.Compat.Legacy {
		t.Errorf("the older signature is %s", got)
	}
}
