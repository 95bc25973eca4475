package mcp

import (
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Error codes of refusals after the message was understood. Revision
// 2026-07-28 reserves the older range for codes that it defines itself.
const (
	CodeHeaderMismatch = -32020
	// CodeSessionNotFound is what SDKs answer a session with that is not
	// there, beside HTTP status 404.
	CodeSessionNotFound = -32001

	codeDenied            = -32030
	codeRateLimited       = -32029
	codeUnavailable       = -32028
	codeDeniedModern      = -31030
	codeRateLimitedModern = -31029
	codeUnavailableModern = -31028
)

// DeniedCode is the code of a call denied by policy.
func DeniedCode(modern bool) int { return pick(modern, codeDeniedModern, codeDenied) }

// RateLimitedCode is the code of a call over its rate limit.
func RateLimitedCode(modern bool) int { return pick(modern, codeRateLimitedModern, codeRateLimited) }

// UnavailableCode is the code of a call that could not be recorded.
func UnavailableCode(modern bool) int { return pick(modern, codeUnavailableModern, codeUnavailable) }

func pick(modern bool, a, b int) int {
	if modern {
		return a
	}
	return b
}

// AppendError appends a JSON-RPC error answer. id is the raw token of the
// request's id, repeated exactly; without one the member is left out, since no
// revision lets a server answer an unknown id. data is JSON text, or nil.
func AppendError(dst, id []byte, code int, message string, data []byte) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if len(id) > 0 {
		dst = append(dst, `"id":`...)
		dst = append(dst, id...)
		dst = append(dst, ',')
	}
	dst = append(dst, `"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(code), 10)
	dst = append(dst, `,"message":`...)
	dst = canon.AppendString(dst, message)
	if len(data) > 0 {
		dst = append(dst, `,"data":`...)
		dst = append(dst, data...)
	}
	return append(dst, '}', '}')
}
