package auditlog

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

// fuzzPosition is a position with everything a state can hold.
func fuzzPosition() position {
	p := startPosition("audit.example/fuzz/i0", "k1", 3)
	for i := range 5 {
		p.advance(Hash{byte(i)}, Hash{byte(i), 1}, 100, false)
	}
	p.open[2] = openIntent{2, 3, 200, 99, "AAAAAAAAAAAAAAAAAAAAAA", "an \"operation\"", Hash{9}}
	p.fileID = 1<<63 + 7
	return p
}

func TestAStateSurvivesItsOwnSpelling(t *testing.T) {
	want := fuzzPosition()
	got, err := decodeState(encodeState(&want))
	if err != nil || got.next != want.next || got.chain != want.chain || got.tree.Root() != want.tree.Root() ||
		got.open[2] != want.open[2] || got.fileID != want.fileID || got.segment != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
}

// FuzzState: nothing but the exact spelling of a possible state is accepted.
func FuzzState(f *testing.F) {
	p := fuzzPosition()
	doc := encodeState(&p)
	line, _, _ := bytes.Cut(doc, []byte("\n"))
	f.Add(line)
	f.Add([]byte("{}"))
	f.Add(bytes.Replace(line, []byte(`"next":5`), []byte(`"next":4`), 1))
	f.Fuzz(func(t *testing.T, line []byte) {
		p, err := decodeState(WithChecksum(line))
		if err != nil {
			return
		}
		if again := encodeState(&p); !bytes.Equal(again, WithChecksum(line)) {
			t.Errorf("accepted %q, which is spelled %q", line, again)
		}
	})
}

// FuzzTail: whatever follows good records, they are kept, and what follows is
// either refused or held to be torn; nothing is taken for a record.
func FuzzTail(f *testing.F) {
	s, err := newSealer(make([]byte, 32), "o/i0", "k1", 0)
	if err != nil {
		f.Fatal(err)
	}
	l := &Log{seal: s}
	p := startPosition("o/i0", "k1", 0)
	for range 3 {
		d := record(kindStart, newStamp(time.Unix(0, 0)), textMember("run", "r"))
		l.sealRecord(&p, &d, false)
	}
	good := bytes.Clone(l.commits.buf)
	last := good[bytes.LastIndexByte(good[:len(good)-1], '\n')+1:]
	f.Add([]byte(nil))
	f.Add(last)
	f.Add(last[:len(last)-1])
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, tail []byte) {
		log := append(bytes.Clone(good), tail...)
		q := startPosition("o/i0", "k1", 0)
		torn, err := follow(&q, s, bytes.NewReader(log), int64(len(log)), nil)
		var bad *lineError
		switch {
		case q.next != 3 || q.offset != int64(len(good)) || q.chain != p.chain:
			t.Fatalf("followed to record %d, offset %d", q.next, q.offset)
		case err != nil && !errors.As(err, &bad):
			t.Fatal(err)
		case err == nil && (torn == nil) != (len(tail) == 0):
			t.Fatalf("torn %+v for a tail of %d bytes", torn, len(tail))
		case torn != nil && (torn.pos != q.offset || torn.bytes != int64(len(tail))):
			t.Fatalf("torn %+v", torn)
		}
	})
}
