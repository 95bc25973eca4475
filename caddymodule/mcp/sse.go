package mcp

import "bytes"

// SSEEvent is one dispatched event. Data is valid only during the call that
// hands it over.
type SSEEvent struct {
	Name      string
	ID        string
	HasID     bool   // the event has an id field, perhaps an empty one
	Data      []byte // the data lines joined by LF
	DataLen   int64  // also of what was cut
	Truncated bool   // Data was longer than MaxEvent and is incomplete
}

// SSEParser follows a stream of server-sent events as it passes and never
// changes a byte. It accepts the union of what clients accept: lines that end
// in LF, CRLF or CR, a byte order mark, any event name, and a last event
// without its blank line (WHATWG HTML section 9.2.6 is stricter in the last).
// Memory is bounded by MaxEvent. It is not safe for concurrent use.
type SSEParser struct {
	// MaxEvent bounds the data of one event in bytes; more is counted only.
	// 0 means 16 MiB.
	MaxEvent int

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
	for len(b) > 0 {
		if p.sawCR {
			p.sawCR = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			n = len(b)
		}
		if cr := bytes.IndexByte(b[:n], '\r'); cr >= 0 {
			n = cr
		}
		if n == len(b) {
			p.keep(b)
			return
		}
		if len(p.line) == 0 && p.cut == 0 {
			p.endLine(b[:n], 0, emit)
		} else {
			p.keep(b[:n])
			p.endLine(p.line, p.cut, emit)
			p.line, p.cut = p.line[:0], 0
		}
		p.sawCR = b[n] == '\r'
		b = b[n+1:]
	}
}

// Close ends the stream. A last event without its blank line is handed over
// too, since some clients dispatch it.
func (p *SSEParser) Close(emit func(SSEEvent)) {
	if len(p.line) > 0 || p.cut > 0 {
		p.endLine(p.line, p.cut, emit)
		p.line, p.cut = nil, 0
	}
	p.dispatch(emit)
}

// fieldRoom is what a line may hold beside its event's data.
const fieldRoom = 64

func (p *SSEParser) keep(b []byte) {
	room := p.max() + fieldRoom - len(p.line)
	if room < 0 {
		room = 0
	}
	if len(b) > room {
		p.cut += int64(len(b) - room)
		b = b[:room]
	}
	p.line = append(p.line, b...)
}

func (p *SSEParser) endLine(line []byte, cut int64, emit func(SSEEvent)) {
	if !p.started {
		p.started = true
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	if len(line) == 0 && cut == 0 {
		p.dispatch(emit)
		return
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "data":
		p.addData(value, cut)
	case "event":
		p.name = string(value)
	case "id":
		p.id, p.hasID = string(value), true
	}
}

func (p *SSEParser) addData(value []byte, cut int64) {
	if p.hasData {
		p.dataLen++
		if !p.trunc {
			p.data = append(p.data, '\n')
		}
	}
	p.hasData = true
	p.dataLen += int64(len(value)) + cut
	if p.trunc {
		return
	}
	if room := p.max() - len(p.data); len(value) > room || cut > 0 {
		p.trunc = true
		value = value[:max(0, min(room, len(value)))]
	}
	p.data = append(p.data, value...)
}

// keepData is the largest data buffer that is kept for the next event.
const keepData = 64 << 10

func (p *SSEParser) dispatch(emit func(SSEEvent)) {
	if p.hasData || p.hasID || p.name != "" {
		emit(SSEEvent{Name: p.name, ID: p.id, HasID: p.hasID, Data: p.data, DataLen: p.dataLen, Truncated: p.trunc})
	}
	if cap(p.data) > keepData {
		p.data = nil
	}
	p.name, p.id, p.hasID = "", "", false
	p.data, p.dataLen, p.hasData, p.trunc = p.data[:0], 0, false, false
}
