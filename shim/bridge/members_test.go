package bridge

import (
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

func TestMemberFindsTheLastValueAtAPath(t *testing.T) {
	for _, c := range []struct {
		object string
		path   []string
		want   string
	}{
		{`{"a":1}`, []string{"a"}, "1"},
		{`{"a":1,"a":2}`, []string{"a"}, "2"},
		{`{"b":{"a":[1,2]},"c":3}`, []string{"b", "a"}, "[1,2]"},
		{`{"\u0061":"x"}`, []string{"a"}, `"x"`},
		{`{"a":1}`, []string{"b"}, ""},
		{`{"a":1}`, []string{"a", "b"}, ""},
		{`[{"a":1}]`, []string{"a"}, ""},
		{``, []string{"a"}, ""},
		{`{"a":9007199254740993,"x":`, []string{"a"}, "9007199254740993"},
		{"{\"a\":\"\xff\"}", []string{"a"}, "\"\xff\""},
	} {
		if got := string(member([]byte(c.object), c.path...)); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.object, c.path, got, c.want)
		}
	}
}

func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"progressToken":1,"_meta":{"x":[{}]}}`), "progressToken")
	f.Add([]byte(`{"a":"\ud800","a":1e400}`), "a")
	f.Fuzz(func(t *testing.T, object []byte, name string) {
		value := member(object, name)
		_ = tokenKey(value)
		_ = member(value, name)
	})
}

// FuzzRoute checks that no output of a child breaks the bridge or loses count.
func FuzzRoute(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"error":{"code":1}}]`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p"}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) == 0 {
			return
		}
		b := New(nil, Options{})
		c := &call{key: "n1", token: "sp", modern: true, method: methodListen, out: newOutbox()}
		b.calls[c.key], b.progress[c.token] = c, c
		var scratch [2]mcp.Message
		b.route(line, scratch[:0])
		queued := 0
		for _, box := range []*outbox{c.out, b.stray} {
			for it, ok := box.pop(); ok; it, ok = box.pop() {
				queued++
				b.release(it, nil)
			}
		}
		if uint64(queued) != b.seq || b.held != 0 || len(b.carried) != 0 {
			t.Errorf("%d lines queued of %d, %d bytes held", queued, b.seq, b.held)
		}
	})
}
