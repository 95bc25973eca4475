package cli

import (
	"bytes"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
	"github.com/caddy-mcp-audit/mcp-audit/verify/export"
)

// needle is a text that is looked for in records, as they spell it: it is found
// in a value, and in JSON that stands in a value's text.
type needle [][]byte

func newNeedle(text string) needle {
	if text == "" {
		return nil
	}
	spelt := canon.AppendString(nil, text)
	once := bytes.ToLower(spelt[1 : len(spelt)-1])
	n := needle{once}
	if again := canon.AppendString(nil, string(once)); !bytes.Equal(again[1:len(again)-1], once) {
		n = append(n, again[1:len(again)-1])
	}
	return n
}

// in reports whether a row has the text. The seal is not searched.
func (n needle) in(r *export.Row) bool {
	if n == nil {
		return true
	}
	bodies := [][]byte{r.Close.Line.Prefix, r.Close.Line.Open}
	if r.Intent != nil {
		bodies = append(bodies, r.Intent.Line.Prefix, r.Intent.Line.Open)
	}
	for _, body := range bodies {
		body = bytes.ToLower(body)
		for _, text := range n {
			if bytes.Contains(body, text) {
				return true
			}
		}
	}
	return false
}
