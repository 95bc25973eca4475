package embedded_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
	"github.com/caddy-mcp-audit/mcp-audit/shim/bridge"
	"github.com/caddy-mcp-audit/mcp-audit/shim/embedded"
)

// pipe is an operating system's pipe, as between processes.
func pipe(b *testing.B) (r, w *os.File) {
	b.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

// echo answers each request with its arguments, without parsing more than it
// must.
func echo(in, out *os.File) {
	r := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		start := bytes.Index(line, []byte(`"id":`)) + 5
		end := start + bytes.IndexByte(line[start:], ',')
		_, _ = fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"ok"}]}}`+"\n", line[start:end])
	}
}

// BenchmarkCall is one tools/call at a time through everything between a
// client and a server: what the shim adds. Compare direct with audited.
func BenchmarkCall(b *testing.B) {
	childIn, childStdin := pipe(b)
	childStdout, childOut := pipe(b)
	clientIn, clientOut := pipe(b) // the client reads In
	shimIn, shimStdin := pipe(b)   // the client writes Stdin
	go echo(childIn, childOut)

	calls := func(name string, size int, in *os.File, out *bufio.Reader) {
		text := strings.Repeat("x", size)
		b.Run(fmt.Sprintf("%s/%dB", name, size), func(b *testing.B) {
			n := 0
			for b.Loop() {
				n++
				_, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"m":"%s"}}}`+"\n", n, text)
				if err != nil {
					b.Fatal(err)
				}
				if line, err := out.ReadSlice('\n'); err != nil || !bytes.Contains(line, []byte(`"result"`)) {
					b.Fatalf("%s, %v", line, err)
				}
			}
		})
	}
	sizes := []int{200, 1 << 10, 64 << 10}
	direct := bufio.NewReaderSize(childStdout, 1<<20)
	for _, size := range sizes {
		calls("direct", size, childStdin, direct)
	}

	gate := shim.NewGate()
	br := bridge.New(childStdin, bridge.Options{Session: "s", Accepted: gate.Pass})
	audit, err := embedded.Open(context.Background(), embedded.Options{
		Dir: b.TempDir(), ServerID: "s", ClientID: "c", MaxBody: 16 << 20, LogLevel: "ERROR", Handler: br,
	})
	if err != nil {
		b.Fatal(err)
	}
	front := shim.NewFront(shim.FrontOptions{In: shimIn, Out: clientOut, Chain: audit.Chain(), Bridge: br, Gate: gate, Session: "s"})
	go func() { _ = front.Run() }()
	go func() { _ = br.Run(childStdout) }()
	client := bufio.NewReaderSize(clientIn, 1<<20)
	for _, size := range sizes {
		calls("audited", size, shimStdin, client)
	}
	front.Close()
	if err := audit.Close(context.Background()); err != nil {
		b.Error(err)
	}
}
