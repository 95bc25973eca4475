// Command mcp-audit-shim audits an MCP server that speaks over standard input
// and output.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
	"github.com/caddy-mcp-audit/mcp-audit/verify/release"
)

func main() { os.Exit(run()) }

func run() int {
	options, err := shim.ParseOptions(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "mcp-audit-shim:", err)
		return shim.ExitUsage
	case options.ShowVersion:
		fmt.Println(release.Text("mcp-audit-shim"))
		return 0
	}
	environment := os.Environ()
	out, err := shim.GuardStdout()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mcp-audit-shim:", err)
		return shim.ExitRefused
	}
	return shim.Run(options, shim.Stdio{In: os.Stdin, Out: out, Err: os.Stderr, Env: environment}, openEmbedded)
}
