package mcp_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// filter leaves out the entries whose name has an x.
func filter(t testing.TB, data string) (string, error) {
	t.Helper()
	var scratch [1]mcp.Message
	b := []byte(data)
	msgs, _, fault := mcp.ScanAnswer(b, scratch[:0])
	if fault != nil || len(msgs) != 1 {
		t.Fatalf("%s: %v", data, fault)
	}
	var cuts []mcp.Span
	changed, err := mcp.FilterList(b, msgs[0].Result, func(e *mcp.ListEntry) bool { return !strings.Contains(e.Name, "x") },
		func(s mcp.Span) { cuts = append(cuts, s) })
	if changed != (len(cuts) > 0) {
		t.Errorf("%s: changed is %v with %d cuts", data, changed, len(cuts))
	}
	slices.SortFunc(cuts, func(a, b mcp.Span) int { return b.Start - a.Start })
	for _, c := range cuts {
		b = append(b[:c.Start:c.Start], b[c.End:]...)
	}
	return string(b), err
}

func TestListIsFilteredByCuttingEntriesOut(t *testing.T) {
	const head, tail = `{"jsonrpc":"2.0","id":1,"result":{ "a":1.0, "tools" : [`, ` ] ,"nextCursor":"c"}}`
	for _, c := range []struct{ in, want string }{
		{``, ``},
		{`{"name":"a"}`, `{"name":"a"}`},
		{`{"name":"x"}`, ``},
		{` {"name":"a"} , {"name":"x"}`, ` {"name":"a"}`},
		{`{"name":"x"} ,{"name":"a","d":{"name":"x"}}`, `{"name":"a","d":{"name":"x"}}`},
		{`{"name":"a"},{"name":"x1"} , {"name":"x2"},{"name":"b"}`, `{"name":"a"},{"name":"b"}`},
		{`{"name":"x1"},{"name":"a"},{"name":"x2"},{"name":"b"},{"name":"x3"}`, `{"name":"a"},{"name":"b"}`},
		{`{"name":"\u0078"},{"n\u0061me":"a"}`, `{"n\u0061me":"a"}`},
		{`{"name":"a","name":"b"},{"Name":"a"},{"name":"a","NAME":"x"},1,null,{"name":1},{}`, ``},
	} {
		got, err := filter(t, head+c.in+tail)
		if err != nil || got != head+c.want+tail {
			t.Errorf("%s became %s, not %s (%v)", c.in, got, head+c.want+tail, err)
		}
	}
}

func TestEveryListHasItsNames(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"prompts":[{"name":"x"},{"name":"a"}]}`, `{"prompts":[{"name":"a"}]}`},
		{`{"resources":[{"name":"x","uri":"a://b"},{"uri":"a://x"}]}`, `{"resources":[{"name":"x","uri":"a://b"}]}`},
		{`{"resourceTemplates":[{"uriTemplate":"a://{x}"},{"uriTemplate":"b"}]}`, `{"resourceTemplates":[{"uriTemplate":"b"}]}`},
		{`{"tools":[{"name":"x"}],"tools":[{"name":"x"},{"name":"a"}]}`, `{"tools":[],"tools":[{"name":"a"}]}`},
		{`{"content":[{"name":"x"}]}`, `{"content":[{"name":"x"}]}`},
	} {
		got, err := filter(t, `{"jsonrpc":"2.0","id":1,"result":`+c.in+`}`)
		if want := `{"jsonrpc":"2.0","id":1,"result":` + c.want + `}`; err != nil || got != want {
			t.Errorf("%s became %s (%v)", c.in, got, err)
		}
	}
	for _, in := range []string{`{"Tools":[{"name":"x"}]}`, `{"tools":{"name":"x"}}`, `{"tools":"x"}`} {
		if _, err := filter(t, `{"jsonrpc":"2.0","id":1,"result":`+in+`}`); !errors.Is(err, mcp.ErrList) {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func FuzzFilterList(f *testing.F) {
	for _, s := range []string{`{"tools":[{"name":"a"},{"name":"x"}]}`, `{"tools":[1,{}],"prompts":[{"name":"x"}]}`, `{"resources":[{"uri":"x"} , {"uri":"b"}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, result string) {
		data := `{"jsonrpc":"2.0","id":1,"result":` + result + `}`
		var scratch [1]mcp.Message
		msgs, _, fault := mcp.ScanAnswer([]byte(data), scratch[:0])
		if fault != nil || len(msgs) != 1 || msgs[0].Kind != mcp.KindResult {
			return
		}
		got, err := filter(t, data)
		if err != nil {
			return
		}
		if json.Valid([]byte(data)) && !json.Valid([]byte(got)) {
			t.Fatalf("%s became %s", data, got)
		}
		if again, err := filter(t, got); err != nil || again != got {
			t.Fatalf("a second pass made %s of %s (%v)", again, got, err)
		}
	})
}
