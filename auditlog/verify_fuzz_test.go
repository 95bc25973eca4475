package auditlog

import (
	"bytes"
	"testing"
)

// FuzzSealParse compares the two readers of a line, and what they read with
// what the line says.
func FuzzSealParse(f *testing.F) {
	l := smallLog(f)
	for _, line := range l.files[0] {
		f.Add([]byte(line))
	}
	for _, line := range []string{
		``, `{}`, `{"signature":"x"}`, `{"a":{"seal":{}},"b":1}`, `{"a":1,"seal":{"version":3}}`, `"}}`, `{"a":"\`, `[{"}}`,
		`{"a":1` + l.files[0][0][len(l.files[0][0])-212:],
		l.files[0][3][:len(l.files[0][3])-1] + `,"x":1}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		want, fault := SplitLine(line)
		var s scanned
		splitFast(line, &s, new(interner))
		if s.fault != fault {
			t.Fatalf("%s and %s", s.fault, fault)
		}
		if !s.sealed() {
			return
		}
		if s.seal != want.Seal || s.prefix != len(want.Prefix) || !bytes.Equal(line[s.open[0]:s.open[1]], want.Open) {
			t.Fatalf("%+v and %+v", s, want)
		}
		if fault == LineOK {
			if got := AppendLine(nil, want.Body(), &want.Seal, want.Open); !bytes.Equal(got, append(bytes.Clone(line), '\n')) {
				t.Fatalf("read as %s", got)
			}
		}
		s.facts.read(line[:s.prefix])
		r, _ := ParseRecord(line)
		for _, name := range []string{"kind", "params", "timestamp"} {
			r.Member(name)
		}
	})
}

// FuzzVerify gives the verifier any bytes in place of a log that an anchor
// covers as a whole: whatever is not that log is found, and nothing panics.
func FuzzVerify(f *testing.F) {
	l := smallLog(f)
	whole := l.text(0)
	held := l.note()
	f.Add(whole)
	lines := bytes.SplitAfter(whole, []byte("\n"))
	for i := range lines {
		f.Add(bytes.Join(append(append([][]byte{}, lines[:i]...), lines[min(i+1, len(lines)):]...), nil))
	}
	f.Add(bytes.Replace(whole, []byte(`"epoch":1`), []byte(`"epoch":9007199254740991`), 1))
	f.Add(bytes.Replace(whole, []byte(`"seq":7`), []byte(`"seq":9007199254740991`), 1))
	f.Add(bytes.Replace(whole, []byte(`,"open":{`), []byte(`,"open":{}`), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := verifyBytes(t, l, data, held)
		if found := stops(r); found == bytes.Equal(data, whole) {
			t.Fatalf("%s", kindsFound(r))
		}
		half := len(data) / 2
		opts := l.options()
		if _, err := Verify(t.Context(), []Source{memorySource("a", data[:half]), memorySource("b", data[half:])}, opts); err != nil {
			t.Fatal(err)
		}
	})
}
