package bridge

import (
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
)

// Ending says how the child ended, for the answers of requests that it can no
// longer answer.
type Ending struct {
	// Reason is a sentence, for example "the server process exited with code 3".
	Reason string
	// Code is the exit code, 128+n for a death by signal n, -1 if the child
	// never started.
	Code int
	// Signal is the name of the signal that killed it, or "".
	Signal string
}

// codeConnectionClosed is what SDKs use for a connection that closed under a
// request. Revisions from 2026-07-28 on allocate nothing in that range.
const codeConnectionClosed = -32000

// codeInternal is JSON-RPC's internal error.
const codeInternal = -32603

// answer is the JSON-RPC error for a request that the ended child leaves open.
func (e *Ending) answer(id []byte, modern bool) []byte {
	code := codeConnectionClosed
	if modern {
		code = codeInternal
	}
	var data []byte
	if e.Code >= 0 {
		data = append(data, `{"exitCode":`...)
		data = strconv.AppendInt(data, int64(e.Code), 10)
		if e.Signal != "" {
			data = append(data, `,"signal":`...)
			data = canon.AppendString(data, e.Signal)
		}
		data = append(data, '}')
	}
	return mcp.AppendError(nil, id, code, e.Reason, data)
}
