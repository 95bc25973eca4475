package canon_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

func TestVectorsOfThePayloadForm(t *testing.T) {
	raw, err := os.ReadFile("../testdata/evidence-vector.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Cases []struct {
			In  string `json:"in_hex"`
			Out string `json:"out"`
		} `json:"payload_normalisation"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Cases) != 24 {
		t.Fatalf("%d cases", len(v.Cases))
	}
	for _, c := range v.Cases {
		in, _ := hex.DecodeString(c.In)
		out, why := canon.Append(nil, in)
		got := string(out)
		if why != canon.None {
			got = `{"$raw":"` + base64.RawURLEncoding.EncodeToString(in) + `","why":"` + string(why) + `"}`
		}
		if got != c.Out {
			t.Errorf("%q:\n got %s\nwant %s", in, got, c.Out)
		}
		if canon.Check(in) != why {
			t.Errorf("%q: Check and Append differ", in)
		}
	}
}

func TestGateBounds(t *testing.T) {
	object := func(n int) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(`,"k` + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + hex.EncodeToString([]byte{byte(i >> 8), byte(i)}) + `":1`)
		}
		return "{" + b.String()[1:] + "}"
	}
	for _, c := range []struct {
		name, in string
		want     canon.Violation
	}{
		{"1024 keys", object(1024), canon.None},
		{"1025 keys", object(1025), canon.Keys},
		{"depth 64", strings.Repeat("[", 64) + strings.Repeat("]", 64), canon.None},
		{"depth 65", strings.Repeat("[", 65) + strings.Repeat("]", 65), canon.Depth},
		{"two million brackets", strings.Repeat("[", 2_000_000), canon.Depth},
		{"duplicate far apart", `{"a":1,"b":{"a":1},"c":[{"a":1}],"a":2}`, canon.DupKey},
		{"duplicate by escape", `{"a":1,"\u0061":2}`, canon.DupKey},
		{"first violation wins", `{"a":1,"a":"\ud800"}`, canon.Surrogate},
		{"duplicate inside comes first", `[{"a":1,"a":2},"\ud800"]`, canon.DupKey},
		{"white space only", " \t\r\n", canon.Grammar},
		{"form feed", "\f1", canon.Grammar},
		{"unterminated escape", `"\`, canon.Grammar},
		{"truncated surrogate", `"\ud83d\ude0`, canon.Grammar},
	} {
		if got := canon.Check([]byte(c.in)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestZerosMayPadANumberToAnyLength(t *testing.T) {
	zeros := strings.Repeat("0", 5000)
	for in, want := range map[string]string{
		"1." + zeros:                  "1",
		"-1." + zeros + "e2":          "-100",
		"0." + zeros + "1e5001":       "1",
		"1" + zeros + "e-5000":        "1",
		"1" + zeros + "1e-5001":       "",
		"0." + zeros:                  "0",
		"-0." + zeros:                 "",
		"0e999999999999999999999":     "0",
		"1e-999999999999999999999":    "",
		"1e999999999999999999999":     "",
		"0." + zeros[:323] + "5":      "5e-324",
		"1" + zeros[:308]:             "1e+308",
		"123456789012345680000":       "123456789012345680000",
		"123456789012345678":          "",
		"0.10000000000000000" + zeros: "0.1",
		"1.7976931348623157e308":      "1.7976931348623157e+308",
		"2.2250738585072014E-308":     "2.2250738585072014e-308",
	} {
		if want == "" {
			want = `{"$num":"` + in + `"}`
		}
		if out, why := canon.Append(nil, []byte(in)); why != canon.None || string(out) != want {
			t.Errorf("%.40s… (%d): %.60s %s", in, len(in), out, why)
		}
	}
}

func TestAppendLeavesTheDestinationAloneOnAViolation(t *testing.T) {
	dst := []byte("before")
	out, why := canon.Append(dst, []byte(`{"a":tru}`))
	if why != canon.Grammar || string(out) != "before" {
		t.Errorf("%q %q", out, why)
	}
}

func TestIsCanonical(t *testing.T) {
	for in, want := range map[string]bool{
		`{"a":1,"b":[true,null,"é\n\u0001"]}`: true,
		`{"b":1,"a":2}`:                       false,
		`{"a":1,"a":2}`:                       false,
		`{"a": 1}`:                            false,
		`"\u00e9"`:                            false,
		`"\/"`:                                false,
		`"\u000A"`:                            false,
		`"\u000a"`:                            false,
		`1.0`:                                 false,
		`-0`:                                  false,
		`1e21`:                                false,
		`1e+21`:                               true,
		`9007199254740993`:                    false,
		`{"$ref":1}`:                          true,
		`[[[]]]`:                              true,
		`[[[[]]]]`:                            false,
		`{"a":1}x`:                            false,
		``:                                    false,
	} {
		if got := canon.IsCanonical([]byte(in), 3); got != want {
			t.Errorf("%s: %v", in, got)
		}
	}
}

func TestUnquote(t *testing.T) {
	for in, want := range map[string]string{`"a\u0062\n"`: "ab\n", `"😀"`: "😀", `"\ud83d\ude00"`: "😀"} {
		if got, ok := canon.Unquote(nil, []byte(in)); !ok || string(got) != want {
			t.Errorf("%s: %q %v", in, got, ok)
		}
	}
	for _, in := range []string{`"a`, `a"`, `"a"b`, `"\ud800"`, "\"\xff\"", `"`} {
		if _, ok := canon.Unquote(nil, []byte(in)); ok {
			t.Errorf("%s: accepted", in)
		}
	}
}

// sample is a JSON-RPC request of about n bytes, its keys out of order.
func sample(n int) []byte {
	head := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/srv/notes/a.txt","mode":420,"ratio":0.25,"tags":["a","b","ü"],"content":"`
	tail := `","append":false},"_meta":{"progressToken":"p-1"}}}`
	fill := strings.Repeat("The quick brown fox jumps over the lazy dog. \\n", 1+n/46)
	return []byte(head + fill[:max(0, n-len(head)-len(tail))&^1] + tail)
}

func FuzzGate(f *testing.F) {
	for _, seed := range []string{
		`{"b":1,"a":[1.0,-0,1e400,"\u00e9\ud83d\ude00"],"$x":{"\u0061":null}}`, `"\ud800"`, `[1,]`, `01`, "\"\xed\xa0\x80\"",
		`{"a":1,"\u0061":2}`, `1e-400`, `123456789012345678901234567890`, `{"\ufb33":1,"\ud83d\ude00":2}`, "", "[", `0.1000000000000000055511151231257827`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, why := canon.Append(nil, in)
		oracleErr := oracle(in)
		switch why {
		case canon.None:
			if oracleErr != nil {
				t.Fatalf("accepted %q, jsontext: %v", in, oracleErr)
			}
			again, w := canon.Append(nil, out)
			if w != canon.None {
				t.Fatalf("the form %s of %q is not accepted: %s", out, in, w)
			}
			// A "$" may be spelled as an escape in the input.
			if !bytes.Contains(out, []byte("$")) {
				if !bytes.Equal(again, out) || !canon.IsCanonical(out, canon.MaxDepth+1) {
					t.Fatalf("the form %s of %q is not its own form", out, in)
				}
				for name, f := range map[string]func([]byte) ([]byte, error){"cyberphone": jsoncanonicalizer.Transform, "gowebpki": jcs.Transform} {
					if len(out) == 0 || out[0] != '{' && out[0] != '[' {
						continue // they take containers only
					}
					want, err := f(in)
					if err == nil && !bytes.Equal(want, out) {
						t.Fatalf("%q:\n got %s\n%s %s", in, out, name, want)
					}
				}
			}
		case canon.Depth, canon.Keys:
		default:
			if oracleErr == nil {
				t.Fatalf("refused %q as %s, jsontext accepts it", in, why)
			}
		}
		if canon.Check(in) != why {
			t.Fatalf("%q: Check and Append differ", in)
		}
	})
}

// oracle reads one value with jsontext, which refuses duplicate names and
// invalid UTF-8.
func oracle(in []byte) error {
	v := jsontext.Value(bytes.TrimLeft(in, " \t\r\n"))
	if !v.IsValid() {
		return os.ErrInvalid
	}
	return nil
}

func BenchmarkAppend(b *testing.B) {
	bench(b, func(dst, src []byte) []byte { dst, _ = canon.Append(dst[:0], src); return dst })
}
func BenchmarkCheck(b *testing.B) {
	bench(b, func(dst, src []byte) []byte { canon.Check(src); return dst })
}
func BenchmarkIsCanonical(b *testing.B) {
	bench(b, func(dst, src []byte) []byte {
		if len(dst) == 0 {
			dst, _ = canon.Append(nil, src)
		}
		canon.IsCanonical(dst, 72)
		return dst
	})
}

func bench(b *testing.B, f func(dst, src []byte) []byte) {
	for name, n := range map[string]int{"1KB": 1051, "64KB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			src := sample(n)
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				dst = f(dst, src)
			}
		})
	}
}
