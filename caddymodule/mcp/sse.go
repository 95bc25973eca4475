package mcp

import (
	"bytes"
	"io"
)

// SSEEvent is one dispatched event. Data is valid only during the call that
// hands it over.
type SSEEvent struct {
	Name      string // at most 4 KiB, like ID
	ID        string
	HasID     bool   // the event has an id field, perhaps an empty one
	Data      []byte // the data lines joined by LF
	DataLen   int64  // also of what was cut
	Truncated bool   // Data was longer than MaxEvent and is incomplete, or spilled

	// End is where the event ends in the stream, counted in bytes from its
	// start: after the blank line. The event begins where the one before it
	// ended. The LF of a CRLF that ends the blank line counts to the event
	// after it, since it may come much later than the CR; alone it is a blank
	// line, so that the bytes of an event may be left out.
	End int64
}

// SSEParser follows a stream of server-sent events as it passes and never
// changes a byte. It accepts the union of what clients accept: lines that end
// in LF, CRLF or CR, a byte order mark, any event name, and a last event
// without its blank line (WHATWG HTML section 9.2.6 is stricter in the last).
// Memory is bounded by twice MaxEvent, time is linear. It is not safe for
// concurrent use.
type SSEParser struct {
	// MaxEvent bounds the data of one event in bytes; more is counted only.
	// 0 means 16 MiB.
	MaxEvent int

	// Spill, if not nil, is asked when an event's data grows past MaxEvent, and
	// may return where all of its data goes, from the first byte on; nil: it is
	// only counted.
	Spill func() io.Writer

	read    int64  // bytes of the stream
	line    []byte // the unfinished line, up to its bound
	cut     int64  // bytes of the unfinished line that were not kept
	sawCR   bool
	started bool

	name    string
	id      string
	hasID   bool
	data    []byte
	dataLen int64
	hasData bool
	trunc   bool

	spill    io.Writer // of the event, once it is past MaxEvent
	spilling bool      // the unfinished line goes there as it comes
}

const defaultMaxEvent = 16 << 20

func (p *SSEParser) max() int {
	if p.MaxEvent > 0 {
		return p.MaxEvent
	}
	return defaultMaxEvent
}

// Feed reads the next bytes of the stream and hands over each event that they
// complete. The data need not be kept after the call.
func (p *SSEParser) Feed(b []byte, emit func(SSEEvent)) {
	lf := -1 // how far the next LF is, if known: each is looked for only once
	for len(b) > 0 {
		if p.sawCR {
			p.sawCR = false
			if b[0] == '\n' {
				p.read++
				b, lf = b[1:], -1
				continue
			}
		}
		if lf < 0 {
			if lf = bytes.IndexByte(b, '\n'); lf < 0 {
				lf = len(b)
			}
		}
		n := lf
		if cr := bytes.IndexByte(b[:n], '\r'); cr >= 0 {
			n = cr
		}
		if n == len(b) {
			p.read += int64(n)
			p.keep(b)
			return
		}
		p.read += int64(n) + 1
		p.sawCR = b[n] == '\r'
		p.finish(b[:n], emit)
		b, lf = b[n+1:], lf-n-1
	}
}

// Between reports whether the stream is between two events, where another
// event or a comment can be put in.
func (p *SSEParser) Between() bool {
	return len(p.line) == 0 && p.cut == 0 && !p.hasData && !p.hasID && p.name == ""
}

// finish ends a line with its last bytes.
func (p *SSEParser) finish(last []byte, emit func(SSEEvent)) {
	if len(p.line) == 0 && p.cut == 0 {
		p.endLine(last, 0, emit)
		return
	}
	p.keep(last)
	p.endLine(p.line, p.cut, emit)
	p.line, p.cut = p.line[:0], 0
	if cap(p.line) > keepData {
		p.line = nil
	}
}

// Close ends the stream. A last event without its blank line is handed over
// too, since some clients dispatch it.
func (p *SSEParser) Close(emit func(SSEEvent)) {
	if len(p.line) > 0 || p.cut > 0 {
		p.finish(nil, emit)
	}
	p.dispatch(emit)
}

// fieldRoom is what a line may hold beside its event's data.
const fieldRoom = 64

func (p *SSEParser) keep(b []byte) {
	room := max(0, p.max()+fieldRoom-len(p.line))
	if len(b) <= room {
		p.line = append(p.line, b...)
		return
	}
	p.line = append(p.line, b[:room]...)
	b = b[room:]
	p.cut += int64(len(b))
	if !p.spilling {
		if value, isData := bytes.CutPrefix(p.unmarked(p.line), []byte("data:")); isData {
			p.spilling = p.overflow(bytes.TrimPrefix(value, []byte(" ")))
		}
	}
	if p.spilling {
		_, _ = p.spill.Write(b)
	}
}

// unmarked is a line without the byte order mark of the stream.
func (p *SSEParser) unmarked(line []byte) []byte {
	if p.started {
		return line
	}
	return bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
}

// overflow gives what is there of the event's data, and another line of it, to
// Spill. It reports whether anybody takes it.
func (p *SSEParser) overflow(line []byte) bool {
	if p.spill == nil {
		if p.Spill == nil || p.trunc {
			return false
		}
		if p.spill = p.Spill(); p.spill == nil {
			return false
		}
		_, _ = p.spill.Write(p.data)
		p.data = p.data[:0]
	}
	if p.hasData {
		_, _ = p.spill.Write([]byte("\n"))
	}
	_, _ = p.spill.Write(line)
	p.trunc = true
	return true
}

// maxField bounds an event's name and id, which are kept beside its data.
const maxField = 4 << 10

func (p *SSEParser) endLine(line []byte, cut int64, emit func(SSEEvent)) {
	spilled := p.spilling
	p.spilling = false
	line = p.unmarked(line)
	p.started = true
	if len(line) == 0 && cut == 0 {
		p.dispatch(emit)
		return
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "data":
		p.addData(value, cut, spilled)
	case "event":
		p.name = string(value[:min(len(value), maxField)])
	case "id":
		p.id, p.hasID = string(value[:min(len(value), maxField)]), true
	}
}

// addData adds a line to the event's data, unless it was spilled already.
func (p *SSEParser) addData(value []byte, cut int64, spilled bool) {
	separator := 0
	if p.hasData {
		separator = 1
	}
	p.dataLen += int64(separator) + int64(len(value)) + cut
	switch room := p.max() - len(p.data) - separator; {
	case spilled:
	case p.spill != nil:
		p.overflow(value)
	case p.trunc:
	case len(value) <= room && cut == 0:
		if p.hasData {
			p.data = append(p.data, '\n')
		}
		p.data = append(p.data, value...)
	case !p.overflow(value):
		p.trunc = true
		if p.hasData && room >= 0 {
			p.data = append(p.data, '\n')
		}
		p.data = append(p.data, value[:max(0, min(room, len(value)))]...)
	}
	p.hasData = true
}

// keepData is the largest buffer that is kept for the next event: streams may
// be idle for hours.
const keepData = 64 << 10

func (p *SSEParser) dispatch(emit func(SSEEvent)) {
	if p.hasData || p.hasID || p.name != "" {
		emit(SSEEvent{Name: p.name, ID: p.id, HasID: p.hasID, Data: p.data, DataLen: p.dataLen, Truncated: p.trunc, End: p.read})
	}
	if cap(p.data) > keepData {
		p.data = nil
	}
	p.name, p.id, p.hasID = "", "", false
	p.spill = nil
	p.data, p.dataLen, p.hasData, p.trunc = p.data[:0], 0, false, false
}
