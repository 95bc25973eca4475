package redact_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

func TestWhatIsFoundByItsLooksIsReplacedWhereverItIs(t *testing.T) {
	const key = "AKIAIOSFODNN7EXAMPLE"
	hidden := base64.StdEncoding.EncodeToString([]byte("k=" + key + " and more"))
	inJSON := base64.StdEncoding.EncodeToString([]byte(`{"password":"hunter2","a":1}`))
	url := base64.URLEncoding.EncodeToString([]byte(">>>>????" + key))
	twice := base64.StdEncoding.EncodeToString([]byte(hidden))
	p := profile(t)
	for _, c := range []struct{ name, in, want string }{
		{"text", `{"content":[{"text":"k=` + key + `"}]}`, `{"content":[{"text":"k=[REDACTED:aws_key]"}]}`},
		{"structured", `{"structuredContent":{"k":"` + key + `"}}`, `{"structuredContent":{"k":"[REDACTED:aws_key]"}}`},
		{"resource", `{"resource":{"text":"` + key + `"}}`, `{"resource":{"text":"[REDACTED:aws_key]"}}`},
		{"meta", `{"_meta":{"note":"` + key + `"}}`, `{"_meta":{"note":"[REDACTED:aws_key]"}}`},
		{"blob", `{"blob":"` + hidden + `"}`, `{"blob":"[REDACTED:base64]"}`},
		{"blob of JSON", `{"blob":"` + inJSON + `"}`, `{"blob":"[REDACTED:base64]"}`},
		{"base64url", `{"blob":"` + url + `"}`, `{"blob":"[REDACTED:base64]"}`},
		{"base64 of base64", `{"blob":"` + twice + `"}`, `{"blob":"[REDACTED:base64]"}`},
		{"data URI", `{"uri":"data:text/plain;base64,` + hidden + `"}`, `{"uri":"[REDACTED:base64]"}`},
		{"a member's name", `{"` + key + `":1}`, `{"[REDACTED:aws_key]":1}`},
		{"escaped", `{"a":"x\n\u0041KIAIOSFODNN7EXAMPLE\t"}`, `{"a":"x\n[REDACTED:aws_key]\t"}`},
		{"JSON in a string", `{"a":"{\"b\":\"` + key + `\"}"}`, `{"a":"{\"b\":\"[REDACTED:aws_key]\"}"}`},
		{"behind JSON in a string", `{"a":"{\"b\":1} ` + key + `"}`, `{"a":"{\"b\":1} [REDACTED:aws_key]"}`},
		{"twice encoded", `{"a":"\"{\\\"password\\\":\\\"x\\\"}\""}`, `{"a":"\"{\\\"password\\\":\\\"[REDACTED]\\\"}\""}`},
		{"several", `["` + key + ` 4111 1111 1111 1111","` + key + `"]`, `["[REDACTED:aws_key] [REDACTED:card]","[REDACTED:aws_key]"]`},
		{"in a schema", `{"inputSchema":{"default":"` + key + `"}}`, `{"inputSchema":{"default":"[REDACTED:aws_key]"}}`},
		{"prose in a schema", `{"inputSchema":{"description":"password=hunter22x sets it"}}`, ``},
		{"number", `{"pan":4111111111111111,"n":9007199254740993,"t":1755302400000}`, `{"pan":"[REDACTED:card]","n":9007199254740993,"t":1755302400000}`},
		{"scalar", `"` + key + `"`, `"[REDACTED:aws_key]"`},
		{"under a matching name once", `{"secret":"` + key + `"}`, `{"secret":"[REDACTED]"}`},
		{"not people, unless asked for", `["alice@example.com","+1-202-555-0143","123-45-6789"]`, ``},

		{"pair", `[{"name":"password","value":"x"},{"name":"size","value":"x"}]`, `[{"name":"password","value":"[REDACTED]"},{"name":"size","value":"x"}]`},
		{"pair the other way", `{"headers":[{"value":["x",1],"key":"X-Api-Key"}]}`, `{"headers":[{"value":"[REDACTED]","key":"X-Api-Key"}]}`},
		{"pair with a find in its value", `{"value":"a ` + key + ` b","z":1,"name":"token"}`, `{"value":"[REDACTED]","z":1,"name":"token"}`},
		{"pair in text", `{"a":"{\"name\":\"token\",\"value\":\"x\"}"}`, `{"a":"{\"name\":\"token\",\"value\":\"[REDACTED]\"}"}`},
		{"no pair", `{"name":"password_reset","arguments":{"value":"x"}}`, ``},
		{"a pair's object ends", `[{"name":"password"},{"value":"x"}]`, ``},
	} {
		out, changed, err := p.Redact([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := string(out)
		if !changed {
			got = c.in
		}
		want := c.want
		if want == "" {
			want = c.in
		}
		if got != want {
			t.Errorf("%s: %s became %s, not %s", c.name, c.in, got, want)
		}
		if again, twice, err := p.Redact([]byte(got)); err != nil || twice {
			t.Errorf("%s: a second pass made %s of %s (%v)", c.name, again, got, err)
		}
	}
}

func TestPathsNameValuesOfAMessage(t *testing.T) {
	for _, c := range []struct {
		paths            []string
		member, in, want string
	}{
		{[]string{"$.params.arguments.pin"}, "params", `{"arguments":{"pin":1,"p":{"pin":2}}}`, `{"arguments":{"pin":"[REDACTED]","p":{"pin":2}}}`},
		{[]string{"$.params.arguments.pin"}, "result", `{"arguments":{"pin":1}}`, ``},
		{[]string{"$.result.content[1].text"}, "result", `{"content":[{"text":"a"},{"text":"b"},{"text":"c"}]}`, `{"content":[{"text":"a"},{"text":"[REDACTED]"},{"text":"c"}]}`},
		{[]string{"$.result.content[*].text"}, "result", `{"content":[{"text":"a"},{"text":["b"]}]}`, `{"content":[{"text":"[REDACTED]"},{"text":"[REDACTED]"}]}`},
		{[]string{"$..pin"}, "error", `{"data":[{"pin":{"a":1}},2],"pin":null}`, `{"data":[{"pin":"[REDACTED]"},2],"pin":"[REDACTED]"}`},
		{[]string{"$.params['my.name'].*"}, "params", `{"my.name":{"a":1,"b":[2]}}`, `{"my.name":{"a":"[REDACTED]","b":"[REDACTED]"}}`},
		{[]string{"$.params"}, "params", `{"a":1}`, `"[REDACTED]"`},
		{[]string{"$.params.a[0]", "$.params.b"}, "params", `{"a":[[1],2],"b":3,"c":4}`, `{"a":["[REDACTED]",2],"b":"[REDACTED]","c":4}`},
		{[]string{"$.params.p\u00efn"}, "params", `{"p\u00efn":1}`, `{"p\u00efn":"[REDACTED]"}`},
	} {
		p, err := redact.New(redact.Config{Paths: c.paths})
		if err != nil {
			t.Fatal(err)
		}
		out, changed, err := p.Member(c.member, []byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(out); changed && got != c.want || !changed && c.want != "" {
			t.Errorf("%v: %s became %s, not %s", c.paths, c.in, got, c.want)
		}
	}
}

func TestPatternsAreTheOperatorsOwnKinds(t *testing.T) {
	p, err := redact.New(redact.Config{Patterns: []redact.Pattern{{"employee", `\bE-[0-9]{6}\b`}, {"case_id", `case (\d+)`}}})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := p.Redact([]byte(`["E-123456 has case 77, E-12 not","E-123456"]`))
	if want := `["[REDACTED:employee] has case [REDACTED:case_id], E-12 not","[REDACTED:employee]"]`; err != nil || string(out) != want {
		t.Errorf("%s (%v)", out, err)
	}
}

func TestTagsAreEqualForEqualValues(t *testing.T) {
	p, err := redact.New(redact.Config{Tag: []byte("key")})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := p.Redact([]byte(`{"password":"a","token":"a","secret":"b","t":"4111111111111111 and 4111111111111111"}`))
	if err != nil {
		t.Fatal(err)
	}
	tag := func(after string) string {
		_, rest, _ := strings.Cut(string(out), after)
		_, rest, _ = strings.Cut(rest, "#")
		return rest[:12]
	}
	if tag(`"password":`) != tag(`"token":`) || tag(`"token":`) == tag(`"secret":`) {
		t.Errorf("%s", out)
	}
	if strings.Count(string(out), "[REDACTED:card#"+tag(`"t":`)+"]") != 2 {
		t.Errorf("%s", out)
	}
	if _, changed, _ := p.Redact(out); changed {
		t.Error("a second pass changes it")
	}
	other, err := redact.New(redact.Config{Tag: []byte("another key")})
	if err != nil {
		t.Fatal(err)
	}
	if again, _, _ := other.Redact([]byte(`{"password":"a"}`)); strings.Contains(string(again), tag(`"password":`)) {
		t.Error("the tag does not depend on the key")
	}
}

func TestMistakesInAProfileNameTheWord(t *testing.T) {
	for _, c := range []struct {
		cfg  redact.Config
		want string
	}{
		{redact.Config{Detect: []string{"secret"}}, `did you mean secrets?`},
		{redact.Config{Detect: []string{"none", "pii"}}, `"none"`},
		{redact.Config{Detect: []string{"-cards"}}, `did you mean card?`},
		{redact.Config{Patterns: []redact.Pattern{{"x", `a(`}}}, "pattern x"},
		{redact.Config{Patterns: []redact.Pattern{{"X", `a`}}}, `"X"`},
		{redact.Config{Patterns: []redact.Pattern{{"x", `a`}, {"x", `b`}}}, "twice"},
		{redact.Config{Patterns: []redact.Pattern{{"x", `a*`}}}, "matches the empty text"},
		{redact.Config{Paths: []string{"params.a"}}, "does not begin with $"},
		{redact.Config{Paths: []string{"$"}}, "whole message"},
		{redact.Config{Paths: []string{"$.a["}}, "[ has no ]"},
		{redact.Config{Paths: []string{"$.a[x]"}}, "no name in quotes"},
		{redact.Config{Paths: []string{"$.a..[0]"}}, "name is missing"},
		{redact.Config{Paths: []string{"$" + strings.Repeat(".a", 65)}}, "more than 64 steps"},
		{redact.Config{Off: true, Detect: []string{"pii"}}, "no effect"},
	} {
		if _, err := redact.New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, not %s", c.cfg, err, c.want)
		}
	}
}
