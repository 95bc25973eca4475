// Package tests holds the black-box tests of the product: real clients, real
// servers and a hostile one, through the built programs.
//
// MCP_AUDIT_BIN names the folder of the programs (`make test` sets it; without
// it they are built first). MCP_AUDIT_LONG=1 runs the cases that take minutes
// at their full length.
package tests

import (
	"io"
	"net/http"
	"os"
)

func long() bool { return os.Getenv("MCP_AUDIT_LONG") == "1" }

// send sends a request whose answer does not matter to the test.
func send(r *http.Request) {
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
}
