package mcp_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func call(params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + params + `}`
}

// refusals are bodies that two parsers read differently, as measured on real
// servers, and such that are no message of the protocol.
var refusals = []struct {
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
	{"depth 65", call(nested(63)), "depth", -32700},
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
	{"only PARAMS", `{"jsonrpc":"2.0","id":1,"method":"tools/call","PARAMS":{"NAME":"error"}}`, "fold_variant", -32600},
	{"params twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}`, "dup_key", -32600},
	{"variant in ref", `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","Name":"a"}}}`, "fold_variant", -32600},
	{"ref with a name and a uri", `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","name":"a","uri":"b:c"}}}`, "name", -32600},
	{"variant in argument", `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"argument":{"VALUE":"a"}}}`, "fold_variant", -32600},
	{"variant in task", call(`{"name":"a","task":{"TTL":1}}`), "fold_variant", -32600},
	{"variant in notifications", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"TaskIds":[]}}}`, "fold_variant", -32600},
	{"variant in an input response", call(`{"name":"a","inputResponses":{"Name":{"Action":"accept"}}}`), "fold_variant", -32600},
	{"repetition among input responses", call(`{"name":"a","inputResponses":{"k":1,"k":2}}`), "dup_key", -32600},
	{"variant in an answer", `{"jsonrpc":"2.0","id":1,"result":{"Action":"accept"}}`, "fold_variant", -32600},
	{"UTF-16", "{\x00\"\x00j\x00", "grammar", -32700},
	{"gzip", "\x1f\x8b\x08\x00", "grammar", -32700},
	{"Infinity", call(`{"name":"a","arguments":-Infinity}`), "grammar", -32700},
	{"comment", call(`{"name":"a"/**/}`), "grammar", -32700},
	{"trailing comma", call(`{"name":"a",}`), "grammar", -32700},
	{"line break in a string", call("{\"name\":\"a\nb\"}"), "grammar", -32700},
	{"overlong UTF-8", call("{\"name\":\"\xc0\xaf\"}"), "utf8", -32700},
	{"surrogate in UTF-8", call("{\"name\":\"\xed\xa0\x80\"}"), "utf8", -32700},
	{"surrogates in the wrong order", call(`{"name":"\udc00\ud800"}`), "surrogate", -32700},
	{"surrogate in a name", call(`{"name":"a","arguments":{"\udfff":1}}`), "surrogate", -32700},
	{"depth 2000", call(nested(2000)), "depth", -32700},
	{"1025 keys", call(`{"name":"a","arguments":` + keys(1025) + `}`), "keys", -32700},
	{"id an array", `{"jsonrpc":"2.0","id":[],"method":"ping"}`, "id", -32600},
	{"id 01", `{"jsonrpc":"2.0","id":01,"method":"ping"}`, "grammar", -32700},
	{"request and error", `{"jsonrpc":"2.0","id":1,"method":"ping","error":null}`, "mixed", -32600},
	{"result for id null", `{"jsonrpc":"2.0","id":null,"result":{}}`, "id", -32600},
	{"error a string", `{"jsonrpc":"2.0","id":1,"error":"x"}`, "error", -32600},
	{"method null", `{"jsonrpc":"2.0","id":1,"method":null}`, "method", -32600},
	{"params null", `{"jsonrpc":"2.0","id":1,"method":"x/y","params":null}`, "params", -32600},
	{"resource without uri", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{}}`, "name", -32600},
	{"prompt name null", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":null}}`, "name", -32600},
	{"call without params", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, "name", -32600},
	{"version a number", call(`{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":1}}`), "meta", -32600},
	{"two messages in one element", `[` + call(`{"name":"a"}`) + call(`{"name":"b"}`) + `]`, "grammar", -32700},
	{"text after a batch", `[` + call(`{"name":"a"}`) + `]]`, "trailing", -32700},
}

// nested is params with arguments of the given depth.
func nested(depth int) string {
	return `{"name":"a","arguments":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) + `}`
}

// keys is an object of n members.
func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestScanRefusesWhatTwoParsersCouldReadDifferently(t *testing.T) {
	for _, c := range refusals {
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
		"whole": {m.Whole, string(body)},
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

func TestScanAcceptsWhatIsJustWithinItsBounds(t *testing.T) {
	for name, body := range map[string]string{
		"depth 64":                       call(nested(62)),
		"1024 keys":                      call(`{"name":"a","arguments":` + keys(1024) + `}`),
		"variants inside arguments":      call(`{"name":"a","arguments":{"Name":1,"METHOD":2,"_meta":{"ProgressToken":3}}}`),
		"variants inside client content": `{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"Action":1,"CODE":2}}}`,
		"any name of an input response":  call(`{"name":"a","inputResponses":{"Name":{"action":"accept","content":{"NAME":1}}}}`),
		"numbers of any size":            call(`{"name":"a","arguments":[1e400,-0,9007199254740993,0.1e-999]}`),
		"a surrogate pair":               call(`{"name":"\ud83d\ude00"}`),
		"an unknown method":              `{"jsonrpc":"2.0","id":1,"method":"skills/run","params":{"name":7}}`,
		"a tool without arguments":       call(`{"name":""}`),
		"a full batch":                   "[" + strings.Repeat(`{"jsonrpc":"2.0","method":"x"},`, mcp.MaxBatch-1) + `{"jsonrpc":"2.0","method":"x"}]`,
	} {
		if _, _, err := mcp.Scan([]byte(body), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := "[" + strings.Repeat(`{"jsonrpc":"2.0","method":"x"},`, mcp.MaxBatch) + `{"jsonrpc":"2.0","method":"x"}]`
	msgs, _, err := mcp.Scan([]byte(long), nil)
	if err == nil || err.Why != "batch_size" || len(msgs) != mcp.MaxBatch {
		t.Errorf("a batch that is too long: %d messages, %v", len(msgs), err)
	}
}

func TestRefusedIDIsReturnedOnlyIfUnambiguous(t *testing.T) {
	for body, want := range map[string]string{
		`{"jsonrpc":"1.0","id":7,"method":"ping"}`:             "7",
		`{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}`:      "",
		`{"jsonrpc":"2.0","id":7,"ID":8,"method":"ping"}`:      "",
		`[{"jsonrpc":"1.0","id":7,"method":"ping"}]`:           "",
		`{"jsonrpc":"2.0","id":"x","method":"a","result":{}}`:  `"x"`,
		`{"jsonrpc":"2.0","id":7,"\u0069d":7,"method":"ping"}`: "",
		`{"jsonrpc":"2.0","id":7.0,"method":"ping"}`:           "",
		`{"jsonrpc":"2.0","id":"\ud800","method":"ping"}`:      "",
		call(`{"name":"a","name":"b"}`):                        "1",
		call(`{"name":"a","NAME":"b"}`):                        "1",
		call(nested(100)):                                      "1",
		call(`{"name":"a","arguments":` + keys(2000) + `}`):    "1",
		call(`{"name":"\ud800"}`):                              "1",
		call(`{"name":NaN}`):                                   "",
		call(`{"name":"a"}`) + "x":                             "",
		`{"id\ud800":1,"id":2}`:                                "2",
		"\xef\xbb\xbf" + call(`{"name":"a"}`):                  "",
	} {
		_, _, err := mcp.Scan([]byte(body), nil)
		if err == nil || string(err.ID) != want {
			t.Errorf("%s: %v, want id %q", body, err, want)
		}
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
	for _, c := range refusals {
		f.Add([]byte(c.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msgs, batch, err := mcp.Scan(body, nil)
		if err != nil {
			checkRefusal(t, body, err)
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

// checkRefusal compares a refusal with the oracles.
func checkRefusal(t *testing.T, body []byte, err *mcp.ScanError) {
	t.Helper()
	switch err.Why {
	case "grammar", "utf8", "surrogate", "bom", "trailing", "dup_key":
		if jsontext.Value(body).IsValid() {
			t.Fatalf("refused %q as %s, but it is strict JSON", body, err.Why)
		}
	}
	if err.ID != nil && !json.Valid(body) && err.Code != mcp.CodeInvalidRequest {
		t.Fatalf("%q is no JSON but has the id %q", body, err.ID)
	}
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
