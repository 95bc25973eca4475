package export

import (
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// cef writes ArcSight's Common Event Format, version 0, one event a line.
// Payloads are left out; the line names the record that has them.
type cef struct {
	w       io.Writer
	version string
	b       []byte
}

var (
	cefHeader = strings.NewReplacer(`\`, `\\`, `|`, `\|`, "\n", " ", "\r", " ")
	cefValue  = strings.NewReplacer(`\`, `\\`, `=`, `\=`, "\n", `\n`, "\r", `\r`)
)

// header appends a part of the header and its bar.
func (c *cef) header(s string) {
	c.b = append(c.b, cefHeader.Replace(oneLine(clip(s), true))...)
	c.b = append(c.b, '|')
}

// pair appends a key with its value, unless that is empty.
func (c *cef) pair(key, value string) {
	if value == "" {
		return
	}
	if c.b[len(c.b)-1] != '|' {
		c.b = append(c.b, ' ')
	}
	c.b = append(append(c.b, key...), '=')
	c.b = append(c.b, cefValue.Replace(oneLine(clip(value), true))...)
}

// labelled appends one of CEF's custom fields with the label that says what it
// is.
func (c *cef) labelled(key, label, value string) {
	if value != "" {
		c.pair(key+"Label", label)
		c.pair(key, value)
	}
}

func (c *cef) Write(r *Row) error {
	c.b = append(c.b[:0], "CEF:0|"...)
	c.header("mcp-audit")
	c.header("mcp-audit")
	c.header(c.version)
	c.header(r.operation())
	name := r.operation()
	if target := r.target(); target != "" {
		name += " " + target
	}
	if outcome := r.outcome(); outcome != "" {
		name += " " + outcome
	}
	c.header(name)
	c.header(strconv.Itoa(cefSeverity(r)))

	c.pair("rt", millis(r.end()))
	c.pair("start", millis(r.start()))
	c.pair("end", millis(r.end()))
	c.pair("externalId", r.text("id"))
	c.pair("cat", r.Kind)
	c.pair("suser", r.inner("principal", "subject"))
	c.pair("sourceServiceName", r.text("client_id"))
	c.pair("destinationServiceName", r.text("server_id"))
	c.pair("app", r.text("transport"))
	c.pair("act", r.inner("policy", "decision"))
	c.pair("outcome", r.outcome())
	c.pair("reason", r.reason())
	c.labelled("cn1", "seq", strconv.FormatUint(r.Seq(), 10))
	if ms, ok := r.number("duration_ms"); ok {
		c.labelled("cn2", "durationMs", strconv.FormatUint(ms, 10))
	}
	if r.Intent != nil {
		c.labelled("cn3", "intentSeq", strconv.FormatUint(r.Intent.Line.Seal.Seq, 10))
	}
	c.labelled("cs1", "recordHash", r.Leaf())
	c.labelled("cs2", "target", r.target())
	c.labelled("cs3", "operationId", r.text("audit_operation_id"))
	c.labelled("cs4", "ruleId", r.inner("policy", "rule_id"))
	c.labelled("cs5", "logOrigin", r.Origin)
	if r.Intent != nil {
		c.labelled("cs6", "intentHash", r.Intent.Line.Seal.Leaf.String())
	}
	c.pair("msg", r.summary())
	c.b = append(c.b, '\n')
	_, err := c.w.Write(c.b)
	return err
}

// millis is a time in milliseconds since 1970.
func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// cefSeverity is 0 (least) to 10.
func cefSeverity(r *Row) int {
	switch severityOf(r) {
	case high:
		return 8
	case medium:
		return 6
	case low:
		return 4
	}
	return 2
}

// severity of a row, in the words of OCSF.
type severity int

const (
	informational severity = iota + 1
	low
	medium
	high
)

func severityOf(r *Row) severity {
	if r.own() {
		switch r.Kind {
		case "gap", "chain_break", "disk_full", "io_error":
			return high
		case "recovered", "erasure":
			return medium
		}
		return informational
	}
	switch auditlog.Result(r.text("outcome")) {
	case auditlog.Denied, auditlog.RateLimited, auditlog.MalformedResponse, auditlog.InternalError, auditlog.Unknown:
		return medium
	case auditlog.ToolError, auditlog.RPCError, auditlog.UpstreamError, auditlog.Timeout, auditlog.ClientDisconnect, auditlog.Cancelled:
		return low
	}
	return informational
}
