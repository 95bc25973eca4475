package shim

import (
	"errors"
	"io"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/shim/lines"
)

// refuseFirst answers the client's first request with an error that says why
// there will be no other answer: desktop clients hide standard error. It
// returns then, or at the end of in.
func refuseFirst(in io.Reader, out io.Writer, maxLine int, text string) {
	r := lines.NewReader(in, maxLine)
	for {
		line, err := r.Next()
		if errors.Is(err, lines.ErrTooLong) {
			continue
		}
		if err != nil {
			return
		}
		var scratch [1]mcp.Message
		msgs, batch, fault := mcp.Scan(line, scratch[:0])
		if fault != nil || batch || msgs[0].Kind != mcp.KindRequest {
			continue
		}
		m := &msgs[0]
		modern := mcp.Modern(mcp.Revision(m, line, "", ""))
		answer := mcp.AppendError(nil, m.ID.Of(line), mcp.UnavailableCode(modern), text, nil)
		_, _ = out.Write(append(answer, '\n'))
		return
	}
}
