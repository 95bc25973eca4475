package caddymodule_test

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
)

// Whoever claims to be a shim on a route without one gets nothing past the
// record: what reaches the server is in the log by then, and has no cookie.
func TestAClaimToBeAShimIsNoWayAroundTheRecord(t *testing.T) {
	var recorded, cookie string
	path := make(chan string, 1)
	up := newUpstream(t, func(w http.ResponseWriter, req *http.Request) {
		log := <-path
		text, _ := os.ReadFile(log)
		recorded, cookie = string(text), req.Header.Get("Cookie")
		w.WriteHeader(http.StatusOK)
	})
	r := start(t, up, "", "")
	path <- r.log()
	resp := r.send(context.Background(), http.MethodGet, "", "Mcp-Shim-Report", "1", "Authorization", "Mcp-Shim "+strings.Repeat("A", 43), "Cookie", "a=b")
	readAll(t, resp)
	if resp.StatusCode != http.StatusBadGateway || !strings.Contains(recorded, `"reason":"http GET"`) || cookie != "" {
		t.Errorf("status %d, cookie %q, and when the server was asked the log had\n%s", resp.StatusCode, cookie, recorded)
	}
	r.verify()
}
