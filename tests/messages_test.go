package tests

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

const (
	legacy = "2025-11-25"
	modern = "2026-07-28"
)

// call is a tools/call of an older revision; id and arguments are raw JSON.
func call(id, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments)
}

// modernCall is a tools/call of 2026-07-28 and the headers it must carry.
func modernCall(id, tool, arguments string) (body string, header []string) {
	body = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{}}}}`, id, tool, arguments, modern)
	return body, []string{"MCP-Protocol-Version", modern, "Mcp-Method", "tools/call", "Mcp-Name", tool}
}

// wantRPCError checks that an answer is one JSON-RPC error with the exact id.
func wantRPCError(t *testing.T, a harness.Answer, id string, code int) {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Errorf("HTTP status %d, want 200: %s", a.Status, a.Body)
	}
	for _, part := range []string{fmt.Sprintf(`"id":%s,`, id), fmt.Sprintf(`"code":%d,`, code), `"jsonrpc":"2.0"`} {
		if !strings.Contains(a.Body, part) {
			t.Errorf("answer %s lacks %s", a.Body, part)
		}
	}
}

// with is a condition on records: the call's arguments contain a marker.
func with(marker string) func(harness.Record) bool {
	return func(r harness.Record) bool { return strings.Contains(r.Line, marker) }
}

func traffic(records []harness.Record) []harness.Record {
	return harness.Select(records, harness.Record.Traffic)
}
