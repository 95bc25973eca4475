// Package lines reads newline-delimited messages, the framing of MCP's stdio
// transport (specification, basic/transports, stdio).
package lines

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// DefaultMax is the largest line in bytes that is accepted where nothing else
// is configured.
const DefaultMax = 16 << 20

// ErrTooLong is returned with the first bytes of a line longer than the
// reader's bound, one more than the bound. The line has been read to its end;
// the reader can go on.
var ErrTooLong = errors.New("line too long")

// Reader reads lines that end in LF or CRLF. A last line without its end is
// returned too: a writer that dies after its last byte has still said it. It
// is not safe for concurrent use.
type Reader struct {
	r   *bufio.Reader
	max int
}

// NewReader returns a reader with lines of at most limit bytes, their end not
// counted; 0 means DefaultMax.
func NewReader(r io.Reader, limit int) *Reader {
	if limit <= 0 {
		limit = DefaultMax
	}
	return &Reader{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// Next returns the next line that is not blank, without its end. The caller
// owns the slice. The error is ErrTooLong, io.EOF, or what the source says.
func (r *Reader) Next() ([]byte, error) {
	for {
		line, err := r.line()
		if errors.Is(err, ErrTooLong) {
			return line, err
		}
		if len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// line returns a line, perhaps blank. With a line, the error of a source that
// ended without LF is left for the next call.
func (r *Reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		// Two bytes over the bound may be the end of a line that fits.
		line = append(line, part[:min(len(part), r.max+2-len(line))]...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if len(line) == r.max+2 && !bytes.HasSuffix(line, []byte("\r\n")) {
			return line[:r.max+1], ErrTooLong
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		if len(line) > r.max {
			return line, ErrTooLong
		}
		return line, err
	}
}
