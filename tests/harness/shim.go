package harness

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Shim is a running mcp-audit-shim, or any other program that speaks
// newline-delimited JSON on stdio.
type Shim struct {
	*Process
	In    io.WriteCloser
	Lines <-chan string // what it prints, closed at its end
}

// AuditDir is the MCP_AUDIT_DIR of the shims in dir.
func AuditDir(dir string) string { return filepath.Join(dir, "mcp-audit") }

// ShimLog is their log.
func ShimLog(dir string) string { return filepath.Join(AuditDir(dir), "audit.jsonl") }

// ShimCommand returns the command line of a shim with its log in dir.
func ShimCommand(t testing.TB, dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(Find(t).Shim, args...)
	cmd.Env = Environment(dir, "MCP_AUDIT_DIR="+AuditDir(dir))
	cmd.Dir = dir
	return cmd
}

// StartShim starts a shim; args are its options, "--" and the child's command.
func StartShim(t testing.TB, dir string, args ...string) *Shim {
	t.Helper()
	return StartLines(t, ShimCommand(t, dir, args...))
}

// StartLines starts a program that speaks newline-delimited JSON on stdio.
func StartLines(t testing.TB, cmd *exec.Cmd) *Shim {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	// Not StdoutPipe, which Wait closes before all is read.
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = write
	process := Launch(t, cmd)
	write.Close()
	lines := make(chan string, 1<<16)
	go func() {
		defer close(lines)
		defer out.Close()
		reader := bufio.NewReaderSize(out, 1<<16)
		for {
			line, err := reader.ReadString('\n')
			if line != "" {
				lines <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	return &Shim{process, in, lines}
}

// Send writes one line.
func (s *Shim) Send(t testing.TB, line string) {
	t.Helper()
	if _, err := io.WriteString(s.In, line+"\n"); err != nil {
		t.Fatalf("writing to the shim: %v\n%s", err, s.Err)
	}
}

// Receive returns the next line that it prints.
func (s *Shim) Receive(t testing.TB) string {
	t.Helper()
	select {
	case line, ok := <-s.Lines:
		if !ok {
			t.Fatalf("the shim's output has ended; stderr:\n%s", s.Err)
		}
		return line
	case <-time.After(Patience):
		t.Fatalf("the shim prints nothing within %s", Patience)
	}
	return ""
}

// Rest returns all further lines up to the end of its output.
func (s *Shim) Rest(t testing.TB) []string {
	t.Helper()
	var lines []string
	deadline := time.After(Patience)
	for {
		select {
		case line, ok := <-s.Lines:
			if !ok {
				return lines
			}
			lines = append(lines, line)
		case <-deadline:
			t.Fatalf("the shim's output does not end within %s", Patience)
		}
	}
}

// Closed waits until the last writer of a log has sealed it, and returns its
// records.
func Closed(t testing.TB, log string) []Record {
	t.Helper()
	var records []Record
	Eventually(t, "the log "+log+" is sealed", func() bool {
		data, err := os.ReadFile(log)
		if err != nil || len(data) == 0 || data[len(data)-1] != '\n' {
			return false
		}
		records = ParseLog(t, data)
		starts, stops := 0, 0
		for _, r := range records {
			switch r.Kind {
			case "start":
				starts++
			case "stop":
				stops++
			}
		}
		return starts == stops && records[len(records)-1].Kind == "checkpoint"
	})
	return records
}

// Call sends a request and returns the next line.
func (s *Shim) Call(t testing.TB, line string) string {
	t.Helper()
	s.Send(t, line)
	return s.Receive(t)
}

// Initialize makes the legacy handshake.
func (s *Shim) Initialize(t testing.TB) string {
	t.Helper()
	answer := s.Call(t, Initialize)
	s.Send(t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return answer
}

// Initialize is a legacy client's first message.
const Initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
