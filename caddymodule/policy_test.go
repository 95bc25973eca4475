package caddymodule_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

const (
	legacyCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s}}`
	modernCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}%s}}`
)

// modern are the headers of a call of revision 2026-07-28.
func modern(name string) []string {
	return []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", name}
}

// policyOf is the policy of a record.
func policyOf(r record) map[string]any {
	p, _ := r["policy"].(map[string]any)
	return p
}

func TestArgumentsDecideByTheirCleanedPath(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, `policy {
		rule PATH-1 deny {
			tool write_file
			when `+"`!path_clean(args.path).startsWith(\"/srv/\")`"+`
			reason "outside /srv"
		}
	}
	explain`, "")
	for i, c := range []struct{ tool, args, reason, anomaly string }{
		{"write_file", `{"path":"/srv/a"}`, "", ""},
		{"read_file", `{"path":"/etc/passwd"}`, "", ""},
		{"write_file", `{"path":"/srv/../etc/passwd"}`, "outside /srv", ""},
		{"write_file", `{"path":"/srv/\u002e\u002e/etc/passwd"}`, "outside /srv", ""},
		{"write_file", `{}`, "a value that the condition needs is missing", "condition_error"},
		{"write_file", `{"path":["/srv/"]}`, "a value has another type than the condition needs", "condition_error"},
		{"write_file", `{"path":"/srv/\\..\\..\\etc"}`, "a path has a backslash or a NUL, which systems read differently", "condition_error"},
	} {
		before := len(up.received())
		_, answer := r.post(fmt.Sprintf(legacyCall, c.tool, c.args))
		if denied := strings.Contains(answer, "-32030"); denied != (c.reason != "") || denied != (len(up.received()) == before) {
			t.Errorf("%d: %s", i, answer)
		}
		if c.reason == "" {
			continue
		}
		if !strings.Contains(answer, `"rule":"PATH-1"`) {
			t.Errorf("%d: %s", i, answer)
		}
		rec := lastEvent(t, r.records())
		anomalies, _ := json.Marshal(rec["anomaly"])
		if p := policyOf(rec); p["rule_id"] != "PATH-1" || p["reason"] != c.reason || p["digest"] == "" || c.anomaly != "" && !strings.Contains(string(anomalies), c.anomaly) {
			t.Errorf("%d: %v", i, rec)
		}
	}
	r.verify()
}

// lastEvent is the newest event: a denial has its record before its answer,
// while outcomes may still be on their way.
func lastEvent(t *testing.T, records []record) record {
	t.Helper()
	for _, rec := range slices.Backward(records) {
		if rec.str("kind") == "event" {
			return rec
		}
	}
	t.Fatal("there is no event")
	return nil
}

const noSampling = `policy {
	rule NO-SAMPLING deny {
		method sampling/createMessage
		reason "no model access"
	}
	rule EVIL deny {
		url_host evil.example
	}
}`

// A server's request that is denied never reaches the client, the server is
// told so by a POST in its session, and its tool goes on.
func TestADeniedRequestOfAServerIsAnsweredInItsClientsPlace(t *testing.T) {
	for name, lineEnd := range map[string]string{"LF": "\n", "CRLF": "\r\n", "CR": "\r", "CRLF by byte": "\r\n"} {
		t.Run(name, func(t *testing.T) {
			told := make(chan string, 1)
			up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
				body := readBody(t, req)
				if !strings.Contains(body, `"method"`) {
					if req.Header.Get("Mcp-Session-Id") != "s1" {
						t.Errorf("the answer came without its session: %v", req.Header)
					}
					told <- body
					w.WriteHeader(http.StatusAccepted)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				send := func(text string) {
					text = strings.ReplaceAll(text, "\n", lineEnd)
					size := len(text)
					if strings.HasSuffix(name, "byte") {
						size = 1
					}
					for ; text != ""; text = text[size:] {
						fmt.Fprint(w, text[:size])
						_ = http.NewResponseController(w).Flush()
					}
				}
				send("id: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"roots/list\"}\n\nid: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"s-1\",\"meth")
				send("od\":\"sampling/createMessage\",\"params\":{\"messages\":[]}}\n\n:comment\n\n")
				select {
				case got := <-told:
					told <- got
				case <-time.After(10 * time.Second):
					t.Error("the server was not told")
				}
				send("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"content\":[]}}\n\n")
			})
			r := start(t, up, noSampling, "")
			_, answer := r.post(fmt.Sprintf(legacyCall, "t", "{}"), "Mcp-Session-Id", "s1")
			if strings.Contains(answer, "sampling") || !strings.Contains(answer, "roots/list") || !strings.Contains(answer, `"result"`) || !strings.Contains(answer, ":comment") {
				t.Errorf("the client got %q", answer)
			}
			if got := <-told; !strings.Contains(got, `"id":"s-1"`) || !strings.Contains(got, "-32030") || strings.Contains(got, "NO-SAMPLING") {
				t.Errorf("the server was told %s", got)
			}
			for _, rec := range r.await(4) { // roots/list stays open: its answer may come on another stream
				if rec.str("method") != "sampling/createMessage" {
					continue
				}
				if p := policyOf(rec); rec.str("kind") != "event" || rec.str("outcome") != "denied" || p["rule_id"] != "NO-SAMPLING" || rec.str("direction") != "server→client" {
					t.Errorf("%v", rec)
				}
			}
			r.verifyLive()
		})
	}
}

func TestAnAnswerThatAsksForWhatIsDeniedBecomesAnError(t *testing.T) {
	const ask = `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"x","inputRequests":{"a":{"method":%q,"params":%s}}}}`
	sampling := fmt.Sprintf(ask, "sampling/createMessage", `{"messages":[]}`)
	evil := fmt.Sprintf(ask, "elicitation/create", `{"mode":"url","url":"https://evil.example/"}`)
	fine := fmt.Sprintf(ask, "elicitation/create", `{"mode":"url","url":"https://good.example/"}`)
	urlError := `{"jsonrpc":"2.0","id":1,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","url":"https://evil.example/"}]}}}`
	for name, c := range map[string]struct {
		answer string
		stream bool
		rule   string
	}{
		"sampling":             {sampling, false, "NO-SAMPLING"},
		"sampling in a stream": {sampling, true, "NO-SAMPLING"},
		"url":                  {evil, false, "EVIL"},
		"url in a stream":      {evil, true, "EVIL"},
		"url in an error":      {urlError, false, "EVIL"},
		"allowed":              {fine, false, ""},
		"allowed in a stream":  {fine, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				if c.stream {
					sse(w)(c.answer)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, c.answer[:20])
				_ = http.NewResponseController(w).Flush()
				fmt.Fprint(w, c.answer[20:])
			})
			r := start(t, up, noSampling, "")
			status, answer := r.post(fmt.Sprintf(modernCall, "t", "{}", ""), modern("t")...)
			if status != http.StatusOK {
				t.Errorf("status %d", status)
			}
			out := outcomeOf(t, r.await(2), "tools/call")
			if c.rule == "" {
				if !strings.Contains(answer, c.answer) || out.str("outcome") != "input_required" {
					t.Errorf("%s\n%v", answer, out)
				}
				return
			}
			if strings.Contains(answer, "inputRequests") || strings.Contains(answer, "evil") || !strings.Contains(answer, `"id":1,"error":{"code":-31030`) {
				t.Errorf("the client got %s", answer)
			}
			if p := policyOf(out); out.str("outcome") != "denied" || p["decision"] != "deny" || p["rule_id"] != c.rule {
				t.Errorf("%v", out)
			}
			r.verify()
		})
	}
}

func TestARetryWithADeniedAnswerIsDenied(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, noSampling, "")
	_, answer := r.post(fmt.Sprintf(modernCall, "t", "{}", `,"requestState":"x","inputResponses":{"a":{"role":"assistant","content":{"type":"text","text":"x"},"model":"m"}}`), modern("t")...)
	if !strings.Contains(answer, "-31030") || len(up.received()) != 0 {
		t.Errorf("%s", answer)
	}
	if p := policyOf(r.await(1)[0]); p["reason"] != "sampling/createMessage: no model access" {
		t.Errorf("%v", p)
	}
	if _, answer = r.post(fmt.Sprintf(modernCall, "t", "{}", `,"inputResponses":{"a":{"action":"accept"}}`), modern("t")...); strings.Contains(answer, "error") {
		t.Errorf("%s", answer)
	}
}

func TestATaskIsDeniedWhenItsToolIs(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.Contains(readBodyOf(req), "tools/call") {
			answerJSONText(w, `{"jsonrpc":"2.0","id":1,"result":{"task":{"taskId":"T-1","status":"working"}}}`)
			return
		}
		answerJSONText(w, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`)
	})
	r := start(t, up, "policy {\n\trule OK allow\n}", "")
	r.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wire","arguments":{"amt":7},"task":{"ttl":1000}}}`)
	const result = `{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"%s"}}`
	if _, answer := r.post(fmt.Sprintf(result, "T-1")); strings.Contains(answer, "error") {
		t.Fatal(answer)
	}
	if err := r.load(r.caddyfile("policy {\n\trule WIRE deny {\n\t\ttool wire\n\t\twhen `args.amt > 5`\n\t}\n}", "")); err != nil {
		t.Fatal(err)
	}
	if _, answer := r.post(fmt.Sprintf(result, "T-1")); !strings.Contains(answer, "-32030") {
		t.Errorf("the task of a denied call: %s", answer)
	}
	if _, answer := r.post(fmt.Sprintf(result, "T-2")); strings.Contains(answer, "error") {
		t.Errorf("a task that nobody knows: %s", answer)
	}
	r.verify()
}

func TestConditionsSeeTheAnnotationsOfTheLastList(t *testing.T) {
	var stream atomic.Bool
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		if !strings.Contains(readBodyOf(req), "tools/list") {
			answerJSONText(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			return
		}
		const list = `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"safe","annotations":{"readOnlyHint":true}},{"name":"bad","annotations":{"readOnlyHint":%t}},{"name":"none"}]}}`
		if stream.Load() {
			sse(w)(fmt.Sprintf(list, true))
			return
		}
		answerJSONText(w, fmt.Sprintf(list, false))
	})
	r := start(t, up, "policy {\n\tdefault deny\n\trule LIST allow {\n\t\tmethod tools/list\n\t}\n\trule RO allow {\n\t\tmethod tools/call\n\t\twhen `tool.annotations.readOnlyHint`\n\t}\n}", "")
	try := func(tool string) bool {
		_, answer := r.post(fmt.Sprintf(legacyCall, tool, "{}"))
		return !strings.Contains(answer, "-32030")
	}
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	if try("safe") {
		t.Error("a tool that was not listed yet has annotations")
	}
	r.post(list)
	if !try("safe") || try("bad") || try("none") {
		t.Error("annotations of the first list")
	}
	stream.Store(true)
	r.post(list)
	if !try("bad") {
		t.Error("annotations of the second list")
	}
}

func TestObservedDenialsOfServersAreRecordedAndGoOn(t *testing.T) {
	const ask = `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"sampling/createMessage","params":{}}}}}`
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { answerJSONText(w, ask) })
	r := start(t, up, noSampling+"\nmode observe", "")
	if _, answer := r.post(fmt.Sprintf(modernCall, "t", "{}", ""), modern("t")...); answer != ask {
		t.Errorf("%s", answer)
	}
	out := outcomeOf(t, r.await(2), "tools/call")
	if p := policyOf(out); p["decision"] != "deny" || fmt.Sprint(out["anomaly"]) != "[denied]" {
		t.Errorf("%v", out)
	}
}

// A swap of policies under load: no request fails, each record names the policy
// that judged it, and after the reload none is judged by the old one.
func TestPolicySwapUnderLoad(t *testing.T) {
	up := newUpstream(t, ok)
	allow, deny := "policy {\n\trule A allow {\n\t\ttool echo\n\t}\n}", "policy {\n\trule B deny {\n\t\ttool echo\n\t}\n}"
	r := start(t, up, allow, "")
	r.post(fmt.Sprintf(legacyCall, "echo", `{"k":"0"}`))
	digestA := policyOf(r.await(2)[0])["digest"]

	var swapped atomic.Bool
	var sent, late atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				mark := "early"
				after := swapped.Load()
				if after {
					mark = "late"
				}
				status, answer := r.post(fmt.Sprintf(legacyCall, "echo", fmt.Sprintf(`{"k":"%s-%d-%d"}`, mark, w, i)))
				sent.Add(1)
				if denied := strings.Contains(answer, "-32030"); status != http.StatusOK || !denied && !strings.Contains(answer, `"result":{}`) || after && !denied {
					t.Errorf("status %d, %s (after the reload: %v)", status, answer, after)
				}
				if after && late.Add(1) > 100 {
					return
				}
			}
		}()
	}
	for sent.Load() < 100 {
		time.Sleep(time.Millisecond) // the load has no one to tell
	}
	if err := r.load(r.caddyfile(deny, "")); err != nil {
		t.Fatal(err)
	}
	swapped.Store(true)
	for late.Load() < 100 {
		time.Sleep(time.Millisecond) // the load has no one to tell
	}
	close(stop)
	wg.Wait()
	r.verify()
	var before, after int
	for _, rec := range r.records() {
		p := policyOf(rec)
		if p == nil {
			continue
		}
		switch old := p["digest"] == digestA; {
		case old && p["decision"] == "allow" && p["rule_id"] == "A":
			before++
			if strings.Contains(fmt.Sprint(rec["params"]), "late") {
				t.Errorf("judged by the old policy after the reload: %v", rec)
			}
		case !old && p["decision"] == "deny" && p["rule_id"] == "B" && rec.str("outcome") == "denied":
			after++
		default:
			t.Errorf("%v", rec)
		}
	}
	if before < 100 || after < 100 {
		t.Errorf("%d records before, %d after", before, after)
	}
	changes := r.configChanges()
	if len(changes) != 1 || changes[0]["prev_policy_sha256"] != digestA || changes[0].str("policy_sha256") == "" ||
		changes[0].str("server_id") != "test" || changes[0].str("actor") != "reload" {
		t.Errorf("changes of the policy: %v", changes)
	}
}

// configChanges are the records of changed policies.
func (r *rig) configChanges() (out []record) {
	f, err := os.Open(r.log())
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var rec record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			r.t.Fatal(err)
		}
		if rec.str("kind") == "config" && (rec["policy_sha256"] != nil || rec["prev_policy_sha256"] != nil) {
			out = append(out, rec)
		}
	}
	return out
}

func TestMistakesInAPolicyHaveALine(t *testing.T) {
	for _, c := range []struct {
		line, want string
		at         bool
	}{
		{"tol x", `unrecognized subdirective "tol"; did you mean tool?`, true},
		{"methods x", `did you mean method?`, true},
		{"tool a[b", "rule \"A\": tool: bad glob \"a[b\": the class has no closing ]", true},
		{"tool", "tool takes one or more arguments", true},
		{"tool a\ntool b", "tool is given twice, first at Caddyfile:5", true},
		{"when `args.x ==`", "rule \"A\": condition, line 1", true},
		{"when `pricipal.subject == \"x\"`", "did you mean principal.subject?", true},
		{"when `size(args.x)`", "rule \"A\": the condition is a int; it must be true or false", true},
		{"when ``", "when takes a condition", true},
		{"method tools/list\ntool x", "can never match", false},
		{"subject {env.ADMIN}", "placeholders are not replaced in patterns", true},
	} {
		text := "http://:80 {\n mcp_audit {\n  policy {\n   rule A deny {\n" + c.line + "\n}\n}\n}\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		place := fmt.Sprintf(", at Caddyfile:%d", 5+strings.Count(c.line, "\n"))
		if err == nil || !strings.Contains(err.Error(), c.want) || c.at && !strings.HasSuffix(err.Error(), place) {
			t.Errorf("%s: %v, want %q%s", c.line, err, c.want, place)
		}
	}
	for _, c := range []struct{ rules, want string }{
		{"rule A allow\nrule B deny {\n tool x\n}", `rule "B" can never match: rule "A" before it`},
		{"rule A allow {\n tool x\n}\nrule A deny {\n tool y\n}", `rule id "A" is given twice`},
		{"rule A maybe", `unknown action "maybe"`},
		{"scpe tools_only", "did you mean scope?"},
		{"scope tools", "use one of all_operations, tools_only"},
		{"rule A deny {\n method prompts/get\n}\nscope tools_only", "scope tools_only judges only tools/call"},
	} {
		text := "http://:80 {\n mcp_audit {\n  policy {\n" + c.rules + "\n}\n}\n}\n"
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "Caddyfile") {
			t.Errorf("%s: %v, want %q", c.rules, err, c.want)
		}
	}
	// In JSON a mistake fails the load too, without a line.
	cfg := `{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"listen":["127.0.0.1:0"],"routes":[{"handle":[{"handler":"mcp_audit","policy":{"rules":[{"id":"A","action":"deny","tool":["x"]}]}}]}]}}}}}`
	if err := caddy.Validate(mustConfig(t, cfg)); err == nil || !strings.Contains(err.Error(), "tool") {
		t.Errorf("%v", err)
	}
}

func mustConfig(t *testing.T, text string) *caddy.Config {
	t.Helper()
	cfg := new(caddy.Config)
	if err := json.Unmarshal([]byte(text), cfg); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func readBodyOf(r *http.Request) string {
	b := make([]byte, 64<<10)
	n, _ := r.Body.Read(b)
	return string(b[:n])
}

func answerJSONText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, text)
}

// The examples of the page load as they stand there, and it names every
// selector, variable and function.
func TestThePageOnPoliciesIsComplete(t *testing.T) {
	page, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$").FindAllSubmatch(page, -1)
	if len(examples) < 3 {
		t.Fatalf("%d examples", len(examples))
	}
	for _, e := range examples {
		if formatted := caddyfile.Format(e[1]); string(formatted) != string(e[1]) {
			t.Errorf("not as `caddy fmt` writes it:\n%s", e[1])
		}
		cfg, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(e[1], map[string]any{"filename": "Caddyfile"})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%v %v\n%s", err, warnings, e[1])
			continue
		}
		if err := caddy.Validate(mustConfig(t, string(cfg))); err != nil {
			t.Errorf("%v\n%s", err, e[1])
		}
	}
	_, _, err = caddyconfig.GetAdapter("caddyfile").Adapt([]byte("http://:80 {\nmcp_audit {\npolicy {\nrule A deny {\nzzzzzzzzzzzz x\n}\n}\n}\n}\n"), nil)
	names := listed(t, err)
	_, err = policy.New(policy.Config{Rules: []policy.Rule{{ID: "A", When: "zzzzzzzzzzzz"}}})
	names = append(names, listed(t, err)...)
	if len(names) < 25 {
		t.Errorf("%q", names)
	}
	for _, name := range names {
		call, isFunction := strings.CutSuffix(name, "()")
		_, last, isQualified := strings.Cut(name, ".")
		switch {
		case isFunction && strings.Contains(string(page), "`"+call+"("):
		case isQualified && strings.Contains(string(page), "."+last+"`"):
		case !isFunction && !isQualified && strings.Contains(string(page), "`"+name+"`"):
		default:
			t.Errorf("the page does not have %s", name)
		}
	}
}

// listed are the words that an error names behind "there are".
func listed(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	_, list, ok := strings.Cut(err.Error(), "; there are ")
	if !ok {
		t.Fatal(err)
	}
	list, _, _ = strings.Cut(list, ", at ")
	return strings.Split(list, ", ")
}
