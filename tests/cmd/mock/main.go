// Command mock is the tests' upstream as a stdio MCP server.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

func main() {
	record := flag.String("record", os.DevNull, "the file that every received byte is appended to")
	stubborn := flag.Bool("stubborn", false, "ignore SIGTERM and the end of the input")
	flag.Parse()
	if *stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	file, err := os.OpenFile(*record, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		log.Fatal(err)
	}
	if err := upstream.New().Stdio(os.Stdin, os.Stdout, file); err != nil {
		log.Fatal(err)
	}
	if *stubborn {
		select {}
	}
}
