package redact_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// FuzzRedact checks the promises of Redact on any bytes: it reads what the gate
// of the log reads, its result is JSON, it differs from the source only in the
// values of matching members, and a second pass changes nothing.
func FuzzRedact(f *testing.F) {
	for _, seed := range []string{
		`{"password":"hunter2","a":[1,{"token":null}]}`, `["{\"token\":{\"a\":1},\"b\":\"[{\\\"secret\\\":1}]\"}"]`,
		`{"inputSchema":{"token":{}},"arguments":{"progressToken":1,"inputSchema":{"token":{},"secret":2}}}`,
		`["{\"token\":1}\n{\"tok\u0065n\":[2"]`, `{"tokens":1,"tokens ":[]}`, `"\ud83d\ude00"`, `{"a":"\u007b\u0022secret\u0022:1}"}`, `01`, `[`, "\"\xff\"",
		`{"cursor":"x","_meta":{"progressToken":"x"},"nextCursor":1}`, `["{\"secret\": x, 1"]`,
	} {
		f.Add([]byte(seed))
	}
	p := profile(f, "+pin", "fragment:cred", "-id_token")
	f.Fuzz(func(t *testing.T, src []byte) { checkPromises(t, p, src) })
}

func TestPromisesHoldOnRandomPayloads(t *testing.T) {
	p := profile(t, "+pin", "fragment:cred", "-id_token")
	r := rand.New(rand.NewPCG(1, 2))
	changes := 0
	for range 20_000 {
		src := randomJSON(r, 5)
		if checkPromises(t, p, []byte(src)) {
			changes++
		}
		if t.Failed() {
			return
		}
	}
	if changes < 2000 {
		t.Errorf("only %d payloads had a match", changes)
	}
}

func checkPromises(t *testing.T, p *redact.Profile, src []byte) (changed bool) {
	out, changed, err := p.Redact(src)
	violation := canon.Check(src)
	switch violation {
	case canon.None, canon.DupKey, canon.Keys, canon.Depth:
		if err != nil && violation == canon.None {
			t.Fatalf("%q: %v", src, err)
		}
	default:
		if err == nil {
			t.Fatalf("%q: not JSON (%s), but no error", src, violation)
		}
	}
	if changed != (out != nil) || err != nil && changed {
		t.Fatalf("%q: out %q, changed %v, error %v", src, out, changed, err)
	}
	if !changed {
		out = src
	}
	if err != nil || violation != canon.None {
		return changed
	}
	if v := canon.Check(out); v != canon.None {
		t.Fatalf("%q became %q: %s", src, out, v)
	}
	if again, changed, err := p.Redact(out); changed || err != nil {
		t.Fatalf("%q became %q and then %q, %v", src, out, again, err)
	}
	oracle{t, p}.value(bytes.Trim(src, " \t\r\n"), bytes.Trim(out, " \t\r\n"), place{})
	return changed
}

// oracle follows a payload and what became of it side by side, with another
// parser, and tells by the names alone what had to change.
type oracle struct {
	t *testing.T
	p *redact.Profile
}

// place is what the surroundings of a value say.
type place struct{ schema, data bool }

// value checks one value, without white space around it.
func (o oracle) value(in, out []byte, at place) {
	switch in[0] {
	case '{', '[':
		before, after := o.parts(in), o.parts(out)
		if len(before) != len(after) {
			o.t.Fatalf("%s became %s", in, out)
		}
		for i, b := range before {
			a := after[i]
			if !bytes.Equal(b.lead, a.lead) {
				o.t.Fatalf("%s became %s before a value", b.lead, a.lead)
			}
			if b.value == nil {
				continue
			}
			if in[0] == '{' && o.goes(b.name, b.value[0], at) {
				if string(a.value) != `"[REDACTED]"` {
					o.t.Fatalf("%q: %s became %s", b.name, b.value, a.value)
				}
				continue
			}
			inside := at
			if in[0] == '{' {
				inside = at.enter(b.name)
			}
			o.value(b.value, a.value, inside)
		}
	case '"':
		o.text(in, out, at)
	default:
		if !bytes.Equal(in, out) {
			o.t.Fatalf("%s became %s", in, out)
		}
	}
}

func (at place) enter(name string) place {
	switch name {
	case "inputSchema", "outputSchema", "requestedSchema":
		at.schema = true
	case "arguments", "structuredContent":
		at.data = at.data || !at.schema
	}
	return at
}

// goes says whether the value of a member, which begins with b, is replaced.
func (o oracle) goes(name string, b byte, at place) bool {
	number := b == '-' || b >= '0' && b <= '9'
	switch {
	case !o.p.MatchKey(name), at.schema && !at.data, at.schema && strings.IndexByte("{[tf", b) >= 0:
		return false
	case !at.data && (at.enter(name).schema || name == "progressToken" || name == "cursor" || name == "nextCursor"):
		return false
	case number && letters(name) == "tokens":
		return false
	}
	return true
}

// letters returns the letters of an ASCII name in lower case.
func letters(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z':
			return r
		}
		return -1
	}, name)
}

// text checks a string token.
func (o oracle) text(in, out []byte, at place) {
	if bytes.Equal(in, out) && !bytes.Contains(in, []byte(`\`)) {
		return // no quote inside, so no name
	}
	inText, err := jsontext.AppendUnquote(nil, in)
	if err != nil {
		o.t.Fatal(err)
	}
	outText, err := jsontext.AppendUnquote(nil, out)
	if err != nil {
		o.t.Fatal(err)
	}
	body := bytes.Trim(inText, " \t\r\n")
	isJSON := canon.Check(body) == canon.None && (body[0] == '{' || body[0] == '[')
	exempt := at.schema && !at.data
	switch {
	case bytes.Equal(inText, outText) && !bytes.Equal(in, out):
		o.t.Fatalf("%s was spelled anew: %s", in, out)
	case isJSON && !exempt:
		at.data = true
		o.value(body, bytes.Trim(outText, " \t\r\n"), at)
	case exempt && !bytes.Equal(in, out):
		o.t.Fatalf("%s became %s", in, out)
	}
	// How much of other texts counts as JSON is a matter of the table tests.
}

// part is a value in a container and the text before it; the last part is the
// text behind the last value.
type part struct {
	lead, value []byte
	name        string
}

func (o oracle) parts(container []byte) []part {
	d := jsontext.NewDecoder(bytes.NewReader(container))
	read := func(err error) {
		if err != nil {
			o.t.Fatalf("%s: %v", container, err)
		}
	}
	_, err := d.ReadToken()
	read(err)
	var parts []part
	at := 0
	for d.PeekKind() != '}' && d.PeekKind() != ']' {
		var pt part
		if container[0] == '{' {
			name, err := d.ReadToken()
			read(err)
			pt.name = name.String()
		}
		value, err := d.ReadValue()
		read(err)
		end := int(d.InputOffset())
		start := end - len(value)
		pt.lead, pt.value = container[at:start], container[start:end]
		parts, at = append(parts, pt), end
	}
	return append(parts, part{lead: container[at:]})
}

// randomJSON makes a value with names that match and names that nearly do, with
// JSON in strings, spelled in different ways.
func randomJSON(r *rand.Rand, depth int) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	space := pick("", "", "", " ", "\n\t")
	kind := r.IntN(9)
	if depth == 0 {
		kind = 5 + r.IntN(4)
	}
	switch kind {
	case 0, 1, 2:
		n := r.IntN(5)
		members, used := make([]string, 0, n), map[string]bool{}
		for range n {
			name := pick("a", "b", "password", "dbPassword", "tokens", "max_tokens", "token", "secretary", "api-key", "inputSchema", "outputSchema",
				"arguments", "structuredContent", "progressToken", "cursor", "pin", "credit", "id_token", "ünï", "a\"b\\", "properties")
			if !used[name] {
				used[name] = true
				members = append(members, space+quote(r, name)+space+":"+space+randomJSON(r, depth-1))
			}
		}
		return "{" + strings.Join(members, ",") + space + "}"
	case 3:
		n := r.IntN(4)
		elements := make([]string, n)
		for i := range elements {
			elements[i] = space + randomJSON(r, depth-1) + space
		}
		return "[" + strings.Join(elements, ",") + "]"
	case 4:
		return quote(r, space+randomJSON(r, depth-1)+pick("", "", "\n", " {"))
	case 5:
		return pick("0", "-1.5e+30", "9007199254740993", "1E400", "-0")
	case 6:
		return pick("true", "false", "null", "{}", "[]")
	default:
		return quote(r, pick("", "text", "ü😀", "[REDACTED]", "{", "[1", "a\nb\x00", "{\"token\":"))
	}
}

// quote makes a string token of s, each character in one of its spellings.
func quote(r *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			if r.IntN(8) > 0 {
				b.WriteByte('\\')
				b.WriteRune(c)
				continue
			}
			fmt.Fprintf(&b, `\u%04X`, c)
		case c < 0x20 || r.IntN(30) == 0:
			for _, u := range utf16.Encode([]rune{c}) {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
