// Peer stands beside a program on stdio:
//
//	peer serve go-sdk|mcp-go          is a server of that SDK
//	peer tee FILE COMMAND [ARG…]      passes stdin and stdout of a command on
//	                                  and keeps the bytes in FILE.in and FILE.out
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	markserver "github.com/mark3labs/mcp-go/server"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caddy-mcp-audit/mcp-audit/tests/sdkdiff"
)

func main() {
	err := errors.New("usage: peer serve SDK | peer tee FILE COMMAND [ARG…]")
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve" && os.Args[2] == "go-sdk":
		err = sdkdiff.GoSDK().Run(context.Background(), &mcp.StdioTransport{})
	case len(os.Args) == 3 && os.Args[1] == "serve" && os.Args[2] == "mcp-go":
		err = markserver.ServeStdio(sdkdiff.MCPGo())
	case len(os.Args) > 3 && os.Args[1] == "tee":
		err = tee(os.Args[2], os.Args[3], os.Args[4:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func tee(file, name string, args []string) error {
	in, err := os.Create(file + ".in")
	if err != nil {
		return err
	}
	out, err := os.Create(file + ".out")
	if err != nil {
		return err
	}
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	cmd.Stdout = io.MultiWriter(out, os.Stdout)
	// Not cmd.Stdin, which Wait would wait for after the command's end.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		io.Copy(io.MultiWriter(in, stdin), os.Stdin)
		stdin.Close()
	}()
	return cmd.Wait()
}
