package caddymodule

import (
	"net/http"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/mcp"
	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// wireRedacted is the anomaly of a message that went on without what the wire
// profile takes out.
const wireRedacted = "wire_redacted"

// redactAnswer is the rewriteRule of the wire profile.
func redactAnswer(x *exchange, m *mcp.Message, data []byte) ([]replacement, error) {
	edits, err := redactMessage(x.h.redact, m, data)
	if len(edits) > 0 {
		x.noteAnomaly(wireRedacted)
	}
	return edits, err
}

// redactMessage finds what of a message's members the profile replaces.
func redactMessage(profile *redact.Profile, m *mcp.Message, data []byte) (edits []replacement, err error) {
	for _, part := range []struct {
		name string
		at   mcp.Span
	}{{"params", m.Params}, {"result", m.Result}, {"error", m.Error}} {
		if !part.at.Present() {
			continue
		}
		out, changed, err := profile.Member(part.name, part.at.Of(data))
		if err != nil {
			return nil, errUnrewritable
		}
		if changed {
			edits = append(edits, replacement{part.at, out})
		}
	}
	return edits, nil
}

// redactRequest takes out of a client's messages what the wire profile names,
// before anything is decided: what is decided, recorded and forwarded stays one
// text.
func (x *exchange) redactRequest() *refusal {
	if !x.h.wire() || len(x.msgs) == 0 {
		return nil
	}
	var edits []replacement
	for i := range x.msgs {
		more, err := redactMessage(x.h.redact, &x.msgs[i], x.body)
		if err != nil {
			return &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "unredactable",
				message: "the message cannot be redacted", m: &x.msgs[i]}
		}
		edits = append(edits, more...)
	}
	if len(edits) == 0 {
		return nil
	}
	name := x.msgs[0].Name.Of(x.body)
	x.body = applyReplacements(x.body, edits)
	msgs, batch, fault := mcp.Scan(x.body, x.msgs[:0])
	x.msgs, x.batch = msgs, batch
	if fault != nil {
		return &refusal{status: http.StatusBadRequest, code: fault.Code, reason: "unredactable", message: "the message cannot be redacted", id: fault.ID}
	}
	x.noteAnomaly(wireRedacted)
	if now := x.msgs[0].Name.Of(x.body); string(now) != string(name) && x.r.Header.Get("Mcp-Name") != "" {
		x.r.Header.Set("Mcp-Name", mcp.Text(now))
	}
	x.redactParamHeaders()
	return nil
}

// redactParamHeaders does the same to the headers that mirror arguments.
func (x *exchange) redactParamHeaders() {
	for name, values := range x.r.Header {
		param, ok := strings.CutPrefix(name, "Mcp-Param-")
		if !ok {
			continue
		}
		for i, v := range values {
			switch decoded, _ := mcp.DecodeHeaderValue(v); {
			case x.h.redact.MatchKey(param):
				values[i] = redact.Placeholder
			case x.h.redact.Text(decoded) != decoded:
				values[i] = x.h.redact.Text(decoded)
			}
		}
	}
}

// noteAnomaly adds an anomaly once.
func (x *exchange) noteAnomaly(name string) {
	for _, a := range x.anomaly {
		if a == name {
			return
		}
	}
	x.anomaly = append(x.anomaly, name)
}

// wire reports whether the profile applies to traffic, too.
func (h *Handler) wire() bool { return h.Redact != nil && h.Redact.Wire }

// wireText is a text of the server as clients may get it.
func (h *Handler) wireText(text string) string {
	if !h.wire() {
		return text
	}
	return h.redact.Text(text)
}

// rewriteRules are what changes a server's messages, in order.
func (h *Handler) rewriteRules() (rules []rewriteRule) {
	if h.wire() {
		rules = append(rules, redactAnswer)
	}
	return rules
}
