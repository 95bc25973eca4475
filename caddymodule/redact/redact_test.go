package redact_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

func TestRedact(t *testing.T) {
	p := profile(t, "+cursor")
	deep := strings.Repeat(`[`, 5000) + `{"token":1}` + strings.Repeat(`]`, 5000)
	for _, c := range []struct{ name, in, want string }{ // want "": unchanged
		{"no match", `{"a":[1,{"b":"c"}],"max_tokens":100}`, ``},
		{"scalar", ` "password" `, ``},
		{"text", `{"password":"hunter2"}`, `{"password":"[REDACTED]"}`},
		{"number", `{"password":-1.5e+3,"a":1}`, `{"password":"[REDACTED]","a":1}`},
		{"null and booleans", `[{"token":null},{"token":true},{"token":false}]`, `[{"token":"[REDACTED]"},{"token":"[REDACTED]"},{"token":"[REDACTED]"}]`},
		{"object", `{"secret":{"a":{"token":1},"b":"}"},"c":2}`, `{"secret":"[REDACTED]","c":2}`},
		{"array", `{"cookies":["a",["b"],{}],"c":[]}`, `{"cookies":"[REDACTED]","c":[]}`},
		{"empty values", `{"secret":{},"token":[],"password":""}`, `{"secret":"[REDACTED]","token":"[REDACTED]","password":"[REDACTED]"}`},
		{"white space stays", "{ \"token\" \t:\r\n 1 , \"a\" : [ ] }\n", "{ \"token\" \t:\r\n \"[REDACTED]\" , \"a\" : [ ] }\n"},
		{"everything else stays", `{"n":9007199254740993,"f":1e3,"z":-0,"u":"\u00e9\/","k":{"b":1,"a":2},"token":1,"x":1e400}`, `{"n":9007199254740993,"f":1e3,"z":-0,"u":"\u00e9\/","k":{"b":1,"a":2},"token":"[REDACTED]","x":1e400}`},
		{"escaped name", `{"pass\u0077ord":1,"\u0074oken":2}`, `{"pass\u0077ord":"[REDACTED]","\u0074oken":"[REDACTED]"}`},
		{"duplicate names", `{"token":1,"token":2}`, `{"token":"[REDACTED]","token":"[REDACTED]"}`},
		{"already redacted", `{"token":"[REDACTED]","a":{"secret":"[REDACTED]"}}`, ``},
		{"any depth", deep, strings.Replace(deep, `1`, `"[REDACTED]"`, 1)},
		{"a count of tokens", `{"tokens":512,"usage":{"tokens":-1}}`, ``},
		{"a list of tokens", `{"tokens":["a"],"b":{"tokens":"x"}}`, `{"tokens":"[REDACTED]","b":{"tokens":"[REDACTED]"}}`},
		{"a number under another plural", `{"secrets":512}`, `{"secrets":"[REDACTED]"}`},

		{"protocol members", `{"_meta":{"progressToken":"p-1"},"cursor":"a","nextCursor":"b"}`, ``},
		{"not the members of arguments", `{"arguments":{"progressToken":"p-1","cursor":"a"},"_meta":{"progressToken":1}}`, `{"arguments":{"progressToken":"[REDACTED]","cursor":"[REDACTED]"},"_meta":{"progressToken":1}}`},
		{"schemas", `{"tools":[{"inputSchema":{"properties":{"password":{"type":"string","default":{"token":"x"}}},"required":["password"]},"outputSchema":{"properties":{"token":true}}}]}`, ``},
		{"requested schema", `{"requestedSchema":{"properties":{"apiKey":{"type":"string"}}},"token":1}`, `{"requestedSchema":{"properties":{"apiKey":{"type":"string"}}},"token":"[REDACTED]"}`},
		{"behind a schema", `{"tools":[{"inputSchema":{"a":[{}]},"token":1}]}`, `{"tools":[{"inputSchema":{"a":[{}]},"token":"[REDACTED]"}]}`},
		{"a parameter called arguments", `{"inputSchema":{"properties":{"arguments":{"properties":{"token":{"type":"string","const":"x"}}}}}}`, ``},
		{"a schema as data", `{"structuredContent":{"inputSchema":{"properties":{"token":{"type":"string"},"secret":true},"default":{"token":"x","secret":1}}}}`, `{"structuredContent":{"inputSchema":{"properties":{"token":{"type":"string"},"secret":true},"default":{"token":"[REDACTED]","secret":"[REDACTED]"}}}}`},
		{"a schema as text", `{"text":"{\"inputSchema\":{\"properties\":{\"token\":{\"type\":\"string\"}}},\"token\":1}"}`, `{"text":"{\"inputSchema\":{\"properties\":{\"token\":{\"type\":\"string\"}}},\"token\":\"[REDACTED]\"}"}`},
		{"text within a schema", `{"inputSchema":{"description":"{\"token\":1}"}}`, ``},

		{"text", `{"text":"{\"password\":\"hunter2\",\"a\":1}"}`, `{"text":"{\"password\":\"[REDACTED]\",\"a\":1}"}`},
		{"array as text", `["[{\"token\":[1,2]},3]"]`, `["[{\"token\":\"[REDACTED]\"},3]"]`},
		{"text is the payload", `"{\"token\":1}"`, `"{\"token\":\"[REDACTED]\"}"`},
		{"text in text", `["{\"a\":\"{\\\"token\\\":\\\"x\\\",\\\"b\\\":2}\"}"]`, `["{\"a\":\"{\\\"token\\\":\\\"[REDACTED]\\\",\\\"b\\\":2}\"}"]`},
		{"escapes around a match in text", `["{\"\u00fc\ud83d\ude00ü\":\"\\u00e9\\/\\n\",\n\"to\u006ben\" : 1\u0031 ,\"b\\\\\":2\u007D"]`, `["{\"\u00fc\ud83d\ude00ü\":\"\\u00e9\\/\\n\",\n\"to\u006ben\" : \"[REDACTED]\" ,\"b\\\\\":2\u007D"]`},
		{"braces spelled as escapes", `["\u007b\u0022token\u0022:1\u007d"]`, `["\u007b\u0022token\u0022:\"[REDACTED]\"\u007d"]`},
		{"white space and BOM before the text", `[" \n\t\ufeff{\"token\":1}","` + "\ufeff" + `{\"token\":1}"]`, `[" \n\t\ufeff{\"token\":\"[REDACTED]\"}","` + "\ufeff" + `{\"token\":\"[REDACTED]\"}"]`},
		{"already redacted text", `["{\"token\":\"[REDACTED]\"}"]`, ``},
		{"JSON Lines", `["{\"token\":1}\n{\"a\":1}\n[{\"secret\":2}]\n"]`, `["{\"token\":\"[REDACTED]\"}\n{\"a\":1}\n[{\"secret\":\"[REDACTED]\"}]\n"]`},
		{"text behind the JSON", `["{\"token\":1} done, token: {\"token\":1}"]`, `["{\"token\":\"[REDACTED]\"} done, token: {\"token\":1}"]`},
		{"cut off behind a match", `["{\"token\":1,\"b\":[1,"]`, `["{\"token\":\"[REDACTED]\",\"b\":[1,"]`},
		{"cut off inside a match", `["{\"a\":1,\"token\":{\"x\":\"abc\n","{\"token\":\"[REDACTED]"]`, `["{\"a\":1,\"token\":\"[REDACTED]\"","{\"token\":\"[REDACTED]\""]`},
		{"cut off before a match", `["{\"token\":","{\"token\"","{\"tok"]`, ``},
		{"not quite JSON in a match", `["{\"token\": hunter2}"]`, `["{\"token\": \"[REDACTED]\""]`},
		{"other text", `["[INFO] password: \"x\"","{token: \"x\"}","a{\"token\":1}","{\"a\" \"token\":1}"]`, ``},
		{"text in a matched value", `{"token":"{\"token\":1}"}`, `{"token":"[REDACTED]"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, changed, err := p.Redact([]byte(c.in))
			switch {
			case err != nil:
				t.Fatal(err)
			case c.want == "" && (changed || out != nil):
				t.Errorf("changed to %s", out)
			case c.want != "" && (!changed || string(out) != c.want):
				t.Errorf("\n got %s\nwant %s", out, c.want)
			}
		})
	}
}

func TestRedactLeavesTheSourceAlone(t *testing.T) {
	src := []byte(`{"token":"x","a":["{\"token\":1}"]}`)
	before := string(src)
	if _, changed, err := profile(t).Redact(src); !changed || err != nil || string(src) != before {
		t.Errorf("%v %v %s", changed, err, src)
	}
}

func TestTextThatIsNotJSONIsAnErrorThatQuotesNothing(t *testing.T) {
	p := profile(t)
	for _, in := range []string{
		``, ` `, `{`, `}`, `[`, `[1`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{"a":1`, `{a:1}`, `[1}`, `{"a":1]`, `1 2`, `{}x`,
		`01`, `-`, `+1`, `.5`, `1.`, `1e`, `1e+`, `0x1`, `NaN`, `tru`, `nulll`, "\x00", "{}\x00", "[1\x00]",
		`"`, `"\`, `"\x"`, `"\u12"`, `"\u12G4"`, "\"\x1f\"", "\"\n\"", `"\ud800"`, `"\udc00\ud800"`, `"\ud800\u0041"`, "\"\xff\"", "\"\xed\xa0\x80\"", "\ufeff{}",
		`{"password":"hunter2"`, `{"password":hunter2}`,
	} {
		out, changed, err := p.Redact([]byte(in))
		if !errors.Is(err, redact.ErrNotJSON) || out != nil || changed {
			t.Errorf("%q: %q %v %v", in, out, changed, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", in, err)
		}
	}
}
