package mcp_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// join feeds an answer in pieces of n bytes.
func join(own, answer string, n int) (string, bool) {
	j := mcp.Joiner{Answers: []byte(own)}
	var out []byte
	for rest := []byte(answer); len(rest) > 0; {
		k := min(n, len(rest))
		out = j.Next(out, rest[:k])
		rest = rest[k:]
	}
	joined := j.Joined()
	return string(j.End(out)), joined
}

func TestJoinerPutsAnswersIntoTheServersArray(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"array", `[{"id":1},{"id":2}]`, `[E,{"id":1},{"id":2}]`},
		{"white space", " [\n {\"id\":1} ]\n", " [E\n ,{\"id\":1} ]\n"},
		{"empty array", `[ ]`, `[E ]`},
		{"one message", `{"id":1}`, `[E,{"id":1}]`},
		{"one message and a line end", "{\"id\":1}\n", "[E,{\"id\":1}\n]"},
		{"nothing", ``, `[E]`},
		{"white space alone", " \n", " \n[E]"},
		{"no JSON", `<html>`, `<html>`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := 1; n <= len(c.answer)+1; n++ {
				if got, _ := join("E", c.answer, n); got != c.want {
					t.Fatalf("in pieces of %d: got %q, want %q", n, got, c.want)
				}
			}
		})
	}
}

func TestJoinerSaysWhetherTheAnswersAreIn(t *testing.T) {
	if _, joined := join("E", `<html>`, 3); joined {
		t.Error("a page of HTML was taken for an array")
	}
	if _, joined := join("E", `[1]`, 3); !joined {
		t.Error("an array was taken for something else")
	}
}

func TestAppendBatchKeepsTheExactBytes(t *testing.T) {
	body := []byte(` [ {"jsonrpc" : "2.0","id":1, "method":"a"} , {"jsonrpc":"2.0","id":2,"method":"b"},
		{"method":"c","jsonrpc":"2.0"} ] `)
	msgs, batch, fault := mcp.Scan(body, nil)
	if fault != nil || !batch {
		t.Fatal(fault, batch)
	}
	got, n := mcp.AppendBatch(nil, body, msgs, func(i int) bool { return i != 1 })
	const want = `[{"jsonrpc" : "2.0","id":1, "method":"a"},{"method":"c","jsonrpc":"2.0"}]`
	if string(got) != want || n != 2 {
		t.Errorf("got %d, %s", n, got)
	}
	if got, n := mcp.AppendBatch(nil, body, msgs, func(int) bool { return false }); string(got) != "[]" || n != 0 {
		t.Errorf("got %d, %s", n, got)
	}
}

func TestRepeatedIDComparesAsReadersDo(t *testing.T) {
	for _, c := range []struct {
		ids  [2]string
		want bool
	}{
		{[2]string{`1`, `2`}, false},
		{[2]string{`1`, `"1"`}, false},
		{[2]string{`1`, `1`}, true},
		{[2]string{`"a"`, `"\u0061"`}, true},
		{[2]string{`9007199254740993`, `9007199254740992`}, true},
	} {
		body := []byte(`[{"jsonrpc":"2.0","id":` + c.ids[0] + `,"method":"ping"},{"jsonrpc":"2.0","id":` + c.ids[1] + `,"method":"ping"}]`)
		msgs, _, fault := mcp.Scan(body, nil)
		if fault != nil {
			t.Fatal(fault)
		}
		if got := mcp.RepeatedID(body, msgs); got != c.want {
			t.Errorf("ids %v: got %v", c.ids, got)
		}
	}
}

// FuzzBatchSplit checks the splitter and the joiner against encoding/json: the
// smaller batch holds exactly the chosen elements, byte for byte, and an answer
// that is an array or object has one element more.
func FuzzBatchSplit(f *testing.F) {
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"x","params":{"a":[1,2]}}]`), uint64(1), 3)
	f.Add([]byte(` [ {"jsonrpc":"2.0","id":"e","result":{}} ] `), uint64(0), 1)
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), uint64(1), 2)
	f.Add([]byte(` [ ] `), uint64(3), 1)
	f.Fuzz(func(t *testing.T, body []byte, chosen uint64, piece int) {
		keep := func(i int) bool { return chosen>>(i%64)&1 != 0 }
		if msgs, batch, fault := mcp.Scan(body, nil); batch && fault == nil {
			var elements, kept []json.RawMessage
			if err := json.Unmarshal(body, &elements); err != nil || len(elements) != len(msgs) {
				t.Fatalf("%d messages scanned of %d: %v", len(msgs), len(elements), err)
			}
			smaller, n := mcp.AppendBatch(nil, body, msgs, keep)
			if err := json.Unmarshal(smaller, &kept); err != nil || len(kept) != n {
				t.Fatalf("%q holds %d elements, not %d: %v", smaller, len(kept), n, err)
			}
			for i, at := 0, 0; i < len(elements); i++ {
				if !keep(i) {
					continue
				}
				if !bytes.Equal(kept[at], elements[i]) {
					t.Fatalf("element %d became %q", i, kept[at])
				}
				at++
			}
			if n == len(msgs) {
				if again, _, fault := mcp.Scan(smaller, nil); fault != nil || len(again) != n {
					t.Fatalf("the whole batch does not read back: %v", fault)
				}
			}
		}
		if piece < 1 {
			piece = 1
		}
		const own = `{"own":1}`
		joined, in := join(own, string(body), piece)
		if !in && len(bytes.TrimLeft(body, " \t\r\n")) > 0 {
			if joined != string(body) {
				t.Fatalf("%q is no array and was changed to %q", body, joined)
			}
			return
		}
		var whole any
		if json.Unmarshal(body, &whole) != nil {
			return
		}
		var got []json.RawMessage
		if err := json.Unmarshal([]byte(joined), &got); err != nil || string(got[0]) != own {
			t.Fatalf("%q: %v", joined, err)
		}
		want := 1
		if list, ok := whole.([]any); ok {
			want = len(list)
		}
		if len(got) != want+1 {
			t.Fatalf("%q has %d elements, want %d", joined, len(got), want+1)
		}
	})
}
