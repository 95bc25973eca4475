package mcp_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

var update = flag.Bool("update", false, "write the corpus again")

// The corpus is what the budgets are measured on: calls that carry a file's
// text (prose, code and some of what is not ASCII, with the escapes JSON puts
// into it) and calls that carry rows of small values.
var corpus = []struct {
	name string
	size int
	text bool
}{
	{"text-1k", 1 << 10, true},
	{"text-64k", 64 << 10, true},
	{"dense-64k", 64 << 10, false},
	{"text-1m", 1 << 20, true},
	{"dense-1m", 1 << 20, false},
}

func corpusFile(name string) string { return filepath.Join("testdata", name+".json") }

func readCorpus(tb testing.TB, name string) []byte {
	tb.Helper()
	body, err := os.ReadFile(corpusFile(name))
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

func TestCorpusIsWhatItsGeneratorMakes(t *testing.T) {
	for _, c := range corpus {
		want := makeCall(c.size, c.text)
		if *update {
			if err := os.WriteFile(corpusFile(c.name), want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(readCorpus(t, c.name), want) {
			t.Errorf("%s is not what makeCall makes; run the test with -update", corpusFile(c.name))
		}
	}
}

// makeCall makes a tools/call of exactly size bytes.
func makeCall(size int, text bool) []byte {
	head := `{"jsonrpc":"2.0","id":4711,"method":"tools/call","params":{"name":"write_file","arguments":{"path":"/srv/notes/report.md",`
	tail := `},"_meta":{"progressToken":"p-4711"}}}`
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	var b bytes.Buffer
	b.WriteString(head)
	if text {
		b.WriteString(`"content":"`)
		tail = `"` + tail
		for b.Len()+len(tail) < size {
			b.Write(quoted(paragraph(rng)))
		}
	} else {
		b.WriteString(`"rows":[`)
		tail = `{}]` + tail
		for i := 0; b.Len()+len(tail) < size; i++ {
			fmt.Fprintf(&b, `{"id":%d,"name":"item-%d","ok":%t,"price":%.2f,"tags":["a","b"],"parent":null},`,
				i, rng.IntN(1000), rng.IntN(2) == 0, rng.Float64()*100)
		}
	}
	// What is too long goes, up to a place where JSON may be cut, and blanks
	// before the end make up for it.
	body := b.Bytes()
	keep := size - len(tail)
	if text {
		keep = bytes.LastIndexByte(body[:keep], ' ')
	} else {
		keep = bytes.LastIndex(body[:keep], []byte("},")) + 2
	}
	body = append(bytes.Clone(body[:keep]), tail...)
	blanks := bytes.Repeat([]byte(" "), size-len(body))
	return append(body[:len(body)-1:len(body)-1], append(blanks, '}')...)
}

func quoted(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		panic(err)
	}
	return b.Bytes()[1 : b.Len()-2]
}

// paragraph is a line of prose or some lines of code.
func paragraph(rng *rand.Rand) string {
	words := strings.Fields(`the record of a call is written before its first byte goes on and closed when the answer ends so that
		whoever reads the log later can tell what was asked what was done and what nobody knows any more`)
	if rng.IntN(4) == 0 {
		return fmt.Sprintf("\tif err := write(ctx, %q, %d); err != nil {\n\t\treturn fmt.Errorf(\"writing: %%w\", err)\n\t}\n",
			words[rng.IntN(len(words))], rng.IntN(100))
	}
	var b strings.Builder
	for range 30 + rng.IntN(60) {
		w := words[rng.IntN(len(words))]
		if rng.IntN(60) == 0 {
			w = []string{"naïve", "Größe", "“quoted”", "déjà", "東京"}[rng.IntN(5)]
		}
		b.WriteString(w)
		b.WriteByte(' ')
	}
	return b.String() + "\n\n"
}

func TestScansOfTheCorpusAllocateNothing(t *testing.T) {
	for _, c := range corpus {
		body := readCorpus(t, c.name)
		for name, scan := range map[string]func([]byte, []mcp.Message) ([]mcp.Message, bool, *mcp.ScanError){
			"Scan": mcp.Scan, "ScanAnswer": mcp.ScanAnswer,
		} {
			msgs, _, err := scan(body, nil)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, c.name, err)
			}
			if n := testing.AllocsPerRun(20, func() { msgs, _, _ = scan(body, msgs) }); n > 0 {
				t.Errorf("%s: %s: %v allocations", name, c.name, n)
			}
		}
	}
}

func BenchmarkScan(b *testing.B)       { benchmark(b, mcp.Scan) }
func BenchmarkScanAnswer(b *testing.B) { benchmark(b, mcp.ScanAnswer) }

func benchmark(b *testing.B, scan func([]byte, []mcp.Message) ([]mcp.Message, bool, *mcp.ScanError)) {
	for _, c := range corpus {
		b.Run(c.name, func(b *testing.B) {
			body := readCorpus(b, c.name)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var msgs []mcp.Message
			for b.Loop() {
				msgs, _, _ = scan(body, msgs)
			}
		})
	}
}
