package export

import (
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// syslog writes RFC 5424 messages. Payloads are left out; the structured data
// names the record that has them.
type syslog struct {
	w      io.Writer
	host   string
	octets bool
	b, out []byte
}

// facility is "log audit"; structuredID names our data under the number that
// IANA keeps for examples, since the product has none of its own.
const (
	facility     = 13
	structuredID = "mcpaudit@32473"
)

// byteOrderMark begins a message that is UTF-8 and more than ASCII.
const byteOrderMark = "\ufeff"

var paramValue = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`)

// header makes a text fit for a header field: printable ASCII, at most n
// bytes; "-" if nothing is left.
func header(s string, n int) string {
	b := make([]byte, 0, n)
	for i := 0; i < len(s) && len(b) < n; i++ {
		if s[i] > ' ' && s[i] < 0x7f {
			b = append(b, s[i])
		}
	}
	if len(b) == 0 {
		return "-"
	}
	return string(b)
}

// param appends one parameter of the structured data, unless it is empty.
func (s *syslog) param(name, value string) {
	if value == "" {
		return
	}
	s.b = append(append(append(s.b, ' '), name...), `="`...)
	s.b = append(append(s.b, paramValue.Replace(oneLine(clip(value), false))...), '"')
}

func (s *syslog) Write(r *Row) error {
	message := r.outcome()
	if message == "" {
		message = r.Kind
	}
	s.b = append(s.b[:0], '<')
	s.b = strconv.AppendInt(s.b, int64(facility*8+syslogSeverity(r)), 10)
	s.b = append(s.b, ">1 "...)
	s.b = r.end().AppendFormat(s.b, "2006-01-02T15:04:05.000000Z")
	s.b = append(append(s.b, ' '), header(s.host, 255)...)
	s.b = append(s.b, " mcp-audit - "...)
	s.b = append(s.b, header(message, 32)...)
	s.b = append(s.b, " ["+structuredID...)
	s.param("seq", strconv.FormatUint(r.Seq(), 10))
	s.param("leaf", r.Leaf())
	if r.Intent != nil {
		s.param("intent_seq", strconv.FormatUint(r.Intent.Line.Seal.Seq, 10))
		s.param("intent_leaf", r.Intent.Line.Seal.Leaf.String())
	}
	s.param("origin", r.Origin)
	s.param("kind", r.Kind)
	for _, name := range []string{"id", "audit_operation_id", "outcome", "direction", "transport", "method", "mcp_name", "tool_name"} {
		s.param(name, r.text(name))
	}
	s.param("duration_ms", string(r.member("duration_ms")))
	s.param("client_id", r.text("client_id"))
	s.param("server_id", r.text("server_id"))
	s.param("principal_subject", r.inner("principal", "subject"))
	s.param("principal_issuer", r.inner("principal", "issuer"))
	s.param("decision", r.inner("policy", "decision"))
	s.param("rule_id", r.inner("policy", "rule_id"))
	s.param("reason", r.reason())
	s.param("http_status", string(r.member("http_status")))
	s.b = append(s.b, "] "...)
	text := oneLine(clip(r.summary()), false)
	if strings.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 {
		s.b = append(s.b, byteOrderMark...)
	}
	s.b = append(s.b, text...)

	s.out = s.out[:0]
	if s.octets {
		s.out = strconv.AppendInt(s.out, int64(len(s.b)), 10)
		s.out = append(append(s.out, ' '), s.b...)
	} else {
		s.out = append(append(s.out, s.b...), '\n')
	}
	_, err := s.w.Write(s.out)
	return err
}

// syslogSeverity is that of RFC 5424: 3 error, 4 warning, 5 notice, 6
// informational.
func syslogSeverity(r *Row) int {
	switch severityOf(r) {
	case high:
		return 3
	case medium:
		return 4
	case low:
		return 5
	}
	return 6
}
