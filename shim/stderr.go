package shim

import (
	"bytes"
	"io"
	"os"
	"time"
)

// watchedStderr passes a child's standard error on as it comes and gives its
// lines to record as well.
type watchedStderr struct {
	child  *os.File // the child's end
	closed chan struct{}
}

// stderrEnd is how long output is still waited for when the child has ended. A
// process that it left behind may hold the other end for good.
const stderrEnd = 100 * time.Millisecond

// watchStderr begins to read what a child will write to the returned file.
func watchStderr(to io.Writer, record func(line []byte)) (*watchedStderr, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s := &watchedStderr{child: w, closed: make(chan struct{})}
	go func() {
		defer close(s.closed)
		defer r.Close()
		lines := &lineSplitter{do: record}
		// What cannot be passed on is recorded all the same.
		_, _ = io.Copy(io.MultiWriter(lines, indifferent{to}), r)
		lines.end()
	}()
	return s, nil
}

// started closes our copy of the child's end.
func (s *watchedStderr) started() { _ = s.child.Close() }

// await waits for the end of the output.
func (s *watchedStderr) await() {
	select {
	case <-s.closed:
	case <-time.After(stderrEnd):
	}
}

// indifferent is a writer whose errors do not matter.
type indifferent struct{ w io.Writer }

func (i indifferent) Write(p []byte) (int, error) {
	_, _ = i.w.Write(p)
	return len(p), nil
}

// lineSplitter gives whole lines to do; one that is too long, in parts.
type lineSplitter struct {
	do   func(line []byte)
	rest []byte
}

const longestStderrLine = 64 << 10

// Write implements io.Writer.
func (l *lineSplitter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			if l.rest = append(l.rest, p...); len(l.rest) > longestStderrLine {
				l.end()
			}
			break
		}
		l.rest = append(l.rest, p[:i]...)
		p = p[i+1:]
		l.end()
	}
	return n, nil
}

func (l *lineSplitter) end() {
	if line := bytes.TrimSuffix(l.rest, []byte("\r")); len(line) > 0 {
		l.do(line)
	}
	l.rest = l.rest[:0]
}
