package legacy

import (
	"context"
	"errors"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// detectLines is how many lines are looked at to tell a format.
const detectLines = 1000

// Detect tells the format of a log by the first of its lines that is a record
// of any. A log that has a record of this product's own format among its first
// 1000 lines is one of ours, whatever was put before it: FormatNone.
func Detect(ctx context.Context, source auditlog.Source) (Format, error) {
	format := FormatNone
	lines := 0
	stop := errors.New("enough is read")
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := scan(ctx, source, 0, func(text []byte, err error) {
		if lines++; err != nil || lines > detectLines {
			if lines > detectLines {
				cancel(stop)
			}
			return
		}
		if _, fault := auditlog.SplitLine(text); fault == auditlog.LineOK || fault == auditlog.LineExtraMember || fault == auditlog.LineBadSeal {
			format = FormatNone
			cancel(stop)
			return
		}
		if format == FormatNone {
			format = formatOf(text)
		}
	}, func() {})
	if err != nil && errors.Is(context.Cause(ctx), stop) {
		err = nil
	}
	if err != nil {
		return FormatNone, err
	}
	return format, nil
}

// formatOf tells the format of one line.
func formatOf(text []byte) Format {
	o, v := parseObject(text)
	if v != canon.None {
		return FormatNone
	}
	kind, _ := o.text("type")
	switch {
	case o.has(attestation), o.has("previousHash"), kind == chainBreak && o.has("reason"):
		return FormatGateway
	case o.has("integrity"), o.get("signature") != nil, o.has("direction") && o.has("transport") && o.has("client_id"):
		if o.has("id") && o.has("timestamp") {
			return FormatP4ST4S
		}
	}
	return FormatNone
}
