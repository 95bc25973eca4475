package auditlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"
)

// Record is a record line for display: taken apart, but not verified. Its
// byte slices point into the line.
type Record struct {
	Raw  []byte // the line without its LF
	Line Line
	Kind string
}

// KindErased is the Kind of a record that was erased as a whole.
const KindErased = "erased"

// ParseRecord takes a line (without its LF) apart. The fault is that of
// SplitLine; with LineExtraMember the record can still be read.
func ParseRecord(line []byte) (Record, LineFault) {
	l, fault := SplitLine(line)
	r := Record{Raw: line, Line: l}
	if fault == LineOK || fault == LineExtraMember {
		if r.Kind = r.Text("kind"); l.Erased() {
			r.Kind = KindErased
		}
	}
	return r, fault
}

// Member returns the JSON text of a body member, or nil. A member that is
// committed to and disclosed in the line is returned in its disclosed form.
func (r *Record) Member(name string) []byte {
	value := bodyView{r.Line.Prefix}.raw(name)
	if value == nil || !isCommitment(value) {
		return value
	}
	if disclosed := opened(&r.Line, name); disclosed != nil {
		return disclosed
	}
	return value
}

// opened returns the value that a line discloses of a committed member, or nil.
func opened(l *Line, name string) []byte {
	if len(l.Open) == 0 {
		return nil
	}
	pair := bodyView{trimObject(l.Open)}.raw(name)
	const head = len(`["`) + saltText + len(`",`)
	if len(pair) <= head+1 {
		return nil
	}
	return pair[head : len(pair)-1]
}

// Text returns the decoded text of a string member, or "".
func (r *Record) Text(name string) string { return textValue(r.Member(name)) }

// Number returns a member that is a number without fraction.
func (r *Record) Number(name string) (uint64, bool) { return decimal(r.Member(name)) }

// Time is the record's time stamp, or the zero time.
func (r *Record) Time() time.Time {
	ns, ok := parseTimestamp(bodyView{r.Line.Prefix}.raw("timestamp"))
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// Reader reads the lines of a log for display. It is not safe for concurrent
// use.
type Reader struct {
	r     *bufio.Reader
	max   int
	long  []byte
	lines int
	// consumed counts whole lines; partial, the bytes of the one that is read.
	consumed, partial int64
}

// ErrLineTooLong is returned by Reader.Next for a line beyond the limit; the
// line was passed over and the next call goes on behind it.
var ErrLineTooLong = errors.New("the line is longer than the limit")

// NewReader returns a reader of lines up to max bytes (0: MaxLine).
func NewReader(r io.Reader, max int) *Reader {
	if max <= 0 {
		max = MaxLine
	}
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), max: max}
}

// Next returns the next whole line without its LF; it is valid until the next
// call. At the end the error is io.EOF; bytes behind the last LF are not
// returned.
func (r *Reader) Next() ([]byte, error) {
	r.long = r.long[:0]
	r.partial = 0
	tooLong := false
	for {
		part, err := r.r.ReadSlice('\n')
		if r.partial += int64(len(part)); err == nil {
			r.consumed += r.partial
			r.lines++
		}
		switch {
		case err == nil && len(r.long) == 0 && !tooLong:
			return part[:len(part)-1], nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
		if !tooLong {
			r.long = append(r.long, part...)
			tooLong = len(r.long) > r.max
		}
		if err != nil {
			continue
		}
		if tooLong {
			return nil, fmt.Errorf("line %d: %w", r.lines, ErrLineTooLong)
		}
		return bytes.TrimSuffix(r.long, []byte("\n")), nil
	}
}

// Lines is the number of lines read so far.
func (r *Reader) Lines() int { return r.lines }

// Consumed is the number of bytes of the lines read so far, their LFs included.
func (r *Reader) Consumed() int64 { return r.consumed }

// ObjectMembers calls each for the members of an object in canonical form, as
// records have them, until it returns false. The name is the raw text between
// its quotes. It reports whether the text is an object.
func ObjectMembers(object []byte, each func(name, value []byte) bool) bool {
	if len(object) < 2 || object[0] != '{' || object[len(object)-1] != '}' {
		return false
	}
	m := memberWalk{b: object[:len(object)-1]}
	for m.next() {
		if !each(object[m.name[0]:m.name[1]], object[m.value[0]:m.value[1]]) {
			return true
		}
	}
	return !m.broken
}

// ObjectMember returns a member's JSON text in an object in canonical form, or
// nil.
func ObjectMember(object []byte, name string) (value []byte) {
	ObjectMembers(object, func(n, v []byte) bool {
		if string(n) == name {
			value = v
		}
		return value == nil
	})
	return value
}
