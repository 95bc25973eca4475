package mcp_test

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// event is an SSEEvent that may be kept.
type event struct {
	Name, ID, Data string
	HasID          bool
	DataLen        int64
	Truncated      bool
}

// events parses a stream handed over in the given pieces.
func events(maxEvent int, pieces ...string) (out []event, ends []int64) {
	p := mcp.SSEParser{MaxEvent: maxEvent}
	emit := func(ev mcp.SSEEvent) {
		out = append(out, event{ev.Name, ev.ID, string(ev.Data), ev.HasID, ev.DataLen, ev.Truncated})
		ends = append(ends, ev.End)
	}
	for _, piece := range pieces {
		p.Feed([]byte(piece), emit)
	}
	p.Close(emit)
	return out, ends
}

func data(texts ...string) (out []event) {
	for _, s := range texts {
		out = append(out, event{Data: s, DataLen: int64(len(s))})
	}
	return out
}

// streams are what servers send and clients were seen to read.
var streams = []struct {
	name, stream string
	want         []event
}{
	{"LF", "data: a\n\ndata: b\n\n", data("a", "b")},
	{"CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", data("a", "b")},
	{"CR", "data: a\r\rdata: b\r\r", data("a", "b")},
	{"mixed ends", "data: a\r\n\rdata: b\n\r\ndata: c\r\n\n", data("a", "b", "c")},
	{"no space after the colon", "data:a\n\n", data("a")},
	{"only one space goes", "data:  a\n\n", data(" a")},
	{"several data lines", "data: a\ndata:\ndata: b\n\n", data("a\n\nb")},
	{"data without a colon", "data\ndata: b\n\n", data("\nb")},
	{"comments", ": hello\n\ndata: a\n: in between\ndata: b\n\n:\n\n", data("a\nb")},
	{"leading blank lines", "\n\r\n\rdata: a\n\n", data("a")},
	{"byte order mark", "\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", data("a")},
	{"only a byte order mark", "\xef\xbb\xbf\n\ndata: a\n\n", data("a")},
	{"last event without a blank line", "data: a\n\ndata: b\n", data("a", "b")},
	{"last line without an end", "data: a\n\ndata: b", data("a", "b")},
	{"any event name", "event: foo\ndata: a\n\n", []event{{Name: "foo", Data: "a", DataLen: 1}}},
	{"name without data", "event: foo\n\ndata: a\n\n", []event{{Name: "foo"}, {Data: "a", DataLen: 1}}},
	{"priming event", "id: 7\ndata:\n\n", []event{{ID: "7", HasID: true}}},
	{"empty id", "id\ndata: a\n\n", []event{{HasID: true, Data: "a", DataLen: 1}}},
	{"an id belongs to its event", "id: 7\ndata: a\n\ndata: b\n\n", []event{{ID: "7", HasID: true, Data: "a", DataLen: 1}, {Data: "b", DataLen: 1}}},
	{"retry", "retry: 100\n\nretry: 5\ndata: a\n\n", data("a")},
	{"unknown fields", "foo: bar\ndata : a\nDATA: b\n\ndata: c\n\n", data("c")},
	{"colons in data", "data: {\"a\":1}\n\n", data(`{"a":1}`)},
	{"empty", "", nil},
}

func TestSSEIsReadAsTheMostLenientClientReadsIt(t *testing.T) {
	for _, c := range streams {
		if got, _ := events(0, c.stream); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestSSEIsReadAlikeHoweverItIsSplit(t *testing.T) {
	for _, c := range streams {
		want, wantEnds := events(0, c.stream)
		for i := range len(c.stream) {
			got, ends := events(0, c.stream[:i], c.stream[i:])
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(ends, wantEnds) {
				t.Errorf("%s, split at %d: %+v %v, want %+v %v", c.name, i, got, ends, want, wantEnds)
			}
		}
		if got, _ := events(0, strings.Split(c.stream, "")...); !reflect.DeepEqual(got, want) {
			t.Errorf("%s, byte by byte: %+v, want %+v", c.name, got, want)
		}
	}
}

func TestSSEKeepsAtMostMaxEventOfAnEvent(t *testing.T) {
	for _, c := range []struct {
		name, stream string
		want         []event
	}{
		{"at the bound", "data: 0123456789\n\n", data("0123456789")},
		{"one byte more", "data: 0123456789a\n\ndata: b\n\n", []event{{Data: "0123456789", DataLen: 11, Truncated: true}, {Data: "b", DataLen: 1}}},
		{"over several lines", "data: 01234\ndata: 56789\ndata: x\n\n", []event{{Data: "01234\n5678", DataLen: 13, Truncated: true}}},
		{"a long line", "data: " + strings.Repeat("a", 500) + "\n\n", []event{{Data: "aaaaaaaaaa", DataLen: 500, Truncated: true}}},
		{"a long comment", ": " + strings.Repeat("a", 500) + "\n\ndata: b\n\n", data("b")},
	} {
		for _, pieces := range [][]string{{c.stream}, strings.Split(c.stream, "")} {
			if got, _ := events(10, pieces...); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			}
		}
	}
}

func TestSSEEventsTellWhereTheyEnd(t *testing.T) {
	for stream, want := range map[string][]int64{
		"data: a\n\ndata: b\n\n":         {9, 18},
		": c\n\ndata: a\n\n":             {14},
		"data: a\r\n\r\ndata: b\r\n\r\n": {10, 21},
		"data: a":                        {7},
	} {
		if _, ends := events(0, stream); !reflect.DeepEqual(ends, want) {
			t.Errorf("%q: %v, want %v", stream, ends, want)
		}
	}
}

func TestLeavingOutAnSSEEventLeavesTheOthers(t *testing.T) {
	for _, stream := range []string{"data: a\n\ndata: b\n\ndata: c\n\n", "data: a\r\n\r\ndata: b\r\n\r\ndata: c\r\n\r\n", "data: a\r\rdata: b\r\rdata: c\r\r"} {
		_, ends := events(0, stream)
		got, _ := events(0, stream[:ends[0]]+stream[ends[1]:])
		if !reflect.DeepEqual(got, data("a", "c")) {
			t.Errorf("%q: %+v", stream, got)
		}
	}
}

// A stream of line ends in one piece, or of one line in many, must not cost
// more than in proportion: the bound is wide enough for a busy machine, and a
// quadratic reading takes minutes.
func TestSSETakesLinearTime(t *testing.T) {
	const size = 4 << 20
	start := time.Now()
	events(0, strings.Repeat("\r", size))
	events(0, strings.Repeat("data: a\r", size/8))
	events(0, strings.Split(strings.Repeat("a", size/8), "")...)
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("took %v", d)
	}
}

// slowEvents is the reading of a whole stream by the definition (WHATWG HTML
// section 9.2.6), with what lenient clients add.
func slowEvents(stream string) (out []event) {
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	lines := strings.Split(text, "\n")
	lines[0] = strings.TrimPrefix(lines[0], "\xef\xbb\xbf")
	var ev event
	var texts []string
	dispatch := func() {
		if texts != nil || ev.HasID || ev.Name != "" {
			ev.Data = strings.Join(texts, "\n")
			ev.DataLen = int64(len(ev.Data))
			out = append(out, ev)
		}
		ev, texts = event{}, nil
	}
	for _, line := range lines {
		if line == "" {
			dispatch()
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			texts = append(texts, value)
		case "event":
			ev.Name = value
		case "id":
			ev.ID, ev.HasID = value, true
		}
	}
	dispatch()
	return out
}

// spilled reads a stream and returns what of each event was spilled.
func spilled(bound int, pieces ...string) (all []string) {
	var now bytes.Buffer
	p := mcp.SSEParser{MaxEvent: bound, Spill: func() io.Writer { return &now }}
	emit := func(mcp.SSEEvent) {
		all = append(all, now.String())
		now.Reset()
	}
	for _, piece := range pieces {
		p.Feed([]byte(piece), emit)
	}
	p.Close(emit)
	return all
}

func FuzzSSE(f *testing.F) {
	for _, c := range streams {
		f.Add(c.stream, 3)
	}
	long := strings.Repeat("abcdefghij", 50)
	for cut := range 4 {
		f.Add("\xef\xbb\xbfdata: "+long+"\ndata: b\n\ndata:x\n\n", 80*cut)
		f.Add("data:\r\ndata: "+long+"\r\ndata: "+long, 170*cut)
		f.Add("data: 12\n: "+long+"\ndata:3\ndata:4\n\ndata:  "+long+"\r", 200*cut)
	}
	f.Fuzz(func(t *testing.T, stream string, cut int) {
		if len(stream) > 4000 {
			return // names and ids are cut from 4 KiB on
		}
		want := slowEvents(stream)
		pieces := []string{stream}
		if n := len(stream); n > 0 {
			i := int(uint(cut) % uint(n))
			pieces = []string{stream[:i], stream[i:]}
		}
		got, ends := events(0, pieces...)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q: %+v, want %+v", pieces, got, want)
		}
		var last int64
		for _, end := range ends {
			if end < last || end > int64(len(stream)) {
				t.Fatalf("%q: an event ends at %d, after one at %d", stream, end, last)
			}
			last = end
		}
		// Bounded, the same events come out, each cut at the bound.
		bounded, _ := events(5, pieces...)
		spills := spilled(5, pieces...)
		if len(bounded) != len(want) {
			t.Fatalf("%q: %d events with a bound, %d without", pieces, len(bounded), len(want))
		}
		for i, b := range bounded {
			if spilled := spills[i]; b.Truncated && spilled != want[i].Data {
				t.Fatalf("%q: %q was spilled, want %q", pieces, spilled, want[i].Data)
			}
			if b.DataLen != want[i].DataLen || b.Truncated != (b.DataLen > 5) || !strings.HasPrefix(want[i].Data, b.Data) || len(b.Data) > 5 {
				t.Fatalf("%q: bounded %+v, want a prefix of %+v", pieces, b, want[i])
			}
		}
	})
}
