package legacy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// entryMembers are the members of a P4ST4S entry, in its order.
var entryMembers = []string{
	"id", "timestamp", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id",
	"mcp_name", "tool_name", "params", "result", "error", "duration_ms", "client_id", "server_id",
	"principal", "policy", "signature", "integrity",
}

// textMembers are those of them that are strings.
var textMembers = []string{
	"id", "timestamp", "audit_operation_id", "outcome", "direction", "transport", "method", "request_id",
	"mcp_name", "tool_name", "client_id", "server_id", "signature",
}

var (
	errorMembers     = []string{"code", "message", "data"}
	principalMembers = []string{"subject", "client_id", "issuer"}
	policyMembers    = []string{"decision", "rule_id"}
	integrityMembers = []string{"version", "algorithm", "key_id", "signature"}
)

// entry is an entry of P4ST4S/mcp-audit. Byte slices are JSON texts; nil is an
// absent member.
type entry struct {
	text      map[string]string // by name, of textMembers
	time      time.Time
	params    []byte
	result    []byte
	rpcError  *rpcError
	duration  []byte // number token
	principal []string
	policy    []string
	integrity *integrity

	shadow, unknown []string
	lossy           string // the first number that is not kept, and where
	repeats         string // the payload in which a name is repeated
}

type rpcError struct {
	code    []byte // number token
	message string
	data    []byte
}

type integrity struct {
	version, algorithm, keyID, signature string
}

// parseEntry reads an entry from its JSON text. The error says what is not as
// the format has it; then nothing about the entry was judged.
func parseEntry(line []byte) (*entry, error) {
	o, v := parseObject(line)
	if v != canon.None {
		return nil, &gateError{v}
	}
	return newEntry(o)
}

// gateError says which rule of strict JSON a text breaks.
type gateError struct{ why canon.Violation }

func (e *gateError) Error() string {
	switch e.why {
	case canon.Depth:
		return fmt.Sprintf("it nests deeper than %d levels", canon.MaxDepth)
	case canon.Keys:
		return fmt.Sprintf("an object has more than %d members", canon.MaxKeys)
	}
	return "it is no strict JSON object (" + string(e.why) + ")"
}

// newEntry reads an entry from its members.
func newEntry(o object) (*entry, error) {
	e := &entry{text: make(map[string]string, len(textMembers))}
	e.shadow, e.unknown = oddNames(o, entryMembers)
	for _, name := range textMembers {
		text, ok := o.text(name)
		if !ok {
			return nil, fmt.Errorf("its %s is not a string", name)
		}
		e.text[name] = text
	}
	var err error
	if e.time, err = time.Parse(time.RFC3339Nano, e.text["timestamp"]); err != nil {
		return nil, fmt.Errorf("its timestamp %.40q is not RFC 3339", e.text["timestamp"])
	}
	e.params, e.result = o.get("params"), o.get("result")
	if e.duration = o.get("duration_ms"); e.duration == nil || string(e.duration) == "null" {
		e.duration = []byte("0")
	}
	if _, err := strconv.ParseInt(string(e.duration), 10, 64); err != nil || canon.NumberLen(e.duration) != len(e.duration) {
		return nil, fmt.Errorf("its duration_ms %.40q is not an integer", e.duration)
	}
	if err := e.readObjects(o); err != nil {
		return nil, err
	}
	e.inspectPayloads()
	return e, nil
}

// readObjects reads the members that are objects.
func (e *entry) readObjects(o object) (err error) {
	if e.principal, err = e.texts(o, "principal", principalMembers); err != nil {
		return err
	}
	if e.policy, err = e.texts(o, "policy", policyMembers); err != nil {
		return err
	}
	if o.has("integrity") {
		inner, err := e.inner(o, "integrity", integrityMembers)
		if err != nil {
			return err
		}
		i := integrity{version: string(inner.get("version"))}
		for name, into := range map[string]*string{"algorithm": &i.algorithm, "key_id": &i.keyID, "signature": &i.signature} {
			var ok bool
			if *into, ok = inner.text(name); !ok {
				return fmt.Errorf("its integrity.%s is not a string", name)
			}
		}
		e.integrity = &i
	}
	if o.has("error") {
		inner, err := e.inner(o, "error", errorMembers)
		if err != nil {
			return err
		}
		r := rpcError{code: inner.get("code"), data: inner.get("data")}
		if r.code == nil || string(r.code) == "null" {
			r.code = []byte("0")
		}
		if _, err := strconv.ParseInt(string(r.code), 10, 64); err != nil || canon.NumberLen(r.code) != len(r.code) {
			return fmt.Errorf("its error.code %.40q is not an integer", r.code)
		}
		var ok bool
		if r.message, ok = inner.text("message"); !ok {
			return fmt.Errorf("its error.message is not a string")
		}
		e.rpcError = &r
	}
	return nil
}

// inner takes a member that is an object apart and notes its odd names.
func (e *entry) inner(o object, name string, known []string) (object, error) {
	inner, v := parseObject(o.get(name))
	if v != canon.None {
		return nil, fmt.Errorf("its %s is not an object", name)
	}
	shadow, unknown := oddNames(inner, known)
	for _, n := range shadow {
		e.shadow = append(e.shadow, name+"."+n)
	}
	for _, n := range unknown {
		e.unknown = append(e.unknown, name+"."+n)
	}
	return inner, nil
}

// texts reads an object of strings, in the order of its known members; nil if
// it is absent.
func (e *entry) texts(o object, name string, known []string) ([]string, error) {
	if !o.has(name) {
		return nil, nil
	}
	inner, err := e.inner(o, name, known)
	if err != nil {
		return nil, err
	}
	values := make([]string, len(known))
	for i, member := range known {
		var ok bool
		if values[i], ok = inner.text(member); !ok {
			return nil, fmt.Errorf("its %s.%s is not a string", name, member)
		}
	}
	return values, nil
}

// inspectPayloads notes what readers of JSON do not keep.
func (e *entry) inspectPayloads() {
	type value struct {
		name string
		json []byte
	}
	values := []value{{"params", e.params}, {"result", e.result}, {"duration_ms", e.duration}}
	if e.rpcError != nil {
		values = append(values, value{"error.data", e.rpcError.data}, value{"error.code", e.rpcError.code})
	}
	for _, v := range values {
		if v.json == nil {
			continue
		}
		if token := lossyNumber(v.json); token != nil && e.lossy == "" {
			e.lossy = fmt.Sprintf("%.40s in %s", token, v.name)
		}
		if gate(v.json) == canon.DupKey && e.repeats == "" {
			e.repeats = v.name
		}
	}
}

// stamp is the timestamp in the one form that is signed.
func (e *entry) stamp() string { return e.time.UTC().Format(time.RFC3339Nano) }

// list joins names for a message.
func list(names []string) string {
	const most = 5
	quoted := make([]string, 0, most)
	for i, n := range names {
		if i == most {
			return strings.Join(quoted, ", ") + ", …"
		}
		quoted = append(quoted, fmt.Sprintf("%.40q", n))
	}
	return strings.Join(quoted, ", ")
}
