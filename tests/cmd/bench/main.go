// Command bench measures what auditing costs: the same client and server
// directly, through a plain Caddy and through an audited one, in interleaved
// rounds of one run, so that the ratios hold on a busy machine. It prints a
// table and how the result stands to the budgets; it enforces nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// payload is a message of the corpus and the routes that it is sent through.
type payload struct {
	name, file  string
	connections int
	routes      []string
	rounds      int // 0 is what the flag says
}

var payloads = []payload{
	{"1 KB", "text-1k.json", 16, []string{direct, plain, written, durable}, 0},
	{"64 KB text", "text-64k.json", 16, []string{direct, plain, written, durable}, 0},
	{"64 KB dense", "dense-64k.json", 16, []string{direct, plain, written, durable}, 0},
	{"1 MB text", "text-1m.json", 16, []string{plain, written}, 3},
	{"1 MB dense", "dense-1m.json", 16, []string{plain, written}, 3},
	{"1 KB", "text-1k.json", 64, []string{written, durable}, 0},
}

// The ways from the client to the server.
const (
	direct  = "direct"
	plain   = "plain Caddy"
	written = "audited, written"
	durable = "audited, durable"
)

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	bin := flags.String("bin", filepath.Join("..", "bin"), "the folder of the programs")
	corpus := flags.String("corpus", filepath.Join("..", "caddymodule", "mcp", "testdata"), "the folder of the messages")
	rounds := flags.Int("rounds", 8, "rounds of each way")
	length := flags.Duration("round", time.Second, "length of a round")
	root := flags.String("root", "..", "the folder of the product's source")
	micro := flags.String("micro", "300ms", "length of a run of a micro-benchmark")
	partsOnly := flags.Bool("parts", false, "measure only the parts, not the proxy")
	profiles := flags.String("profiles", "", "write a CPU profile of the audited Caddy for each message into this folder, and measure nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *profiles != "" {
		return profile(ctx, *bin, *corpus, *profiles)
	}
	measuredParts, err := measureParts(ctx, *root, *micro)
	if err != nil {
		return err
	}
	if err := printParts(measuredParts); err != nil || *partsOnly {
		return err
	}
	fmt.Println()
	folder, err := os.MkdirTemp("", "mcp-audit-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)

	upstream, err := serve()
	if err != nil {
		return err
	}
	routes, stopAll, err := startRoutes(ctx, *bin, folder, upstream)
	if err != nil {
		return err
	}
	defer stopAll()

	fmt.Printf("%-12s %4s  %-17s %9s %9s %9s %11s\n", "message", "conn", "way", "req/s", "p50 ms", "p99 ms", "CPU µs/req")
	results := make(map[string]*result)
	for _, p := range payloads {
		body, err := os.ReadFile(filepath.Join(*corpus, p.file))
		if err != nil {
			return err
		}
		if p.rounds == 0 {
			p.rounds = *rounds
		}
		measured, err := measure(ctx, p, body, routes, *length)
		if err != nil {
			return err
		}
		for _, name := range p.routes {
			r := measured[name]
			results[key(p, name)] = r
			fmt.Printf("%-12s %4d  %-17s %9.0f %9.2f %9.2f %11s\n", p.name, p.connections, name, r.rate(), r.quantile(0.50), r.quantile(0.99), r.cpuText())
		}
	}
	stopAll()
	if err := ctx.Err(); err != nil {
		return err
	}
	checked, err := timeVerify(ctx, *bin, filepath.Join(folder, "written", "audit.jsonl"))
	if err != nil {
		return err
	}
	piped, err := timeShim(ctx, *bin, folder)
	if err != nil {
		return err
	}
	printBudgets(results, checked, piped)
	return nil
}

func key(p payload, route string) string {
	return fmt.Sprintf("%s %d %s", p.name, p.connections, route)
}

const reply = `{"jsonrpc":"2.0","id":4711,"result":{"content":[{"type":"text","text":"written 1 file"}]}}`

// serve starts the server behind every way and returns its address. It runs in
// this process, so that its cost is not Caddy's.
func serve() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := drain(r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, reply)
		}),
	}
	go server.Serve(listener)
	return listener.Addr().String(), nil
}
