package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// shimReportHeader is, on a GET from a shim, the wish that what the shim has to
// tell of its child is recorded: how it was started, and what it wrote beside
// its messages. The report itself is the answer to that GET, and so comes from
// where the shim's capability leads, not from whoever asks.
const shimReportHeader = "Mcp-Shim-Report"

// maxShimReport bounds a report in bytes.
const maxShimReport = 256 << 10

// isShimReport reports whether the request is such a wish. Of anyone but a shim
// it is a header like others, which goes no further.
func (x *exchange) isShimReport() bool {
	if x.r.Header.Get(shimReportHeader) == "" {
		return false
	}
	takeCapability(x.r)
	shim := x.h.Transport == "stdio" || caddyhttp.GetVar(x.r.Context(), capabilityVar) != nil
	if shim && x.r.Method == http.MethodGet {
		return true
	}
	x.r.Header.Del(shimReportHeader)
	return false
}

// recordShimReport asks the shim and records its answer, an event for each line.
// The question is admitted and recorded like every GET before it goes on: a
// capability that nobody has checked yet must not be a way around the record.
func (x *exchange) recordShimReport(next caddyhttp.Handler) error {
	x.prepareRequest()
	answer := &shimReport{header: make(http.Header)}
	if err := next.ServeHTTP(answer, x.r); err != nil {
		return err
	}
	if answer.status != http.StatusOK || answer.header.Get(shimReportHeader) == "" || answer.cut {
		return caddyhttp.Error(http.StatusBadGateway, fmt.Errorf("there is no shim behind this route that has anything to report"))
	}
	for line := range bytes.Lines(answer.body.Bytes()) {
		event, err := x.shimEvent(bytes.TrimSpace(line))
		if err == nil {
			err = x.event(x.r.Context(), event)
		}
		if err != nil {
			return caddyhttp.Error(http.StatusServiceUnavailable, fmt.Errorf("recording what a shim reports: %w", err))
		}
	}
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// shimEvent is the event of one report, redacted.
func (x *exchange) shimEvent(line []byte) (event auditlog.Event, err error) {
	base := x.message(nil)
	var kind struct {
		Report string `json:"report"`
	}
	if err := json.Unmarshal(line, &kind); err != nil {
		return event, err
	}
	base.Reason = kind.Report
	switch kind.Report {
	case "launch":
		line, err = x.redactLaunch(line)
	case "stdout", "stderr":
		base.Direction = auditlog.ServerToClient
		line, err = x.redactOutput(line)
	default:
		err = fmt.Errorf("there is no report %.20q", kind.Report)
	}
	return auditlog.Event{Message: base, Params: auditlog.Payload{Received: line}}, err
}

// redactLaunch takes secrets out of a command line: what looks like one, the
// value of a flag with a secret's name, and the argument behind such a flag.
func (x *exchange) redactLaunch(line []byte) ([]byte, error) {
	var report map[string]json.RawMessage
	if err := json.Unmarshal(line, &report); err != nil {
		return nil, err
	}
	var arguments []string
	if err := json.Unmarshal(report["arguments"], &arguments); err != nil {
		return nil, err
	}
	secret := false // the argument before named one
	for i, a := range arguments {
		flag, value, assigned := strings.Cut(a, "=")
		named := strings.HasPrefix(a, "-") && x.h.redact.MatchKey(strings.TrimLeft(flag, "-"))
		switch {
		case secret && !strings.HasPrefix(a, "-"):
			arguments[i] = "[REDACTED]"
		case assigned && value != "" && (named || x.h.redact.MatchKey(flag)):
			arguments[i] = flag + "=[REDACTED]"
		case assigned && isObject(value):
			arguments[i] = x.h.redact.Text(flag) + "=" + x.redactLine(value)
		default:
			arguments[i] = x.redactLine(a)
		}
		secret = named && !assigned
	}
	delete(report, "report")
	var err error
	if report["arguments"], err = json.Marshal(arguments); err != nil {
		return nil, err
	}
	if client := report["client"]; client != nil {
		p := x.payload("", client, refusalCapture)
		switch {
		case p.Withheld != "":
			delete(report, "client")
		case p.Redacted != nil:
			report["client"] = p.Redacted
		}
	}
	return json.Marshal(report)
}

func (x *exchange) redactOutput(line []byte) ([]byte, error) {
	var report struct {
		Lines   []string `json:"lines"`
		Dropped int      `json:"dropped,omitempty"`
	}
	if err := json.Unmarshal(line, &report); err != nil {
		return nil, err
	}
	for i, l := range report.Lines {
		report.Lines[i] = x.redactLine(l)
	}
	return json.Marshal(report)
}

// redactLine redacts a line of output: as JSON if it is a log line in JSON, else
// as text.
func (x *exchange) redactLine(line string) string {
	if isObject(line) {
		if p := x.payload("", []byte(line), 0); p.Withheld != "" {
			return "[REDACTED]"
		} else if p.Redacted != nil {
			return string(p.Redacted)
		}
		return line
	}
	return x.h.redact.Text(line)
}

// isObject reports whether a text is a JSON object.
func isObject(text string) bool {
	return strings.HasPrefix(strings.TrimSpace(text), "{") && json.Valid([]byte(text))
}

// shimReport holds the answer of a shim.
type shimReport struct {
	header http.Header
	status int
	body   bytes.Buffer
	cut    bool
}

// Header implements http.ResponseWriter.
func (s *shimReport) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *shimReport) WriteHeader(status int) {
	if s.status == 0 && status >= 200 {
		s.status = status
	}
}

// Write implements http.ResponseWriter.
func (s *shimReport) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.body.Len()+len(p) > maxShimReport {
		s.cut = true
		return 0, fmt.Errorf("a report of a shim is longer than %d bytes", maxShimReport)
	}
	return s.body.Write(p)
}
