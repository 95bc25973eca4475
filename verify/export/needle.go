package export

import (
	"bytes"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// Needle is a text that is looked for in records, as they spell it: it is found
// in a value, and in JSON that stands in a value's text.
type Needle [][]byte

// NewNeedle looks for a text; for an empty one, every row has it.
func NewNeedle(text string) Needle {
	if text == "" {
		return nil
	}
	spelt := canon.AppendString(nil, text)
	once := bytes.ToLower(spelt[1 : len(spelt)-1])
	n := Needle{once}
	if again := canon.AppendString(nil, string(once)); !bytes.Equal(again[1:len(again)-1], once) {
		n = append(n, again[1:len(again)-1])
	}
	return n
}

// In reports whether a row has the text. The seal is not searched.
func (n Needle) In(r *Row) bool {
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
