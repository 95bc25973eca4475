package export

import (
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// csvColumns are the columns, in order. Those from id to policy are the
// members of an entry, objects as JSON text; the others name the record, or
// repeat parts of objects to be filtered by.
var csvColumns = [...]string{
	"seq", "leaf", "intent_seq", "intent_leaf", "origin", "kind",
	"id", "timestamp", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id",
	"mcp_name", "tool_name", "params", "result", "error", "duration_ms", "client_id", "server_id", "principal", "policy",
	"principal_subject", "decision", "rule_id", "reason", "http_status", "protocol_version", "session", "count",
}

// table writes CSV as RFC 4180 has it, with a header.
type table struct {
	w io.Writer
	b []byte
}

func newCSV(w io.Writer) (*table, error) {
	t := &table{w: w}
	for i, name := range csvColumns {
		if i > 0 {
			t.b = append(t.b, ',')
		}
		t.b = append(t.b, name...)
	}
	return t, t.flush()
}

func (t *table) flush() error {
	t.b = append(t.b, "\r\n"...)
	_, err := t.w.Write(t.b)
	t.b = t.b[:0]
	return err
}

func (t *table) Write(r *Row) error {
	for i, name := range csvColumns {
		if i > 0 {
			t.b = append(t.b, ',')
		}
		t.b = appendCell(t.b, cell(r, name))
	}
	return t.flush()
}

// cell is the text of a column.
func cell(r *Row, name string) string {
	switch name {
	case "seq":
		return strconv.FormatUint(r.Seq(), 10)
	case "leaf":
		return r.Leaf()
	case "intent_seq", "intent_leaf":
		switch {
		case r.Intent == nil:
			return ""
		case name == "intent_leaf":
			return r.Intent.Line.Seal.Leaf.String()
		default:
			return strconv.FormatUint(r.Intent.Line.Seal.Seq, 10)
		}
	case "origin":
		return r.Origin
	case "kind":
		return r.Kind
	case "timestamp":
		return r.end().Format(time.RFC3339Nano)
	case "principal_subject":
		return r.inner("principal", "subject")
	case "decision":
		return r.inner("policy", "decision")
	case "rule_id":
		return r.inner("policy", "rule_id")
	}
	value := r.member(name)
	if len(value) > 0 && value[0] == '"' {
		return decode(value)
	}
	return string(value)
}

// appendCell appends a cell. Spreadsheets take some texts for formulas, even
// quoted: such a cell gets a ' in front, and so does one that begins with ',
// so that taking one ' away always gives the text.
func appendCell(b []byte, s string) []byte {
	guard := startsFormula(s) || strings.HasPrefix(s, "'")
	if !guard && !strings.ContainsAny(s, ",\"\r\n") && !strings.HasPrefix(s, " ") && !strings.HasSuffix(s, " ") {
		return append(b, s...)
	}
	b = append(b, '"')
	if guard {
		b = append(b, '\'')
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '"' {
			b = append(b, '"')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// startsFormula reports whether a spreadsheet may take a text for a formula:
// it begins, perhaps behind spaces, with = + - @, their full-width forms, a
// tab, a carriage return or a line feed.
func startsFormula(s string) bool {
	s = strings.TrimLeft(s, " ")
	first, _ := utf8.DecodeRuneInString(s)
	return s != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", first)
}
