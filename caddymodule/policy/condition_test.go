package policy_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// when judges arguments by a policy whose one rule allows on a condition.
func when(t testing.TB, condition, args string) policy.Decision {
	t.Helper()
	p, err := policy.New(policy.Config{DefaultDeny: true, Rules: []policy.Rule{{ID: "A", Allow: true, When: condition}}})
	if err != nil {
		t.Fatalf("%s: %v", condition, err)
	}
	return p.Decide(&policy.Call{
		Method: "tools/call", Name: "t", Arguments: []byte(args), Params: []byte(`{"name":"t","arguments":` + args + `}`),
		Caller: &policy.Caller{Subject: "alice", Roles: []string{"operator"}, Scopes: []string{"a", "b"}}, ClientID: "cli", ServerID: "srv",
		ProtocolVersion: "2026-07-28", Annotations: []byte(`{"readOnlyHint":true,"title":"T"}`),
	})
}

func TestConditionsSeeTheExactValuesOfACall(t *testing.T) {
	for _, c := range []struct {
		condition, args string
		allow           bool
	}{
		{`args.path.startsWith("/srv/")`, `{"path":"/srv/a"}`, true},
		{`args.path.startsWith("/srv/")`, `{"path":"\u002fsrv\/a"}`, true},
		{`args.path.startsWith("/srv/")`, `{"\u0070ath":"/srv/a"}`, true},
		{`args.path.startsWith("/srv/")`, `{"path":"/SRV/a"}`, false},
		{`args["path"] == "a"`, `{"path":"a"}`, true},
		{`"path" in args && !("x" in args)`, `{"path":null}`, true},
		{`args.path == null`, `{"path":null}`, true},
		{`has(args.path)`, `{}`, false},
		{`size(args) == 2`, `{"a":1,"b":2}`, true},
		{`args.all(k, k.startsWith("a"))`, `{"a1":1,"a2":2}`, true},
		{`args.list.exists(x, x == "b")`, `{"list":["a","b"]}`, true},
		{`"b" in args.list`, `{"list":["a",1,"b"]}`, true},
		{`args.list == [1, 2, 3]`, `{"list":[1,2.0,3e0]}`, true},
		{`args.o == {"a": 1, "b": [true, null]}`, `{"o":{"b":[true,null],"a":1}}`, true},
		{`args.o == {"a": 1}`, `{"o":{"a":2}}`, false},
		{`args.a == args.b`, `{"a":{"x":[1]},"b":{"x":[1.0]}}`, true},
		{`args.o.p.q == "x"`, `{"o":{"p":{"q":"x"}}}`, true},
		{`params.name == "t" && params.arguments.n == 1`, `{"n":1}`, true},
		{`args.force`, `{"force":true}`, true},
		{`args.n == 9007199254740993`, `{"n":9007199254740993}`, true},
		{`args.n == 9007199254740993`, `{"n":9007199254740992}`, false},
		{`args.n == 9007199254740993`, `{"n":9007199254740993.0}`, true},
		{`args.n == 9223372036854775807`, `{"n":9223372036854775807}`, true},
		{`args.n == -9223372036854775808`, `{"n":-9223372036854775808}`, true},
		{`args.n == 100 && args.n == 100.0 && args.n <= 100`, `{"n":1e2}`, true},
		{`args.n == 0`, `{"n":-0.0e7}`, true},
		{`args.n > 0.5 && args.n < 1 && args.n == 0.75`, `{"n":75e-2}`, true},
		{`args.n < 10`, `{"n":9.5}`, true},
		{`principal.subject == "alice" && "operator" in principal.roles && principal.scopes == ["a", "b"] && principal.issuer == "" && principal.client_id == ""`, `{}`, true},
		{`request.method == "tools/call" && request.name == "t" && request.client_id == "cli" && request.server_id == "srv" && !request.from_server && request.protocol_version >= "2026-07-28"`, `{}`, true},
		{`tool.annotations.readOnlyHint && tool.annotations.title == "T"`, `{}`, true},
		{`args.url.matches("^https://[a-z]+[.]example/")`, `{"url":"https://docs.example/x"}`, true},
		{`path_clean(args.path).startsWith("/srv/")`, `{"path":"/srv/a/../b"}`, true},
		{`path_clean(args.path).startsWith("/srv/")`, `{"path":"/srv/../etc/passwd"}`, false},
		{`path_clean(args.path).startsWith("/srv/")`, `{"path":"/srv//..//etc"}`, false},
		{`path_clean(args.path).startsWith("/srv/")`, `{"path":"/srvx"}`, false},
		{`path_clean(args.path) == "../x"`, `{"path":"a/../../x"}`, true},
		{`uri_scheme(args.u) == "https" && uri_host(args.u) == "a.example" && uri_port(args.u) == "8443" && uri_path(args.u) == "/x/y" && uri_query(args.u) == "q=1"`,
			`{"u":"HTTPS://A.Example.:8443/x/%7e/../y?q=1#f"}`, true},
		{`uri_host(args.u) == "::1"`, `{"u":"http://[0:0::1]/"}`, true},
		{`uri_path(args.u) == "/etc"`, `{"u":"file:///srv/%2e%2E/etc"}`, true},
		{`uri_host(args.u) == ""`, `{"u":"mailto:a.b"}`, true},
	} {
		if d := when(t, c.condition, c.args); d.Allow != c.allow || d.Anomaly != "" {
			t.Errorf("%s on %s: %+v", c.condition, c.args, d)
		}
	}
}

func TestAConditionWithoutAValueDeniesAndSaysWhy(t *testing.T) {
	const secret = "hunter2"
	for _, c := range []struct{ condition, args, reason string }{
		{`args.path == "a"`, `{}`, "missing"},
		{`args.o.p == "a"`, `{"o":{}}`, "missing"},
		{`args[args.k] == "a"`, `{"k":"` + secret + `"}`, "missing"},
		{`tool.annotations.destructiveHint`, `{}`, "missing"},
		{`args.path.startsWith("/")`, `{"path":7}`, "another type"},
		{`args.n > 3`, `{"n":"` + secret + `"}`, "another type"},
		{`int(args.n) > 3`, `{"n":"` + secret + `"}`, "cannot be evaluated"},
		{`args.n`, `{"n":"` + secret + `"}`, "neither true nor false"},
		{`args.list[3] == 1`, `{"list":[1]}`, "shorter"},
		{`args.n == 5`, `{"n":9223372036854775808}`, "exactly"},
		{`args.n == 9007199254740992`, `{"n":9007199254740992.5}`, "exactly"},
		{`args.n > 0`, `{"n":1e400}`, "exactly"},
		{`args.n == 0`, `{"n":1e-400}`, "exactly"},
		{`args.n == 0`, `{"n":1e999999999999}`, "exactly"},
		{`args.n > 0`, `{"n":1e20}`, "exactly"},
		{`args.list == [1]`, `{"list":[1e20]}`, "exactly"},
		{`1 in args.list`, `{"list":[1e20]}`, "exactly"},
		{`args.a == args.b`, `{"a":{"x":1e20},"b":{"x":1e20}}`, "exactly"},
		{`path_clean(args.path) == "/"`, `{"path":"/srv\\..\\etc"}`, "backslash"},
		{`path_clean(args.path) == "/"`, `{"path":"/srv\u0000"}`, "backslash"},
		{`uri_host(args.u) == "good.example"`, `{"u":"https://good.example@evil.example/"}`, "more than one way"},
		{`uri_host(args.u) == "good.example"`, `{"u":"https://good.example\\@evil.example/"}`, "more than one way"},
		{`uri_host(args.u) == "127.0.0.1"`, `{"u":"http://0x7f.1/"}`, "more than one way"},
		{`uri_host(args.u) == "good.example"`, `{"u":"https://g\u043eod.example/"}`, "more than one way"},
		{`uri_path(args.u) == "/a"`, `{"u":"file:///srv%2f..%2fa"}`, "more than one way"},
		{`uri_path(args.u) == "/a"`, `{"u":"file:///%252e%252e/a"}`, "more than one way"},
		{`args.list.all(a, args.list.all(b, args.list.all(c, a + b + c >= 0)))`, `{"list":[` + strings.Repeat("1,", 200) + `1]}`, "bound"},
		{`size(args.list) > 0`, `{"list":[` + strings.Repeat("1,", 100_000) + `1]}`, "more values"},
	} {
		d := when(t, c.condition, c.args)
		if d.Allow || d.RuleID != "A" || d.Anomaly != "condition_error" || !strings.Contains(d.Reason, c.reason) || strings.Contains(d.Reason, secret) {
			t.Errorf("%s on %.60s: %+v, want a reason with %q", c.condition, c.args, d, c.reason)
		}
	}
}

// An error on a deny rule denies too, and so does one on the other side of a
// comparison: the order of a comparison must not matter.
func TestUnreadableNumbersNeverCompareEqual(t *testing.T) {
	for _, n := range []string{"9223372036854775808", "1e20", "9007199254740993.5", "-1e19", "123456789012345678901234567890"} {
		for _, condition := range []string{`args.n == %s`, `%s == args.n`, `args.n != %s`, `%s != args.n`, `[%s] == [args.n]`, `args.n in [%s]`} {
			text := fmt.Sprintf(condition, "9223372036854775807")
			if d := when(t, text, `{"n":`+n+`}`); d.Allow || d.Anomaly == "" {
				t.Errorf("%s on %s: %+v", text, n, d)
			}
		}
	}
}

func FuzzConditionValues(f *testing.F) {
	for _, seed := range []string{"0", "-0", "1", "1.0", "1e2", "9007199254740993", "9223372036854775807", "9223372036854775808", "0.1", "1e-400", "5e-324", "100000e-5", "1E+2"} {
		f.Add(seed, int64(1))
	}
	f.Fuzz(func(t *testing.T, token string, n int64) {
		if len(token) > 200 || !isNumber(token) {
			return
		}
		d := when(t, fmt.Sprintf(`args.n == %d`, n), `{"n":`+token+`}`)
		if d.Anomaly != "" {
			return
		}
		exact, ok := new(big.Rat).SetString(token)
		if !ok {
			return
		}
		if want := exact.Cmp(new(big.Rat).SetInt64(n)) == 0; d.Allow != want {
			t.Errorf("%s == %d: %v, want %v", token, n, d.Allow, want)
		}
	})
}

func FuzzConditionArguments(f *testing.F) {
	for _, seed := range []string{`{}`, `{"a":[1,{"b":null}]}`, `{"a":"\u00e9","b":1e400}`, `{"path":"/srv/..","u":"http://[::1]:0/%2f"}`} {
		f.Add(seed)
	}
	var policies []*policy.Policy
	for _, condition := range []string{
		`args == args`, `args == params.arguments`, `args.all(k, k in args && args[k] == params.arguments[k])`, `size(args) >= 0`,
		`path_clean(args.path) == path_clean(path_clean(args.path))`, `uri_host(args.u) == uri_host("x://" + uri_host(args.u))`,
	} {
		policies = append(policies, compile(f, policy.Config{DefaultDeny: true, Rules: []policy.Rule{{ID: "A", Allow: true, When: condition}}}))
	}
	f.Fuzz(func(t *testing.T, args string) {
		message := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":` + args + `}}`
		msgs, _, fault := mcp.Scan([]byte(message), nil)
		if fault != nil || len(args) == 0 || args[0] != '{' {
			return
		}
		var c policy.Call
		c.Read(&msgs[0], []byte(message))
		for i, p := range policies {
			if d := p.Decide(&c); !d.Allow && d.Anomaly == "" {
				t.Errorf("condition %d is false on %s", i, args)
			}
			if !p.Listed(&c).Allow {
				t.Errorf("condition %d hides a tool", i)
			}
		}
	})
}

// isNumber reports whether a text is a JSON number that big.Rat may expand.
func isNumber(s string) bool {
	rest := strings.TrimPrefix(s, "-")
	digits := func() int {
		n := 0
		for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			n++
		}
		rest = rest[n:]
		return n
	}
	zero := strings.HasPrefix(rest, "0")
	if n := digits(); n == 0 || zero && n > 1 {
		return false
	}
	if strings.HasPrefix(rest, ".") {
		rest = rest[1:]
		if digits() == 0 {
			return false
		}
	}
	if rest != "" && (rest[0] == 'e' || rest[0] == 'E') {
		rest = strings.TrimLeft(rest[1:], "+-")
		if n := digits(); n == 0 || n > 3 {
			return false
		}
		if i := strings.IndexAny(s, "eE"); strings.ContainsAny(strings.TrimLeft(s[i+1:], "+-"), "+-") || len(s[i+1:])-len(strings.TrimLeft(s[i+1:], "+-")) > 1 {
			return false
		}
	}
	return rest == ""
}
