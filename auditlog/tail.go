package auditlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// lineReader reads the lines of a log between two offsets. Lines longer than
// MaxLine are skipped over and reported without their text.
type lineReader struct {
	r     *bufio.Reader
	pos   int64 // of the next line
	long  []byte
	limit int
	gaps  bool // empty lines stand where something was erased
}

func newLineReader(r io.ReaderAt, from, to int64) *lineReader {
	erasing, ok := r.(interface{ gaps() bool })
	return &lineReader{
		r: bufio.NewReaderSize(io.NewSectionReader(r, from, to-from), 256<<10), pos: from, limit: MaxLine,
		gaps: ok && erasing.gaps(),
	}
}

// rawLine is one line as it lies in the log.
type rawLine struct {
	text     []byte // without its LF; valid until the next read
	pos      int64
	complete bool // it ends in LF
	tooLong  bool // text is empty
}

// next returns the next line, or io.EOF.
func (r *lineReader) next() (rawLine, error) {
	line := rawLine{pos: r.pos}
	r.long = r.long[:0]
	for {
		part, err := r.r.ReadSlice('\n')
		r.pos += int64(len(part))
		if r.gaps && err == nil && len(part) == 1 && len(r.long) == 0 && !line.tooLong {
			line.pos = r.pos
			continue
		}
		if err == nil && len(r.long) == 0 && !line.tooLong {
			line.text, line.complete = part[:len(part)-1], true
			return line, nil
		}
		if !line.tooLong {
			r.long = append(r.long, part...)
			line.tooLong = len(r.long) > r.limit
		}
		switch {
		case err == nil:
			line.complete = true
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != io.EOF:
			return rawLine{}, err
		case r.pos == line.pos:
			return rawLine{}, io.EOF
		}
		if !line.tooLong {
			line.text = bytes.TrimSuffix(r.long, []byte("\n"))
		}
		return line, nil
	}
}

// tornTail is what follows the last good line of a log, if it can be what an
// interrupted write left.
type tornTail struct {
	pos   int64
	bytes int64
}

// follow verifies and folds every record between p and size. It returns the
// torn tail, if there is one; any other fault is a *lineError.
func follow(p *position, s *sealer, r io.ReaderAt, size int64, each func(f folded, line []byte)) (*tornTail, error) {
	lines := newLineReader(r, p.offset, size)
	for {
		line, err := lines.next()
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var fault error = &lineError{"malformed_line", "the last line is not complete"}
		if line.complete && !line.tooLong {
			l, kind := SplitLine(line.text)
			if fault = p.check(&l, kind, s); fault == nil {
				p.offset = line.pos
				f := p.fold(&l, len(line.text), s)
				if each != nil {
					each(f, line.text)
				}
				if f.kind == kindRotation {
					if err := s.rekey(f.keyID); err != nil {
						return nil, &lineError{"unknown_key", fmt.Sprintf("record %d goes over to another key, but %v", p.next-1, err)}
					}
				}
				continue
			}
		}
		sealed, err := anySealed(s, r, line.pos, size)
		if err != nil {
			return nil, err
		}
		if sealed {
			return nil, fault
		}
		return &tornTail{line.pos, size - line.pos}, nil
	}
}

// anySealed reports whether any complete line in a stretch carries a MAC made
// with the log's key. Then the stretch is not what an interrupted write leaves.
func anySealed(s *sealer, r io.ReaderAt, from, to int64) (bool, error) {
	lines := newLineReader(r, from, to)
	for {
		line, err := lines.next()
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if !line.complete || line.tooLong {
			continue
		}
		l, fault := SplitLine(line.text)
		if (fault == LineOK || fault == LineExtraMember) && s.checks(&l) {
			return true, nil
		}
	}
}

// firstLine reads the line at offset 0.
func firstLine(r io.ReaderAt, size int64) ([]byte, error) {
	line, err := newLineReader(r, 0, size).next()
	if err == nil && (!line.complete || line.tooLong) {
		err = &lineError{"genesis_missing", "its first line is not complete"}
	}
	if err == io.EOF {
		err = &lineError{"empty_log", "it is empty"}
	}
	return line.text, err
}

// lineBefore reads the line that ends at offset, its LF included.
func lineBefore(r io.ReaderAt, offset int64) ([]byte, error) {
	cut := &lineError{"chain_broken", fmt.Sprintf("no record ends at offset %d, where its state says that one does", offset)}
	for n := int64(4 << 10); ; n *= 8 {
		n = min(n, offset, MaxLine+1)
		buf := make([]byte, n)
		if _, err := r.ReadAt(buf, offset-n); err != nil && err != io.EOF {
			return nil, err
		}
		if n == 0 || buf[n-1] != '\n' {
			return nil, cut
		}
		line := buf[:n-1]
		if at := bytes.LastIndexByte(line, '\n'); at >= 0 {
			return line[at+1:], nil
		}
		if n == offset {
			return line, nil
		}
		if n > MaxLine {
			return nil, cut
		}
	}
}
