package policy_test

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

func compile(t testing.TB, cfg policy.Config) *policy.Policy {
	t.Helper()
	p, err := policy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// read is a message as the strict scan reads it.
func read(t testing.TB, message string) policy.Call {
	t.Helper()
	msgs, _, fault := mcp.Scan([]byte(message), nil)
	if fault != nil {
		t.Fatalf("%s: %v", message, fault)
	}
	var c policy.Call
	c.Read(&msgs[0], []byte(message))
	return c
}

func TestEveryReadingOfAURIMustBeAllowed(t *testing.T) {
	allowed := compile(t, policy.Config{DefaultDeny: true, Rules: []policy.Rule{
		{ID: "SRV", Allow: true, Methods: []string{"resources/*", "subscriptions/listen"}, Names: []string{"file:///srv/**", "https://docs.example/**"}},
	}})
	denied := compile(t, policy.Config{Rules: []policy.Rule{{ID: "ETC", Names: []string{"file:///etc/**"}}}})
	for _, c := range []struct {
		uri           string
		srv, notETC   bool
		anomalyOfBoth bool
	}{
		{"file:///srv/a", true, true, false},
		{"file:///srv/a%20b", true, true, false},
		{"file:///srv/%C3%A9", true, true, false},
		{"https://docs.example/a?b=c#d", true, true, false},
		{"file:///etc/passwd", false, false, false},
		{"file:///srv/../etc/passwd", false, false, true},
		{"file:///srv/%2e%2e/etc/passwd", false, false, true},
		{"file:///srv/..%2fetc/passwd", false, false, true},
		{"file:///srv/%252e%252e/etc/passwd", false, false, true},
		{`file:///srv/..\etc/passwd`, false, false, true},
		{"file:///srv/..%5cetc/passwd", false, false, true},
		{"file:///srv//../../etc/passwd", false, false, true},
		{"file:///srv/a?/../../etc/passwd", false, false, true},
		{"file:///srv/a#/../../etc/passwd", false, false, true},
		{"file:///srv/./a", true, true, false},
		{"FILE:///etc/passwd", false, false, false},
		{"file:///%65tc/passwd", false, false, false},
		{"https://docs.example/%2e%2e/x", true, true, false},
		{"file:///srv/" + strings.Repeat("%25", 3) + "252e/x", true, true, false},
		{"file:///srv/%2525252525252e/x", false, false, true},
	} {
		call := policy.Call{Method: "resources/read", Name: c.uri}
		if d := allowed.Decide(&call); d.Allow != c.srv || c.anomalyOfBoth && d.Anomaly != "uri_ambiguous" {
			t.Errorf("allow /srv: %s: %+v", c.uri, d)
		}
		d := denied.Decide(&call)
		if d.Allow != c.notETC {
			t.Errorf("deny /etc: %s: %+v", c.uri, d)
		}
	}
	// The same for every method that names a resource, one by one.
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"file:///srv/../etc/x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":"file:///srv/../etc/x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"file:///etc/{x}"},"argument":{"name":"x","value":"y"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["file:///srv/a","file:///srv/%2e./etc/x"]}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"vendor/open","params":{"uri":"file:///srv/../etc/x"}}`,
	} {
		call := read(t, message)
		if d := denied.Decide(&call); d.Allow || d.RuleID != "ETC" {
			t.Errorf("%s: %+v", message, d)
		}
	}
	call := read(t, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["file:///srv/a"],"toolsListChanged":true}}}`)
	if d := denied.Decide(&call); !d.Allow {
		t.Errorf("%+v", d)
	}
	subscribe := compile(t, policy.Config{Rules: []policy.Rule{{ID: "S", Methods: []string{"resources/subscribe"}, Names: []string{"file:///srv/a"}}}})
	if d := subscribe.Decide(&call); d.Allow || d.Of != "file:///srv/a" {
		t.Errorf("listen is no subscribe: %+v", d)
	}
	// Names of tools and prompts are no URIs.
	tools := compile(t, policy.Config{DefaultDeny: true, Rules: []policy.Rule{{ID: "T", Allow: true, Names: []string{"a/../b", "%41"}}}})
	for _, name := range []string{"a/../b", "%41"} {
		if d := tools.Decide(&policy.Call{Method: "tools/call", Name: name}); !d.Allow {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestServersRequestsAreJudgedByMethodAndHost(t *testing.T) {
	p := compile(t, policy.Config{DefaultDeny: true, Rules: []policy.Rule{
		{ID: "OWN", Allow: true, URLHosts: []string{"login.example", "*.login.example"}},
		{ID: "FORM", Allow: true, Methods: []string{"elicitation/create"}, When: `!has(params.url)`},
		{ID: "ROOTS", Allow: true, Methods: []string{"roots/list"}},
	}})
	for params, want := range map[string]string{
		`{"mode":"url","url":"https://login.example/x"}`:        "OWN",
		`{"mode":"url","url":"https://A.LOGIN.example:8443/x"}`: "OWN",
		`{"mode":"url","url":"https://login.example./x"}`:       "OWN",
		`{"message":"m"}`: "FORM",
		`{"mode":"url","url":"https://evil.example/?login.example"}`:              "",
		`{"mode":"url","url":"https://login.example@evil.example/"}`:              "OWN!",
		`{"mode":"url","url":"https://evil.example\\@login.example/"}`:            "OWN!",
		`{"mode":"url","url":"https://evil.example\t/"}`:                          "OWN!",
		`{"mode":"url","url":"https://login.example/","URL":"https://evil.test"}`: "OWN!",
		`{"mode":"url","url":["https://login.example/"]}`:                         "OWN!",
		`{"mode":"url","url":"javascript:alert(1)"}`:                              "",
	} {
		d := p.Decide(&policy.Call{Method: "elicitation/create", FromServer: true, Params: []byte(params)})
		got := d.RuleID
		if d.Anomaly != "" {
			got += "!"
		}
		if got != want || d.Allow != (want == "OWN" || want == "FORM") {
			t.Errorf("%s: %+v, want %q", params, d, want)
		}
	}
	for method, want := range map[string]bool{"roots/list": true, "sampling/createMessage": false} {
		if d := p.Decide(&policy.Call{Method: method, FromServer: true}); d.Allow != want {
			t.Errorf("%s: %+v", method, d)
		}
	}
}

func TestAnsweredQuestionsAreJudgedAsTheQuestions(t *testing.T) {
	p := compile(t, policy.Config{Rules: []policy.Rule{
		{ID: "NO", Methods: []string{"sampling/createMessage"}},
		{ID: "EVIL", URLHosts: []string{"evil.example"}},
	}})
	const retry = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{},"inputResponses":%}}`
	for responses, want := range map[string]string{
		`{"a":{"action":"accept","content":{}}}`:              "",
		`{"a":{"roots":[]}}`:                                  "",
		`{"a":{"role":"assistant","content":{},"model":"m"}}`: "NO",
		`{"a":{"roots":[]},"b":{"role":"assistant"}}`:         "NO",
		`{"a":{}}`:                       "NO",
		`[{"role":"assistant"}]`:         "!",
		`{"a":{"\u0061ction":"accept"}}`: "",
	} {
		c := read(t, strings.Replace(retry, "%", responses, 1))
		d := p.Decide(&c)
		if want == "!" {
			if d.Allow || d.Anomaly != "input_ambiguous" {
				t.Errorf("%s: %+v", responses, d)
			}
		} else if d.Allow != (want == "") || d.RuleID != want || !d.Allow && d.Of != "sampling/createMessage" {
			t.Errorf("%s: %+v, want %q", responses, d, want)
		}
	}
}

func TestQuestionsInAnAnswerAreFound(t *testing.T) {
	const ask = `{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{"a":{"method":"roots/list"}}`
	for answer, want := range map[string]string{
		ask + `},"Result":{}}`:                  "?",
		ask + `},"result":{}}`:                  "?",
		ask + `,"InputRequests":{}}}`:           "?",
		ask + `,"input\u0052equest\u017f":{}}}`: "?",
		ask + `,"inputRequests":{}}}`:           "?",
		ask + `}}`:                              "roots/list  ",
		`{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{"a":{"method":"roots/list","Method":"x"}}}}`:                                                                                                 "?",
		`{"jsonrpc":"2.0","id":1,"result":{"inputRequests":{"a":{"method":"roots/list","method":"x"}}}}`:                                                                                                 "?",
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","Data":{"elicitations":[]}}}`:                                                                                                      "?",
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"Elicitations":[]}}}`:                                                                                                      "?",
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"mode":"url","url":"https://x/"}},"b":{"method":"roots/list"}}}}`: `elicitation/create {"mode":"url","url":"https://x/"} roots/list  `,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"https://x/"}]}}}`:                                                                     `elicitation/create {"mode":"url","url":"https://x/"} `,
		`{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`:                                                                                                                                               ``,
	} {
		msgs, _, fault := mcp.ScanAnswer([]byte(answer), nil)
		if fault != nil {
			t.Fatal(fault)
		}
		got := ""
		clear := policy.Asked(&msgs[0], []byte(answer), policy.Call{Method: "tools/call", Name: "t"}, func(c *policy.Call) {
			if !c.FromServer || c.Name != "" {
				t.Errorf("%+v", c)
			}
			got += c.Method + " " + string(c.Params) + " "
		})
		if clear == (want == "?") || clear && got != want {
			t.Errorf("%s: %q, clear %v", answer, got, clear)
		}
	}
}

func TestATaskIsJudgedAsTheCallThatMadeIt(t *testing.T) {
	of := &policy.Origin{Method: "tools/call", Name: "write_file", Arguments: []byte(`{"path":"/etc/x"}`)}
	p := compile(t, policy.Config{DefaultDeny: true, Rules: []policy.Rule{
		{ID: "CANCEL", Methods: []string{"tasks/cancel"}},
		{ID: "PATH", Tools: []string{"write_file"}, When: `!args.path.startsWith("/srv/")`},
		{ID: "READ", Allow: true, Methods: []string{"tools/call"}, Tools: []string{"read_*"}},
	}})
	read := &policy.Origin{Method: "tools/call", Name: "read_file", Arguments: []byte(`{}`)}
	for _, c := range []struct {
		method, rule string
		of           *policy.Origin
	}{
		{"tasks/result", "PATH", of}, {"tasks/get", "READ", read}, {"tasks/cancel", "CANCEL", read}, {"tasks/get", "", nil},
	} {
		d := p.Decide(&policy.Call{Method: c.method, Name: "task-1", Of: c.of})
		if d.RuleID != c.rule || d.Allow != (c.rule == "READ") {
			t.Errorf("%+v: %+v", c, d)
		}
	}
	only := compile(t, policy.Config{DefaultDeny: true, ToolsOnly: true})
	if d := only.Decide(&policy.Call{Method: "tasks/result", Name: "x", Of: of}); d.Allow {
		t.Errorf("scope tools_only: %+v", d)
	}
	if d := only.Decide(&policy.Call{Method: "tasks/result", Name: "x"}); !d.Allow {
		t.Errorf("scope tools_only, unknown task: %+v", d)
	}
}

func TestAbsentValuesMatchNoPattern(t *testing.T) {
	for name, r := range map[string]policy.Rule{
		"tool": {Tools: []string{"*"}}, "name": {Names: []string{"*"}}, "subject": {Subjects: []string{"*"}}, "issuer": {Issuers: []string{"*"}},
		"role": {Roles: []string{"*"}}, "scope": {Scopes: []string{"*"}}, "client_id": {ClientIDs: []string{"*"}},
		"server_id": {ServerIDs: []string{"*"}}, "url_host": {URLHosts: []string{"*"}},
	} {
		r.ID = "A"
		p := compile(t, policy.Config{Rules: []policy.Rule{r}})
		if d := p.Decide(&policy.Call{Method: "ping"}); !d.Allow {
			t.Errorf("%s *: %+v", name, d)
		}
	}
	p := compile(t, policy.Config{Rules: []policy.Rule{{ID: "A", Tools: []string{"x"}, Roles: []string{"guest", "temp*"}, Scopes: []string{"s"}}}})
	for _, c := range []struct {
		roles, scopes []string
		deny          bool
	}{
		{[]string{"admin", "temporary"}, []string{"r", "s"}, true}, {[]string{"admin"}, []string{"s"}, false}, {[]string{"guest"}, nil, false},
	} {
		d := p.Decide(&policy.Call{Method: "tools/call", Name: "x", Caller: &policy.Caller{Roles: c.roles, Scopes: c.scopes}})
		if d.Allow == c.deny {
			t.Errorf("%+v: %+v", c, d)
		}
	}
}

func TestNamesTooLongToCompareAreDenied(t *testing.T) {
	p := compile(t, policy.Config{Rules: []policy.Rule{{ID: "A", Names: []string{"**a*b"}}}})
	if d := p.Decide(&policy.Call{Method: "tools/call", Name: strings.Repeat("a", 1<<20)}); d.Allow || d.Anomaly != "name_too_long" {
		t.Errorf("%+v", d)
	}
}

func TestExplainNamesEveryRuleThatWasTried(t *testing.T) {
	p := compile(t, policy.Config{Rules: []policy.Rule{
		{ID: "A", Tools: []string{"read_*"}},
		{ID: "B", Tools: []string{"write_file"}, When: `args.path == "/x"`},
		{ID: "C", Allow: true, Tools: []string{"write_file"}},
	}})
	c := read(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/y"}}}`)
	trace := p.Explain(&c, false)
	if trace.Decision != p.Decide(&c) || len(trace.Parts) != 1 || len(trace.Parts[0].Steps) != 3 {
		t.Fatalf("%+v", trace)
	}
	s := trace.Parts[0].Steps
	if s[0].Selector != "tool" || s[0].Value != "write_file" || s[1].Selector != "when" || !s[2].Matched {
		t.Errorf("%+v", s)
	}
	if d := p.Explain(&c, true).Decision; !d.Allow || d.RuleID != "C" {
		t.Errorf("in a list: %+v", d)
	}
}
