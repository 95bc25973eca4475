package legacy

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// FuzzObject: what is taken apart is an object for encoding/json, too, and the
// same one.
func FuzzObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` { "a" : [1 , {"b":"}"}] , "ä" : null } `, `{"a":1,"a":2}`, `{"a"`, `{"a":1,}`, `[`, `{"\u0061":"\ud83d\ude00"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		o, v := parseObject(text)
		if v != canon.None {
			return
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(text, &m); err != nil {
			t.Fatalf("%q is accepted, but %v", text, err)
		}
		for _, member := range o {
			if _, ok := m[member.name]; !ok {
				t.Fatalf("%q: member %q is not there", text, member.name)
			}
			if gate(member.value) == canon.None && !json.Valid(member.value) {
				t.Fatalf("%q: the value of %q is %q", text, member.name, member.value)
			}
		}
	})
}

// FuzzForms: on what passed the gate, our canonical form and that of the
// library that Integrity v2 is made with agree.
func FuzzForms(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[1.5,"ä\u0000</>",null,true]}`, `{"｡":1,"😀":2}`, `[1e21,0.000001,-1e-7,123456789012345]`, `"\u2028"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		ours, v := canon.Append(nil, text)
		// A number that is not exact, and names with "$", have a form of their own.
		if v != canon.None || bytes.Contains(ours, []byte(`"$`)) {
			return
		}
		if c := bytes.TrimSpace(text); c[0] != '{' && c[0] != '[' {
			return // the library takes objects and arrays only
		}
		theirs, err := jsoncanonicalizer.Transform(text)
		if err != nil || !bytes.Equal(ours, theirs) {
			t.Fatalf("%q: ours %q, theirs %q, %v", text, ours, theirs, err)
		}
	})
}

// FuzzEntry: no line makes the reader panic, and no change of a signed line
// passes without a finding unless it says the same.
func FuzzEntry(f *testing.F) {
	line := entryLine(f, 1, nil)
	denied := entryLine(f, 2, func(m map[string]string) {
		m["error"] = `{"code":-1,"message":"no"}`
		m["policy"] = `{"decision":"deny"}`
	})
	said := map[string]bool{}
	for _, l := range []string{line, denied} {
		e, err := parseEntry([]byte(l))
		if err != nil {
			f.Fatal(err)
		}
		signed, err := e.signedV2()
		if err != nil {
			f.Fatal(err)
		}
		said[string(signed)] = true
		f.Add([]byte(l))
	}
	f.Add([]byte(stripped(line)))
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.ContainsRune(text, '\n') {
			return
		}
		r, err := Verify(t.Context(), FormatP4ST4S, []auditlog.Source{memory("a", string(text))}, withSecret())
		if err != nil {
			t.Fatal(err)
		}
		if r.Total != 1 {
			t.Fatalf("%d records", r.Total)
		}
		if r.Statuses[V2Valid] == 0 {
			return
		}
		e, err := parseEntry(text)
		if err != nil {
			t.Fatal(err)
		}
		if signed, err := e.signedV2(); err != nil || !said[string(signed)] {
			t.Fatalf("a forged line passes: %q, %v", text, err)
		}
	})
}

// FuzzChain: no line makes the reader panic.
func FuzzChain(f *testing.F) {
	g := newGateway(f)
	for _, line := range []string{g.wrapped(`{"a":1}`), g.routed(), g.checkpoint(), g.broken("x"), g.drift()} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.ContainsRune(text, '\n') {
			return
		}
		r, err := Verify(t.Context(), FormatGateway, []auditlog.Source{memory("a", string(text))}, withGatewaySecret())
		if err != nil || r.Total != 1 {
			t.Fatal(r, err)
		}
		if _, err := Detect(t.Context(), memory("a", string(text))); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzAttested: on gated values the form without type tags is what
// encoding/json reads back as the same value.
func FuzzAttested(f *testing.F) {
	for _, s := range []string{`{"b":1,"a":[ 1 , {} , [] ]}`, `[]`, `"x"`, `-0.0`, `[1,2 ,"a,b]"]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		text = bytes.TrimSpace(text)
		if len(text) > 4096 || gate(text) != canon.None || bytes.Contains(text, []byte("-0")) {
			return
		}
		for _, tagged := range []bool{false, true} {
			out, err := appendScript(nil, text, tagged)
			if err != nil {
				continue
			}
			if !json.Valid(out) {
				t.Fatalf("%q becomes %q", text, out)
			}
			if tagged {
				continue
			}
			var a, b any
			if json.Unmarshal(text, &a) != nil || json.Unmarshal(out, &b) != nil {
				continue // numbers beyond doubles
			}
			x, _ := json.Marshal(a)
			y, _ := json.Marshal(b)
			if !bytes.Equal(x, y) {
				t.Fatalf("%q becomes %q", text, out)
			}
		}
	})
}
