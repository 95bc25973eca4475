// Command notes-server is a small MCP server that keeps notes as files of one
// folder. It serves stdio, or Streamable HTTP with -http, and has a tool for
// each thing an audit log should show: a plain call, an error, progress and a
// question to the user.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("notes-server: ")
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("notes-server", flag.ContinueOnError)
	address := flags.String("http", "", "serve Streamable HTTP on this address, for example 127.0.0.1:8080; empty is stdio")
	folder := flags.String("dir", "", "the folder of the notes; empty is a new temporary folder")
	stateless := flags.Bool("stateless", false, "serve HTTP without sessions")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *folder == "" {
		dir, err := os.MkdirTemp("", "notes-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		*folder = dir
	}
	root, err := os.OpenRoot(*folder)
	if err != nil {
		return fmt.Errorf("the folder of the notes: %w", err)
	}
	defer root.Close()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := newServer(root)
	if *address == "" {
		err := server.Run(ctx, &mcp.StdioTransport{})
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	return serveHTTP(ctx, server, *address, *stateless)
}

func serveHTTP(ctx context.Context, server *mcp.Server, address string, stateless bool) error {
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: stateless})
	web := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- web.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := web.Shutdown(grace); err != nil {
		// Open streams do not end by themselves.
		return web.Close()
	}
	return nil
}
