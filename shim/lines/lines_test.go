package lines_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-mcp-audit/mcp-audit/shim/lines"
)

// readAll reads every line, with ErrTooLong as the text "<long>".
func readAll(t *testing.T, r *lines.Reader) []string {
	t.Helper()
	var out []string
	for {
		line, err := r.Next()
		switch {
		case err == nil:
			out = append(out, string(line))
		case errors.Is(err, lines.ErrTooLong):
			out = append(out, "<long>")
		case errors.Is(err, io.EOF):
			return out
		default:
			t.Fatal(err)
		}
	}
}

func TestReaderFramesLines(t *testing.T) {
	big := strings.Repeat("x", 300<<10)
	for name, c := range map[string]struct {
		in   string
		max  int
		want []string
	}{
		"LF":                          {"a\nb\n", 0, []string{"a", "b"}},
		"CRLF":                        {"a\r\nb\r\n", 0, []string{"a", "b"}},
		"last line without its end":   {"a\nb", 0, []string{"a", "b"}},
		"blank lines are no messages": {"\n\n a \n\t\n\r\nb\n", 0, []string{" a ", "b"}},
		"a CR inside stays":           {"a\rb\n", 0, []string{"a\rb"}},
		"longer than any buffer":      {big + "\n" + "b\n", 0, []string{big, "b"}},
		"at the bound":                {"1234\n123\n", 4, []string{"1234", "123"}},
		"at the bound with CRLF":      {"1234\r\n123\n", 4, []string{"1234", "123"}},
		"over the bound":              {"12345\n123\n", 4, []string{"<long>", "123"}},
		"over the bound, much":        {big + "\nb\n", 4, []string{"<long>", "b"}},
		"over the bound at the end":   {"a\n" + big, 4, []string{"a", "<long>"}},
		"over the bound by its end":   {"12345\r\n123\n", 4, []string{"<long>", "123"}},
		"over the bound, then CRLF":   {"123456\r\n123\n", 4, []string{"<long>", "123"}},
		"nothing":                     {"", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for how, source := range map[string]io.Reader{
				"whole":        strings.NewReader(c.in),
				"byte by byte": iotest.OneByteReader(strings.NewReader(c.in)),
				"data and EOF": iotest.DataErrReader(strings.NewReader(c.in)),
			} {
				got := readAll(t, lines.NewReader(source, c.max))
				if len(got) != len(c.want) {
					t.Fatalf("%s: got %d lines, want %d", how, len(got), len(c.want))
				}
				for i := range got {
					if got[i] != c.want[i] {
						t.Fatalf("%s: line %d is %.40q, want %.40q", how, i, got[i], c.want[i])
					}
				}
			}
		})
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("a\r\n\nb\rc\n\r\n"), uint8(3))
	f.Add([]byte("{}\n{}"), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, limit uint8) {
		r := lines.NewReader(bytes.NewReader(in), int(limit))
		bound := int(limit)
		if bound == 0 {
			bound = lines.DefaultMax
		}
		total := 0
		for {
			line, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if errors.Is(err, lines.ErrTooLong) {
				if len(line) != bound+1 {
					t.Fatalf("%d bytes of a line over the bound of %d", len(line), bound)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if bytes.IndexByte(line, '\n') >= 0 || len(line) > bound || len(bytes.TrimSpace(line)) == 0 {
				t.Fatalf("bad line %q", line)
			}
			if !bytes.Contains(in, line) {
				t.Fatalf("line %q is not in the input", line)
			}
			total += len(line)
		}
		if total > len(in) {
			t.Fatal("more bytes out than in")
		}
	})
}
