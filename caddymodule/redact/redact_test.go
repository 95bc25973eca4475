package redact_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

func profile(t testing.TB, keys ...string) *redact.Profile {
	t.Helper()
	p, err := redact.New(redact.Config{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKeysMatchOnWordsAndGluedNames(t *testing.T) {
	p := profile(t)
	for _, name := range strings.Fields(`password dbPassword db_password dbpassword DB_PASSWORD Password PASSWORD user-password
		token accessToken access_token accesstoken refreshToken ID_TOKEN x.token secret clientSecret client_secret clientsecret
		apiKey api_key api-key API_KEY APIKey apikey xApiKey X-API-Key myapikey passwd bearer Authorization cookie privateKey
		private_key privatekey secrets passwords password1 2password pa` + "\u017f\u017f" + `word to` + "\u212a" + `en`) {
		if !p.MatchKey(name) {
			t.Errorf("%s passes", name)
		}
	}
	for _, name := range strings.Fields(`max_tokens maxTokens completion_tokens tokens secretary tokenizer key keys path
		progressToken cursor nextCursor keyboard monkey author authority compass passenger publicKey cookiecutter`) {
		if p.MatchKey(name) {
			t.Errorf("%s goes", name)
		}
	}
}

func TestKeyListIsEdited(t *testing.T) {
	p := profile(t, "+pin", "-token", "fragment:sess", "card_number")
	for name, want := range map[string]bool{"pin": true, "userPin": true, "spin": true, "pinned": false, "token": false, "sessId": true, "OBSESSION": true,
		"cardNumber": true, "cardnumber": true, "number": false, "password": true} {
		if p.MatchKey(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	for _, bad := range []string{"+", "-", "fragment:", "-nothing_like_it"} {
		if _, err := redact.New(redact.Config{Keys: []string{bad}}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := redact.New(redact.Config{Off: true, Keys: []string{"+pin"}}); err == nil {
		t.Error("keys beside off are accepted")
	}
}

func TestOnlyTheMatchingValueIsReplaced(t *testing.T) {
	p := profile(t)
	for in, want := range map[string]string{
		`{"a" : 1.0 , "password":"x\u00e9", "z":-0}`:                                   `{"a" : 1.0 , "password":"[REDACTED]", "z":-0}`,
		`{"token":{"a":[1,{"b":"}"}]},"n":9007199254740993}`:                           `{"token":"[REDACTED]","n":9007199254740993}`,
		`{"secret" : null,"x":[{"apiKey":12}]}`:                                        `{"secret" : "[REDACTED]","x":[{"apiKey":"[REDACTED]"}]}`,
		`{"pass\u0077ord":"x"}`:                                                        `{"pass\u0077ord":"[REDACTED]"}`,
		`{"s":"{\"token\":\"a\\\"b\",\"u\":\"\\u00e9\\\/\"}"}`:                         `{"s":"{\"token\":\"[REDACTED]\",\"u\":\"\\u00e9\\\/\"}"}`,
		`{"s":"\n [ {\"x\":\"{\\\"password\\\":1,\\\"k\\\":2}\"}]\ud83d\ude00"}`:       ``,
		`{"s":"\n [ \"\ud83d\ude00é\",{\"x\":\"{\\\"password\\\":1,\\\"k\\\":2}\"}]"}`: `{"s":"\n [ \"\ud83d\ude00é\",{\"x\":\"{\\\"password\\\":\\\"[REDACTED]\\\",\\\"k\\\":2}\"}]"}`,
		`{"s":"{token: not json}"}`:                                                    ``,
		`{"inputSchema":{"properties":{"password":{"type":"string"}}}}`:                ``,
		`{"progressToken":"t","nextCursor":"c","max_tokens":5}`:                        ``,
		`{"password":"[REDACTED]"}`:                                                    `{"password":"[REDACTED]"}`,
		`"password"`:                                                                   ``,
		`[]`:                                                                           ``,
	} {
		out, changed, err := p.Redact([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if want == "" {
			if changed || out != nil {
				t.Errorf("%s: changed to %s", in, out)
			}
			continue
		}
		if !changed || string(out) != want {
			t.Errorf("%s:\n got %s\nwant %s", in, out, want)
		}
		if canon.Check(out) != canon.None {
			t.Errorf("%s is no strict JSON", out)
		}
	}
}

func TestTextsOutOfBoundsAreRedactedAndOthersRefused(t *testing.T) {
	p := profile(t)
	deep := strings.Repeat(`[`, 10_000) + `{"password":"hunter2"}` + strings.Repeat(`]`, 10_000)
	out, changed, err := p.Redact([]byte(deep))
	if err != nil || !changed || bytes.Contains(out, []byte("hunter2")) {
		t.Errorf("deep text: %v %v", changed, err)
	}
	out, _, err = p.Redact([]byte(`{"password":"a1","password":"b2"}`))
	if err != nil || string(out) != `{"password":"[REDACTED]","password":"[REDACTED]"}` {
		t.Errorf("repeated name: %s %v", out, err)
	}
	for _, in := range []string{`{"password":`, `{"password"`, `{"a":"`, `]`, `{"password":?}`, "{\"a\":\"\xff\"}"} {
		if _, _, err := p.Redact([]byte(in)); err == nil {
			t.Errorf("%s: accepted", in)
		}
	}
}

func TestNothingIsAllocatedWithoutAMatch(t *testing.T) {
	p := profile(t)
	src := []byte(`{"name":"write_file","arguments":{"path":"/srv/a","max_tokens":5,"list":[1,2,{"x":"plain"}]}}`)
	_, _, _ = p.Redact(src)
	if n := testing.AllocsPerRun(200, func() { _, _, _ = p.Redact(src) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzRedact(f *testing.F) {
	for _, seed := range []string{
		`{"password":"x","s":"{\"token\":[1,2]}","d":[{"api_key":null}]}`, `{"s":"{\"s\":\"{\\\"secret\\\":1}\"}"}`, `{"pass\u0077ord":{}}`, `[`, `{"token":`,
	} {
		f.Add([]byte(seed))
	}
	p := profile(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		out, changed, err := p.Redact(in)
		if canon.Check(in) != canon.None {
			return
		}
		if err != nil {
			t.Fatalf("%q is strict JSON, but: %v", in, err)
		}
		if !changed {
			return
		}
		if canon.Check(out) != canon.None {
			t.Fatalf("%q became %q, which is no strict JSON", in, out)
		}
		again, changed, _ := p.Redact(out)
		if changed && !bytes.Equal(again, out) {
			t.Fatalf("%q became %q, and that %q", in, out, again)
		}
	})
}

func BenchmarkRedact(b *testing.B) {
	p := profile(b)
	for name, in := range map[string]string{
		"text":  `{"name":"write_file","arguments":{"content":"` + strings.Repeat("The quick brown fox. ", 3000) + `"}}`,
		"dense": `{"rows":[` + strings.Repeat(`{"id":123,"ok":true,"tags":["a","b"]},`, 1700) + `{}]}`,
		"match": `{"rows":[` + strings.Repeat(`{"id":123,"password":"x"},`, 2000) + `{}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			src := []byte(in)
			b.SetBytes(int64(len(src)))
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = p.Redact(src)
			}
		})
	}
}
