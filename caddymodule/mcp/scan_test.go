package mcp_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func call(params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
}

func TestScanRefusesWhatTwoParsersCouldReadDifferently(t *testing.T) {
	deep := strings.Repeat("[", 62) + strings.Repeat("]", 62)
	for _, c := range []struct {
		name, body, why string
		code            int
	}{
		{"two names", call(`{"name":"simple","name":"error"}`), "dup_key", -32600},
		{"Name after name", call(`{"name":"simple","Name":"error"}`), "fold_variant", -32600},
		{"only NAME", call(`{"NAME":"simple"}`), "fold_variant", -32600},
		{"Params beside params", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"Params":{"name":"b"}}`, "fold_variant", -32600},
		{"long s", `{"jsonrpc":"2.0","id":1,"method":"tools/call","param` + "\u017f" + `":{"name":"b"}}`, "fold_variant", -32600},
		{"Kelvin sign", `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"tas` + "\u212a" + `Id":"b","taskId":"a"}}`, "fold_variant", -32600},
		{"METHOD", `{"jsonrpc":"2.0","id":1,"method":"tools/list","METHOD":"tools/call"}`, "fold_variant", -32600},
		{"escaped repetition", call(`{"name":"simple","\u006eame":"error"}`), "dup_key", -32600},
		{"escaped variant", call(`{"name":"simple","\u004eame":"error"}`), "fold_variant", -32600},
		{"meta variant", call(`{"name":"a","_meta":{"io.modelcontextprotocol/ProtocolVersion":"2026-07-28"}}`), "fold_variant", -32600},
		{"repetition in arguments", call(`{"name":"a","arguments":{"x":[{"p":1,"p":2}]}}`), "dup_key", -32600},
		{"second message", call(`{"name":"a"}`) + call(`{"name":"b"}`), "trailing", -32700},
		{"trailing text", call(`{"name":"a"}`) + " xyz", "trailing", -32700},
		{"byte order mark", "\xef\xbb\xbf" + call(`{"name":"a"}`), "bom", -32700},
		{"NaN", call(`{"name":"a","arguments":{"x":NaN}}`), "grammar", -32700},
		{"leading zero", call(`{"name":"a","arguments":{"x":01}}`), "grammar", -32700},
		{"invalid UTF-8", call("{\"name\":\"a\xff\"}"), "utf8", -32700},
		{"unpaired surrogate", call(`{"name":"\ud800"}`), "surrogate", -32700},
		{"depth 65", call(`{"name":"a","arguments":[` + deep + `]}`), "depth", -32700},
		{"no method", `{"jsonrpc":"2.0","id":1}`, "no_method", -32600},
		{"id true", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, "id", -32600},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "id", -32600},
		{"id 1.0", `{"jsonrpc":"2.0","id":1.0,"method":"ping"}`, "id", -32600},
		{"id 1e2", `{"jsonrpc":"2.0","id":1e2,"method":"ping"}`, "id", -32600},
		{"id object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "id", -32600},
		{"request and result", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, "mixed", -32600},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, "mixed", -32600},
		{"jsonrpc missing", `{"id":1,"method":"ping"}`, "jsonrpc", -32600},
		{"jsonrpc 1.0", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, "jsonrpc", -32600},
		{"jsonrpc a number", `{"jsonrpc":2.0,"id":1,"method":"ping"}`, "jsonrpc", -32600},
		{"method a number", `{"jsonrpc":"2.0","id":1,"method":7}`, "method", -32600},
		{"params a string", `{"jsonrpc":"2.0","id":1,"method":"x/y","params":"a"}`, "params", -32600},
		{"params an array", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["a"]}`, "params", -32600},
		{"tool name a number", call(`{"name":7}`), "name", -32600},
		{"tool name missing", call(`{}`), "name", -32600},
		{"answer without id", `{"jsonrpc":"2.0","result":{}}`, "id", -32600},
		{"a number", `7`, "no_object", -32600},
		{"empty", ``, "grammar", -32700},
		{"empty batch", `[]`, "empty_batch", -32600},
		{"batch of numbers", `[1]`, "no_object", -32600},
		{"batch without end", `[` + call(`{"name":"a"}`), "grammar", -32700},
	} {
		_, _, err := mcp.Scan([]byte(c.body), nil)
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		if err.Why != c.why || err.Code != c.code {
			t.Errorf("%s: %s %d, want %s %d", c.name, err.Why, err.Code, c.why, c.code)
		}
	}
}

func TestScanReturnsTheMembersByPosition(t *testing.T) {
	body := []byte("\t" + `{ "params" : {"arguments":{"name":"x","method":"y"},"name":"\u0065cho","_meta":{"progressToken":1,"traceparent":"00-a",
		"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c"}}}, "method":"tools/call","id":"a\u0062","jsonrpc":"2.0"}` + "\r\n")
	msgs, batch, err := mcp.Scan(body, nil)
	if err != nil || batch || len(msgs) != 1 {
		t.Fatal(msgs, batch, err)
	}
	m := &msgs[0]
	for name, c := range map[string]struct {
		span mcp.Span
		want string
	}{
		"id": {m.ID, `"a\u0062"`}, "method": {m.Method, `"tools/call"`}, "name": {m.Name, `"\u0065cho"`},
		"arguments": {m.Arguments, `{"name":"x","method":"y"}`}, "version": {m.ProtocolVersion, `"2026-07-28"`},
		"trace": {m.TraceParent, `"00-a"`}, "client": {m.ClientInfo, `{"name":"c"}`}, "progress": {m.ProgressToken, `1`},
		"whole": {m.Whole, strings.TrimSpace(string(body))},
	} {
		if got := string(c.span.Of(body)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if m.Kind != mcp.KindRequest || m.IDType != mcp.IDString || mcp.DecodeID(m.ID.Of(body), m.IDType) != "ab" {
		t.Errorf("%+v", m)
	}
}

func TestScanReadsEveryKindOfMessage(t *testing.T) {
	for body, want := range map[string]mcp.Kind{
		`{"jsonrpc":"2.0","id":-5,"method":"x/y","params":[1]}`:                          mcp.KindRequest,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`:                         mcp.KindNotification,
		`{"jsonrpc":"2.0","id":9007199254740993,"result":{"action":"accept"}}`:           mcp.KindResult,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"x"}}`:              mcp.KindError,
		`{"jsonrpc":"\u0032.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}`: mcp.KindRequest,
	} {
		msgs, _, err := mcp.Scan([]byte(body), nil)
		if err != nil || msgs[0].Kind != want {
			t.Errorf("%s: %v %v", body, msgs, err)
		}
	}
	msgs, batch, err := mcp.Scan([]byte(" [ "+call(`{"name":"a"}`)+" , "+call(`{"name":"b"}`)+" ] "), nil)
	if err != nil || !batch || len(msgs) != 2 {
		t.Errorf("batch: %v %v %v", msgs, batch, err)
	}
}

func TestRefusedIDIsReturnedOnlyIfUnambiguous(t *testing.T) {
	for body, want := range map[string]string{
		`{"jsonrpc":"1.0","id":7,"method":"ping"}`:            "7",
		`{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`:     "",
		`{"jsonrpc":"2.0","id":7,"ID":8,"method":"ping"}`:     "",
		`[{"jsonrpc":"1.0","id":7,"method":"ping"}]`:          "",
		`{"jsonrpc":"2.0","id":"x","method":"a","result":{}}`: `"x"`,
	} {
		_, _, err := mcp.Scan([]byte(body), nil)
		if err == nil || string(err.ID) != want {
			t.Errorf("%s: %v, want id %q", body, err, want)
		}
	}
}

func TestScanAnswerDescribesWhatTheStrictScanWouldRefuse(t *testing.T) {
	for _, c := range []struct {
		body string
		kind mcp.Kind
	}{
		{`{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2,"n":1e400,"z":-0}}`, mcp.KindResult},
		{`{"jsonrpc":"2.0","id":1,"result":{"s":"\ud800"}}`, mcp.KindResult},
		{`{"jsonrpc":"2.0","id":1,"result":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, mcp.KindResult},
		{`{"id":1,"error":{"code":-32042,"message":"x"}}`, mcp.KindError},
		{"\xef\xbb\xbf" + `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`, mcp.KindNotification},
		{`{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{}}`, mcp.KindRequest},
		{`{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`, mcp.KindInvalid},
		{`{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`, mcp.KindResult},
	} {
		msgs, _, err := mcp.ScanAnswer([]byte(c.body), nil)
		if err != nil || len(msgs) != 1 || msgs[0].Kind != c.kind {
			t.Errorf("%.80s: %+v %v", c.body, msgs, err)
		}
	}
	body := []byte(`{"id":1,"result":{"isError":true,"resultType":"input_required"}} x`)
	msgs, _, err := mcp.ScanAnswer(body, nil)
	if err == nil || len(msgs) != 1 || !msgs[0].IsError || mcp.Text(msgs[0].ResultType.Of(body)) != "input_required" {
		t.Errorf("%+v %v", msgs, err)
	}
	for _, body := range []string{"", "x", `{"id":1`, `[1]`, `"a"`, `{"a" 1}`} {
		if msgs, _, err := mcp.ScanAnswer([]byte(body), nil); err == nil || len(msgs) != 0 {
			t.Errorf("%q: %v", body, msgs)
		}
	}
}

func TestIDKeysTellTypesApart(t *testing.T) {
	key := func(token string) string {
		typ := mcp.IDNumber
		if token[0] == '"' {
			typ = mcp.IDString
		}
		return mcp.IDKey([]byte(token), typ)
	}
	if key(`1`) == key(`"1"`) || key(`1`) == key(`1.0`) {
		t.Error("ids of different types or spellings are one")
	}
	if key(`9007199254740993`) != key(`9007199254740992`) {
		t.Error("an id that a server returned rounded is not found")
	}
	if key(`"a"`) != key(`"\u0061"`) {
		t.Error("two spellings of one string are two ids")
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	body := []byte(call(`{"name":"echo","arguments":{"m":"hi","\u0061":[1,2,{"x":null}]},"_meta":{"progressToken":"p"}}`))
	var msgs []mcp.Message
	msgs, _, _ = mcp.Scan(body, msgs)
	if n := testing.AllocsPerRun(200, func() { msgs, _, _ = mcp.Scan(body, msgs) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		call(`{"name":"simple","Name":"error"}`), call(`{"name":"a","arguments":{"x":[1,-0,1e400,"\ud83d\ude00"]}}`),
		`[{"jsonrpc":"2.0","method":"a"},{"jsonrpc":"2.0","id":null,"error":{}}]`, `{"jsonrpc":"2.0","id":1,"result":{}}`, "[", `{"a":`, "\xef\xbb\xbf{}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msgs, batch, err := mcp.Scan(body, nil)
		if err != nil {
			return
		}
		if !jsontext.Value(body).IsValid() {
			t.Fatalf("accepted %q, which is not strict JSON", body)
		}
		var texts []jsontext.Value
		if batch {
			dec := jsontext.NewDecoder(bytes.NewReader(body))
			_, _ = dec.ReadToken()
			for dec.PeekKind() != ']' {
				v, _ := dec.ReadValue()
				texts = append(texts, v.Clone())
			}
		} else {
			texts = []jsontext.Value{jsontext.Value(bytes.TrimSpace(body))}
		}
		if len(texts) != len(msgs) {
			t.Fatalf("%q: %d messages, want %d", body, len(msgs), len(texts))
		}
		for i := range msgs {
			m := &msgs[i]
			members := membersOf(t, texts[i])
			for name, span := range map[string]mcp.Span{"id": m.ID, "method": m.Method, "params": m.Params, "result": m.Result, "error": m.Error} {
				if got := string(span.Of(body)); got != members[name] {
					t.Fatalf("%q: %s is %q, want %q", body, name, got, members[name])
				}
			}
			lenient, _, lerr := mcp.ScanAnswer(body, nil)
			if lerr != nil || len(lenient) != len(msgs) || lenient[i].Method != m.Method || lenient[i].ID != m.ID || lenient[i].Kind != m.Kind {
				t.Fatalf("%q: the lenient scan reads it differently: %+v %v", body, lenient, lerr)
			}
		}
	})
}

// membersOf reads an object's members with the oracle.
func membersOf(t *testing.T, v jsontext.Value) map[string]string {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewReader(v))
	out := make(map[string]string)
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		t.Fatalf("%q: %v", v, err)
	}
	for dec.PeekKind() != '}' {
		key, err := dec.ReadToken()
		if err != nil {
			t.Fatal(err)
		}
		name := key.String()
		value, err := dec.ReadValue()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(value)
	}
	if _, err := dec.ReadToken(); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return out
}

func FuzzScanAnswer(f *testing.F) {
	for _, seed := range []string{`{"id":1,"result":{"isError":true}}`, `[{"id":1}`, `{"a":"\`, `{"id":1,"result":"\\\\"}x`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msgs, _, _ := mcp.ScanAnswer(body, nil)
		for i := range msgs {
			m := &msgs[i]
			for _, s := range []mcp.Span{m.Whole, m.ID, m.Method, m.Params, m.Result, m.Error, m.Name, m.ErrorCode, m.ResultType} {
				_ = s.Of(body) // every span lies in the body
			}
		}
	})
}
