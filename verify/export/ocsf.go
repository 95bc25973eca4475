package export

import (
	"bytes"
	"io"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// OCSFVersion is the version of the Open Cybersecurity Schema Framework that
// events are written for.
const OCSFVersion = "1.3.0"

// ocsf writes events of the class API Activity (6003), one JSON object a line.
type ocsf struct {
	w       io.Writer
	version string
	b       []byte
}

const (
	ocsfCategory = 6
	ocsfClass    = 6003
)

// What an API call does, in the class's words.
const (
	ocsfRead  = 2
	ocsfOther = 99
)

// ocsfActivity is what a method does.
func ocsfActivity(r *Row) (id int64, name string) {
	switch method := r.operation(); {
	case r.own():
	case strings.HasSuffix(method, "/list"), strings.HasSuffix(method, "/get"), strings.HasSuffix(method, "/read"), strings.HasSuffix(method, "/result"),
		method == "initialize", method == "ping", method == "completion/complete", method == "server/discover":
		return ocsfRead, "Read"
	}
	return ocsfOther, r.operation()
}

// ocsfStatus is how a call ended, in OCSF's words.
func ocsfStatus(r *Row) (id int64, name string) {
	switch outcome := r.outcome(); outcome {
	case string(auditlog.Success), string(auditlog.InputRequired):
		return 1, "Success"
	case "", OpenCall, string(auditlog.Unknown):
		return 0, "Unknown"
	}
	return 2, "Failure"
}

func (w *ocsf) Write(r *Row) error {
	o := newObject(w.b[:0])
	activity, activityName := ocsfActivity(r)
	o.integer("activity_id", activity)
	o.text("activity_name", activityName)
	o.integer("category_uid", ocsfCategory)
	o.text("category_name", "Application Activity")
	o.integer("class_uid", ocsfClass)
	o.text("class_name", "API Activity")
	o.integer("type_uid", ocsfClass*100+activity)
	level := severityOf(r)
	o.integer("severity_id", int64(level))
	o.text("severity", [...]string{informational: "Informational", low: "Low", medium: "Medium", high: "High"}[level])
	o.integer("time", r.end().UnixMilli())
	o.integer("start_time", r.start().UnixMilli())
	o.integer("end_time", r.end().UnixMilli())
	if ms, ok := r.number("duration_ms"); ok {
		o.integer("duration", int64(ms))
	}
	o.text("message", r.summary())
	status, statusName := ocsfStatus(r)
	o.integer("status_id", status)
	o.text("status", statusName)
	o.text("status_code", r.outcome())
	o.text("status_detail", r.reason())
	decision := r.inner("policy", "decision")
	if denied := decision == "deny"; decision != "" {
		o.integer("action_id", map[bool]int64{false: 1, true: 2}[denied])
		o.text("action", map[bool]string{false: "Allowed", true: "Denied"}[denied])
		o.integer("disposition_id", map[bool]int64{false: 1, true: 2}[denied])
		o.text("disposition", map[bool]string{false: "Allowed", true: "Blocked"}[denied])
	}
	w.metadata(&o, r, decision != "")
	ocsfActor(&o, r, decision)
	ocsfAPI(&o, r)
	o.nested("src_endpoint", func(e *object) {
		name := r.text("client_id")
		if name == "" {
			name = "unknown"
		}
		e.text("name", name)
	})
	o.nested("dst_endpoint", func(e *object) { e.text("svc_name", r.text("server_id")) })
	if target := r.target(); target != "" {
		o.list("resources", func(e *object) {
			e.text("name", target)
			e.text("type", resourceType(r))
		})
	}
	o.nested("unmapped", func(e *object) { ocsfRest(e, r) })
	w.b = append(o.end(), '\n')
	_, err := w.w.Write(w.b)
	return err
}

func (w *ocsf) metadata(o *object, r *Row, decided bool) {
	o.nested("metadata", func(m *object) {
		m.text("version", OCSFVersion)
		if decided {
			m.raw("profiles", []byte(`["security_control"]`))
		}
		m.nested("product", func(p *object) {
			p.text("name", "mcp-audit")
			p.text("vendor_name", "mcp-audit")
			p.text("version", w.version)
		})
		m.text("uid", r.text("id"))
		m.text("correlation_uid", r.text("audit_operation_id"))
		m.text("event_code", r.Kind)
		m.text("log_name", r.Origin)
		m.integer("sequence", int64(r.Seq()))
		m.integer("logged_time", r.end().UnixMilli())
	})
}

func ocsfActor(o *object, r *Row, decision string) {
	o.nested("actor", func(a *object) {
		subject := r.inner("principal", "subject")
		if subject != "" {
			a.nested("user", func(u *object) {
				u.text("name", subject)
				u.text("uid", subject)
			})
		}
		if issuer := r.inner("principal", "issuer"); issuer != "" {
			a.nested("idp", func(i *object) { i.text("name", issuer) })
		}
		if session := r.text("session"); session != "" {
			a.nested("session", func(s *object) { s.text("uid", session) })
		}
		app := r.text("client_id")
		if app == "" {
			app = "unknown"
		}
		a.text("app_name", app)
		if decision != "" {
			a.list("authorizations", func(z *object) {
				z.text("decision", decision)
				if rule := r.inner("policy", "rule_id"); rule != "" {
					z.nested("policy", func(p *object) {
						p.text("name", rule)
						p.text("uid", rule)
					})
				}
			})
		}
	})
}

func ocsfAPI(o *object, r *Row) {
	o.nested("api", func(a *object) {
		a.text("operation", r.operation())
		a.nested("service", func(s *object) { s.text("name", r.text("server_id")) })
		a.text("version", r.text("protocol_version"))
		// The schema requires an id of a request.
		id := r.text("request_id")
		if id == "" {
			id = r.text("audit_operation_id")
		}
		if id == "" {
			id = r.text("id")
		}
		a.nested("request", func(q *object) {
			q.text("uid", id)
			q.raw("data", r.member("params"))
		})
		a.nested("response", func(s *object) {
			if code := auditlog.ObjectMember(r.member("error"), "code"); isInteger(code) {
				s.raw("code", code)
			}
			s.text("error_message", r.inner("error", "message"))
			s.raw("data", r.member("result"))
		})
	})
}

// isInteger reports whether a JSON text is an integer of up to 15 digits.
func isInteger(value []byte) bool {
	digits := bytes.TrimPrefix(value, []byte("-"))
	return len(digits) > 0 && len(digits) <= 15 && bytes.Trim(digits, "0123456789") == nil
}

// resourceType is what the target of a call is.
func resourceType(r *Row) string {
	switch method := r.text("method"); {
	case r.text("tool_name") != "":
		return "tool"
	case strings.HasPrefix(method, "prompts/"):
		return "prompt"
	case strings.HasPrefix(method, "resources/"):
		return "resource"
	case strings.HasPrefix(method, "tasks/"):
		return "task"
	}
	return "other"
}

// ocsfRest is what the class has no place for: what names the records, the
// other members, and all of one of the log's own records.
func ocsfRest(o *object, r *Row) {
	o.integer("seq", int64(r.Seq()))
	o.text("leaf", r.Leaf())
	if r.Intent != nil {
		o.integer("intent_seq", int64(r.Intent.Line.Seal.Seq))
		o.text("intent_leaf", r.Intent.Line.Seal.Leaf.String())
	}
	if r.own() {
		r.Close.Members(func(name string, value []byte) bool {
			if name != "seq" && name != "leaf" {
				o.raw(name, value)
			}
			return true
		})
		return
	}
	for _, name := range []string{"direction", "transport", "error", "anomaly", "http_status", "task", "client_info", "counts", "count",
		"request_bytes", "request_sha256", "response_bytes", "response_sha256", "parent_seq", "traceparent"} {
		o.raw(name, r.member(name))
	}
}
