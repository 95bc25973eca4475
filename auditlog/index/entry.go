package index

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// maxText is how many bytes of a member are indexed.
const maxText = 1024

// columns is what is stored of a record. Empty texts are stored as NULL.
type columns struct {
	kind, origin                  string
	at                            int64
	op                            []byte
	intentSeq                     any
	direction, method, tool, name string
	client, server, principal     string
	outcome, decision, rule       string
	duration, status              any
	count                         int64 // facts that a joined event stands for; 0: one
}

// columnsOf reads a record's members in one pass.
func columnsOf(r *auditlog.Record) (c columns) {
	if at := r.Time(); !at.IsZero() {
		c.at = at.UnixNano()
	}
	if r.Kind == auditlog.KindErased {
		c.kind = r.Kind
		return c
	}
	r.Members(func(name string, value []byte) bool {
		switch name {
		case "audit_operation_id":
			c.op = operationKey(text(value))
		case "client_id":
			c.client = text(value)
		case "count":
			if n, ok := integer(r, name).(int64); ok {
				c.count = n
			}
		case "direction":
			c.direction = text(value)
		case "duration_ms":
			c.duration = integer(r, name)
		case "http_status":
			c.status = integer(r, name)
		case "intent_seq":
			c.intentSeq = integer(r, name)
		case "kind":
			c.kind = text(value)
		case "mcp_name":
			c.name = text(value)
		case "method":
			c.method = text(value)
		case "origin":
			c.origin = text(value)
		case "outcome":
			c.outcome = text(value)
		case "policy":
			c.decision = text(auditlog.ObjectMember(value, "decision"))
			c.rule = text(auditlog.ObjectMember(value, "rule_id"))
		case "principal":
			c.principal = text(auditlog.ObjectMember(value, "subject"))
		case "server_id":
			c.server = text(value)
		case "tool_name":
			c.tool = text(value)
		}
		return true
	})
	return c
}

// integer is a member that is a whole number, or nil.
func integer(r *auditlog.Record, name string) any {
	n, ok := r.Number(name)
	if !ok || n > 1<<62 {
		return nil
	}
	return int64(n)
}

// text is the decoded text of a string, cut to maxText bytes at a character; or "".
func text(value []byte) string {
	if len(value) < 2 || value[0] != '"' {
		return ""
	}
	decoded, ok := canon.Unquote(nil, value)
	if !ok {
		return ""
	}
	if len(decoded) > maxText {
		decoded = decoded[:maxText]
		for len(decoded) > 0 {
			if r, n := utf8.DecodeLastRune(decoded); r != utf8.RuneError || n > 1 {
				break
			}
			decoded = decoded[:len(decoded)-1]
		}
	}
	return string(decoded)
}

// operationKey is an operation id in 16 bytes, if it is a UUID, or its text.
func operationKey(id string) []byte {
	if id == "" {
		return nil
	}
	if len(id) == 36 {
		if key, err := hex.DecodeString(strings.ReplaceAll(id, "-", "")); err == nil && len(key) == 16 {
			return key
		}
	}
	return []byte(id)
}

// operationText undoes operationKey.
func operationText(key []byte) string {
	if len(key) != 16 {
		return string(key)
	}
	h := hex.EncodeToString(key)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// null is a text as it is stored: nothing for an empty one.
func null(s string) any {
	if s == "" {
		return nil
	}
	return s
}
