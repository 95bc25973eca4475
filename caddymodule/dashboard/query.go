package dashboard

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/index"
)

const (
	defaultLimit = 100
	mostLimit    = 500
	maxParameter = 4096 // bytes
)

// wanted is what a query asks for.
type wanted struct {
	filter   index.Filter
	walk     index.Walk
	text     string
	payloads bool
	target   string // how records name it
}

// parseEntries reads the parameters of a list of entries. One that does not
// exist, or has no sense, is an error: a filter that is passed over would show
// what was not asked for.
func parseEntries(values url.Values) (w wanted, err error) {
	w.filter.Limit = defaultLimit
	var shown []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		for _, v := range values[name] {
			if len(v) > maxParameter {
				return w, badRequest("%s is longer than %d bytes", name, maxParameter)
			}
			if v == "" {
				continue
			}
			if err := w.take(name, v); err != nil {
				return w, err
			}
			switch name {
			case "limit", "before", "after", "payloads":
			case "text":
				// It may be what the log keeps from its readers.
				shown = append(shown, "text=…")
			default:
				shown = append(shown, name+"="+v)
			}
		}
	}
	f := &w.filter
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return w, badRequest("from is not before to")
	}
	w.target = strings.Join(append([]string{"entries"}, shown...), " ")
	return w, nil
}

func (w *wanted) take(name, v string) (err error) {
	f := &w.filter
	switch name {
	case "method":
		f.Methods = append(f.Methods, v)
	case "tool_name", "tool":
		f.Tools = append(f.Tools, v)
	case "client_id":
		f.Clients = append(f.Clients, v)
	case "server_id":
		f.Servers = append(f.Servers, v)
	case "principal":
		f.Principals = append(f.Principals, v)
	case "outcome":
		if !slices.Contains(outcomes, auditlog.Result(v)) && !strings.Contains(v, "*") {
			return badRequest("there is no outcome %q", v)
		}
		f.Outcomes = append(f.Outcomes, v)
	case "decision":
		if v != "allow" && v != "deny" {
			return badRequest("decision is allow or deny, not %q", v)
		}
		f.Decisions = append(f.Decisions, v)
	case "from":
		f.Since, err = moment(name, v)
	case "to":
		f.Until, err = moment(name, v)
	case "limit":
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > mostLimit {
			return badRequest("limit is a number from 1 to %d, not %q", mostLimit, v)
		}
		f.Limit = n
	case "text":
		w.text = v
	case "own":
		f.Own, err = flag(name, v)
	case "payloads":
		w.payloads, err = flag(name, v)
	case "before":
		w.walk.Before, err = mark(name, v)
	case "after":
		w.walk.After, err = mark(name, v)
	default:
		return badRequest("there is no parameter %q", name)
	}
	return err
}

var outcomes = []auditlog.Result{
	auditlog.Success, auditlog.ToolError, auditlog.RPCError, auditlog.InputRequired, auditlog.Denied, auditlog.RateLimited,
	auditlog.UpstreamError, auditlog.Timeout, auditlog.ClientDisconnect, auditlog.Cancelled, auditlog.MalformedResponse,
	auditlog.InternalError, auditlog.Unknown,
}

func moment(name, v string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, v)
	if err != nil {
		return at, badRequest("%s is no time of RFC 3339, such as 2026-12-01T08:30:00Z", name)
	}
	// What lies beyond is no time of a record, and has no nanoseconds.
	if y := at.Year(); y < 1970 || y > 2261 {
		return at, badRequest("%s is out of range", name)
	}
	return at.UTC(), nil
}

func flag(name, v string) (bool, error) {
	switch v {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, badRequest("%s is 1 or 0, not %q", name, v)
}

func mark(name, v string) (index.Mark, error) {
	m, err := index.ParseMark(v)
	if err != nil {
		return m, badRequest("%s: %v", name, err)
	}
	return m, nil
}
