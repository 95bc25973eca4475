package upstream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

// Stdio serves the same tools over newline-delimited JSON until in ends, and
// appends every byte received to record. It has three more tools: burst{n}
// writes n notifications, then its answer, then exits; exit{code} exits before
// it answers; die{signal} kills the process by that signal.
func (s *Server) Stdio(in io.Reader, out io.Writer, record io.Writer) error {
	lines := bufio.NewReader(in)
	var mu sync.Mutex
	write := func(line []byte) {
		mu.Lock()
		defer mu.Unlock()
		out.Write(append(line, '\n'))
	}
	for {
		line, ended := lines.ReadBytes('\n')
		if _, failed := record.Write(line); failed != nil {
			return failed
		}
		if batch := s.batch(line); batch != nil {
			write(batch)
		} else if m, ok := read(bytes.TrimSpace(line)); ok && m.ID != nil && m.Method != "" {
			switch m.Tool {
			case "burst":
				s.burst(out, m)
			case "exit":
				os.Exit(int(m.number("code")))
			case "die":
				return syscall.Kill(os.Getpid(), syscall.Signal(int(m.number("signal"))))
			case "raw":
				write([]byte(m.text("bytes")))
			default:
				go func() {
					if m.flag("sse") {
						write(progress(1))
					}
					write(answer(m.ID, s.result(context.Background(), m)))
				}()
			}
		}
		if ended != nil {
			return nil //nolint:nilerr // the client's end is an orderly one, however it comes
		}
	}
}

// batch answers an array of messages with an array; nil for any other line.
func (s *Server) batch(line []byte) []byte {
	var elements []json.RawMessage
	if json.Unmarshal(line, &elements) != nil {
		return nil
	}
	var answers [][]byte
	for _, element := range elements {
		if m, ok := read(element); ok && m.ID != nil && m.Method != "" {
			answers = append(answers, answer(m.ID, s.result(context.Background(), m)))
		}
	}
	return append(append([]byte("["), bytes.Join(answers, []byte(","))...), ']')
}

// burst is what a server does that prints much and ends at once.
func (s *Server) burst(out io.Writer, m Message) {
	buffered := bufio.NewWriterSize(out, 1<<16)
	for i := range int(m.number("n")) {
		fmt.Fprintf(buffered, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"line %d"}}`+"\n", i)
	}
	fmt.Fprintf(buffered, "%s\n", answer(m.ID, content("sent")))
	buffered.Flush()
	os.Exit(0)
}
