package export

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The kinds of rows that are not the log's own records.
const (
	Operation = "operation" // a closed call: intent and outcome
	OpenCall  = "open"      // a call whose outcome is not recorded yet
	Event     = "event"     // one message or fact
)

// Row is one call, one event, or one of the log's own records. Its records
// are not changed by a Writer.
type Row struct {
	Origin string // of the log; seq is unique within one origin
	Kind   string
	// Close is the record that closes the row: the outcome, the event, the
	// intent of a call that is open, or the log's own record.
	Close auditlog.Record
	// Intent is that of a closed call, or nil if the log does not have it.
	Intent *auditlog.Record
	// NoPayloads leaves out params, result, error.data and client_info.
	NoPayloads bool

	found []found // the members, taken apart at the first use
}

// found is a member of one of the row's records.
type found struct {
	name  string
	value []byte
}

// lookup is a member's JSON text, or nil. The closing record's members come
// first.
func (r *Row) lookup(name string) []byte {
	if r.found == nil {
		r.found = make([]found, 0, 64)
		r.take(&r.Close)
		if r.Intent != nil {
			r.take(r.Intent)
		}
	}
	for i := range r.found {
		if r.found[i].name == name {
			return r.found[i].value
		}
	}
	return nil
}

func (r *Row) take(record *auditlog.Record) {
	record.Members(func(name string, value []byte) bool {
		if bytes.HasPrefix(value, []byte(`{"$c":`)) {
			value = record.Member(name) // as disclosed, if it is
		}
		r.found = append(r.found, found{name, value})
		return true
	})
}

// KindOf is the kind of a row that a record of a kind closes.
func KindOf(record string) string {
	switch record {
	case "outcome":
		return Operation
	case "intent":
		return OpenCall
	}
	return record
}

// Seq is the number of the closing record.
func (r *Row) Seq() uint64 { return r.Close.Line.Seal.Seq }

// Leaf is the hash of the closing record, as the log has it.
func (r *Row) Leaf() string { return r.Close.Line.Seal.Leaf.String() }

// own reports whether the row is one of the log's own records.
func (r *Row) own() bool { return r.Kind != Operation && r.Kind != OpenCall && r.Kind != Event }

// member is the JSON text of a member, or nil. What both records have is the
// closing record's.
func (r *Row) member(name string) []byte {
	if r.NoPayloads {
		switch name {
		case "params", "result", "client_info":
			return nil
		}
	}
	value := r.lookup(name)
	if name == "error" && r.NoPayloads && len(value) > 0 && value[0] == '{' {
		value = members(value, true, "code", "message")
	}
	return value
}

// text is a member that is a string, decoded; or "".
func (r *Row) text(name string) string { return decode(r.member(name)) }

// inner is a text member of an object, or "".
func (r *Row) inner(object, name string) string {
	return decode(auditlog.ObjectMember(r.member(object), name))
}

// number is a member that is a whole number from 0 on.
func (r *Row) number(name string) (uint64, bool) {
	n, err := strconv.ParseUint(string(r.member(name)), 10, 64)
	return n, err == nil
}

// end is the time of the closing record, start that of the intent.
func (r *Row) end() time.Time { return r.Close.Time() }

func (r *Row) start() time.Time {
	if r.Intent == nil {
		return r.Close.Time()
	}
	return r.Intent.Time()
}

// what is called: the method, or the kind of one of the log's own records.
func (r *Row) operation() string {
	switch method := r.text("method"); {
	case r.own():
		return r.Kind
	case method == "":
		return Nameless(r.text("reason"))
	default:
		return method
	}
}

// Nameless says what a row without a method is about, by its reason.
func Nameless(reason string) string {
	switch reason {
	case "launch", "stdout", "stderr":
		return "server " + reason
	case "scope_missing", "throttled", "keys_unavailable":
		return "unauthenticated request"
	}
	switch {
	case strings.HasPrefix(reason, "token_"):
		return "unauthenticated request"
	case strings.HasPrefix(reason, "http "):
		return reason
	}
	return "unreadable message"
}

// target is the tool, prompt or resource.
func (r *Row) target() string {
	if tool := r.text("tool_name"); tool != "" {
		return tool
	}
	return r.text("mcp_name")
}

// who is the verified caller, or the name of the client.
func (r *Row) who() string {
	if subject := r.inner("principal", "subject"); subject != "" {
		return subject
	}
	return r.text("client_id")
}

// reason is why a call failed or was refused, as far as the record says.
func (r *Row) reason() string {
	if why := r.text("reason"); why != "" {
		return why
	}
	if why := r.inner("policy", "reason"); why != "" {
		return why
	}
	if e := r.member("error"); len(e) > 0 && e[0] == '"' {
		return decode(e)
	}
	return r.inner("error", "message")
}

// outcome is how a call ended; "open" for one that has not, "" for a message
// without an answer.
func (r *Row) outcome() string {
	if r.Kind == OpenCall {
		return OpenCall
	}
	return r.text("outcome")
}

// summary is a sentence without a full stop.
func (r *Row) summary() string {
	var b bytes.Buffer
	if who := r.who(); who != "" {
		b.WriteString(who + ": ")
	}
	b.WriteString(r.operation())
	if target := r.target(); target != "" {
		b.WriteString(" " + target)
	}
	if outcome := r.outcome(); outcome != "" {
		b.WriteString(": " + outcome)
	}
	if rule := r.inner("policy", "rule_id"); rule != "" {
		b.WriteString(", rule " + rule)
	}
	if why := r.reason(); why != "" {
		b.WriteString(", " + why)
	}
	return b.String()
}

// decode is the text of a JSON string, or "".
func decode(value []byte) string {
	if len(value) == 0 || value[0] != '"' {
		return ""
	}
	text, ok := canon.Unquote(nil, value)
	if !ok {
		return ""
	}
	return string(text)
}

// members is an object with some members first, in the given order, and the
// others behind them, or without these.
func members(object []byte, only bool, first ...string) []byte {
	out := []byte{'{'}
	put := func(name, value []byte) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(append(out, '"'), name...), `":`...), value...)
	}
	for _, name := range first {
		if value := auditlog.ObjectMember(object, name); value != nil {
			put([]byte(name), value)
		}
	}
	ok := auditlog.ObjectMembers(object, func(name, value []byte) bool {
		for _, f := range first {
			if string(name) == f {
				return true
			}
		}
		if !only {
			put(name, value)
		}
		return true
	})
	if !ok {
		return object
	}
	return append(out, '}')
}
