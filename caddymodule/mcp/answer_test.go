package mcp_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

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
	for _, body := range []string{"", "x", `{"id":1`, `[1]`, `[]`, `"a"`, `{"a" 1}`,
		`{"id":1,"result":[}}`, `{"id":1,"result":{"n":NaN}}`, "{\"id\":1,\"result\":\"a\nb\"}", `{"id":1,"result":"\x"}`,
		`{"id":1,"result":{"a":1,}}`, `{"id":1,"result":[1 2]}`, `{"id":1,"result":01}`, `{"id":1,"result":{1:2}}`, `{"id":1,"result":tru}`,
		`{"id":1,"result":"\u12g4"}`, `{"id":1,"result":[,]}`, `{"id":1,"result":[[]`, "{\"id\":1\x00}",
	} {
		if msgs, _, err := mcp.ScanAnswer([]byte(body), nil); err == nil || len(msgs) != 0 {
			t.Errorf("%q: %v", body, msgs)
		}
	}
}

func TestTheLastOfARepeatedMemberOfAnAnswerCounts(t *testing.T) {
	body := []byte(`{"id":1,"result":{"isError":true,"resultType":"input_required"},"\u0072esult":{"content":[]},"id":2}`)
	msgs, _, err := mcp.ScanAnswer(body, nil)
	if err != nil || len(msgs) != 1 {
		t.Fatal(msgs, err)
	}
	m := &msgs[0]
	if m.IsError || m.ResultType.Present() || string(m.ID.Of(body)) != "2" || string(m.Result.Of(body)) != `{"content":[]}` {
		t.Errorf("%+v", m)
	}
}

func TestAnAnswerWithAnImpossibleIDHasNone(t *testing.T) {
	for body, want := range map[string]struct {
		kind mcp.Kind
		typ  mcp.IDType
	}{
		`{"id":true,"result":{}}`:                 {mcp.KindResult, mcp.IDNone},
		`{"id":{},"method":"elicitation/create"}`: {mcp.KindRequest, mcp.IDNone},
		`{"id":1.5,"result":{}}`:                  {mcp.KindResult, mcp.IDNumber},
		`{"id":null,"error":{"code":-32700}}`:     {mcp.KindError, mcp.IDNull},
	} {
		msgs, _, err := mcp.ScanAnswer([]byte(body), nil)
		if err != nil || msgs[0].Kind != want.kind || msgs[0].IDType != want.typ {
			t.Errorf("%s: %+v %v", body, msgs, err)
		}
	}
}

func TestScanAnswerReadsArraysUpToABound(t *testing.T) {
	msgs, batch, err := mcp.ScanAnswer([]byte(` [{"id":1,"result":{}} , {"id":2,"error":{"code":5}}] `), nil)
	if err != nil || !batch || len(msgs) != 2 || msgs[1].Kind != mcp.KindError {
		t.Errorf("%+v %v %v", msgs, batch, err)
	}
	long := "[" + strings.Repeat("{},", mcp.MaxBatch) + "{}]"
	msgs, batch, err = mcp.ScanAnswer([]byte(long), nil)
	if err == nil || err.Why != "batch_size" || !batch || len(msgs) != mcp.MaxBatch {
		t.Errorf("%d messages, %v %v", len(msgs), batch, err)
	}
	// What could be read of a broken array is described.
	if msgs, _, err := mcp.ScanAnswer([]byte(`[{"id":1,"result":{}},{"id":`), nil); err == nil || len(msgs) != 1 {
		t.Errorf("%+v %v", msgs, err)
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
	if key(`1000000000000000000000`) != key(`1e+21`) {
		t.Error("an id that a server returned with an exponent is not found")
	}
	if key(`-0`) != key(`0`) {
		t.Error("an id that a server returned without its sign is not found")
	}
	if key(`"\ud800"`) == key(`"\ud801"`) || key(`"\ud800"`) == key(`""`) {
		t.Error("strings that cannot be decoded are one id")
	}
	if key(`"a"`) != key(`"\u0061"`) {
		t.Error("two spellings of one string are two ids")
	}
}

func TestRecordsKeepAnIDAsItsTextOrToken(t *testing.T) {
	for _, c := range []struct {
		token string
		typ   mcp.IDType
		want  string
	}{
		{`"a\u0062\n"`, mcp.IDString, "ab\n"}, {`""`, mcp.IDString, ""}, {`9007199254740993`, mcp.IDNumber, "9007199254740993"},
		{`1.50`, mcp.IDNumber, "1.50"}, {`null`, mcp.IDNull, ""}, {``, mcp.IDNone, ""},
		{`"\ud800"`, mcp.IDString, `"\ud800"`}, {"\"\xff\"", mcp.IDString, "\"\ufffd\""},
	} {
		if got := mcp.DecodeID([]byte(c.token), c.typ); got != c.want {
			t.Errorf("%s: %q, want %q", c.token, got, c.want)
		}
	}
}

func FuzzScanAnswer(f *testing.F) {
	for _, seed := range []string{`{"id":1,"result":{"isError":true}}`, `[{"id":1}`, `{"a":"\`, `{"id":1,"result":"\\\\"}x`, `{"id":1,"result":[{"a":[{},[],1e400]},"\ud800"]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		msgs, batch, err := mcp.ScanAnswer(body, nil)
		// encoding/json is as lenient, but for a byte order mark and a depth of
		// 10000.
		text := bytes.TrimLeft(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")), " \t\r\n")
		if !batch && bytes.HasPrefix(text, []byte("{")) && len(text) < 10000 && json.Valid(text) != (err == nil) {
			t.Fatalf("%q: %v, the oracle says %v", body, err, json.Valid(text))
		}
		for i := range msgs {
			m := &msgs[i]
			for _, s := range []mcp.Span{m.Whole, m.ID, m.Method, m.Params, m.Result, m.Error, m.Name, m.ErrorCode, m.ResultType} {
				_ = s.Of(body) // every span lies in the body
			}
		}
	})
}
