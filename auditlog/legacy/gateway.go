package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// The kinds of record of mcp-audit-gateway.
const (
	callRecord  = "call"
	checkpoint  = "checkpoint"
	chainBreak  = "chain_break"
	toolDrift   = "tool_drift"
	firstOfAll  = "genesis"
	attestation = "attestation"
)

// signedOrder lists, by kind, the members that the attestation covers, in the
// order of the signed form. A call has further ones that stand only if they
// are there: see signedForm.
var signedOrder = map[string][]string{
	callRecord: {"id", "timestamp", "method", "toolName", "namespace", "upstream", "principal", "durationMs", "success", "errorCode", "previousHash"},
	checkpoint: {"id", "type", "timestamp", "sequence", "recordCount", "previousHash"},
	chainBreak: {"id", "type", "timestamp", "reason", "priorHead", "priorSequence", "priorRecordCount"},
	toolDrift:  {"id", "type", "timestamp", "toolName", "namespace", "previousDefinitionDigest", "newDefinitionDigest", "detectedAtRecord", "previousHash"},
}

// optionalSigned are members of a call that are signed if they are there.
var optionalSigned = []string{"decisionContextDigest", "extensionsDigest", "aiInvocation", "parties"}

// chainRecord is one record of mcp-audit-gateway.
type chainRecord struct {
	object
	kind            string
	shadow, unknown []string
	lossy           []byte
}

func parseChainRecord(line []byte) (*chainRecord, error) {
	o, v := parseObject(line)
	if v != canon.None {
		return nil, &gateError{v}
	}
	r := &chainRecord{object: o, kind: callRecord}
	if t := o.get("type"); t != nil {
		kind, ok := o.text("type")
		if _, known := signedOrder[kind]; !ok || !known || kind == callRecord {
			return nil, fmt.Errorf("its type %.40q is not known", t)
		}
		r.kind = kind
	}
	for _, name := range []string{"id", "timestamp", "previousHash", attestation, "priorHead", "reason"} {
		if _, ok := o.text(name); !ok {
			return nil, fmt.Errorf("its %s is not a string", name)
		}
	}
	if !o.has("id") || !o.has("timestamp") || r.kind == callRecord && !o.has("method") {
		return nil, errors.New("it has no id, timestamp or method")
	}
	known := append(slices.Clone(signedOrder[r.kind]), attestation, "args")
	if r.kind == callRecord {
		known = append(known, optionalSigned...)
	} else if r.kind == checkpoint {
		known = append(known, "parties")
	}
	r.shadow, r.unknown = oddNames(o, known)
	if r.kind != callRecord && slices.ContainsFunc(o, func(f field) bool { return f.name == "args" }) {
		r.unknown = append(r.unknown, "args")
	}
	for _, f := range o {
		if f.name == "args" {
			continue
		}
		if gate(f.value) == canon.DupKey {
			r.shadow = append(r.shadow, f.name+": a name inside of it")
		}
		if token := lossyNumber(f.value); token != nil && r.lossy == nil {
			r.lossy = token
		}
	}
	return r, nil
}

func (r *chainRecord) str(name string) string {
	text, _ := r.text(name)
	return text
}

// number is a member that is an integer within ±(2^53-1).
func (r *chainRecord) number(name string) (int64, bool) { return safeInteger(r.get(name)) }

// signedForm is the text that the attestation is made over: an array of
// [name, value] pairs. An absent member stands as null.
func (r *chainRecord) signedForm() ([]byte, error) {
	b := []byte{'['}
	var err error
	pair := func(name string, value []byte, tagged bool) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, `["`...), name...), `",`...)
		if value == nil {
			value = []byte("null")
		}
		var e error
		if b, e = appendScript(b, value, tagged); e != nil && err == nil {
			err = e
		}
		b = append(b, ']')
	}
	for _, name := range signedOrder[r.kind] {
		if name == "previousHash" && r.kind == callRecord && r.has("decisionContextDigest") {
			pair("decisionContextDigest", r.get("decisionContextDigest"), false)
		}
		pair(name, r.get(name), false)
	}
	if r.kind == callRecord && r.has("extensionsDigest") {
		pair("extensionsDigest", r.get("extensionsDigest"), false)
	}
	if r.kind == callRecord && r.has("aiInvocation") {
		pair("aiInvocation", r.get("aiInvocation"), true)
	}
	if (r.kind == callRecord || r.kind == checkpoint) && r.has("parties") {
		pair("parties", r.get("parties"), false)
	}
	return append(b, ']'), err
}

// appendScript appends a value as JavaScript writes it: no spaces, shortest
// escapes, numbers as doubles, members in their order. tagged puts type tags
// on objects and arrays and sorts members, as the format does for nested data.
// The value must have passed the gate.
func appendScript(dst, value []byte, tagged bool) ([]byte, error) {
	switch value[0] {
	case '"':
		text, ok := canon.Unquote(nil, value)
		if !ok {
			return dst, errors.New("a string is not strict JSON")
		}
		return canon.AppendString(dst, string(text)), nil
	case '{':
		return appendScriptObject(dst, value, tagged)
	case '[':
		return appendScriptArray(dst, value, tagged)
	case 't', 'f', 'n':
		return append(dst, value...), nil
	}
	if tagged {
		if _, ok := safeInteger(value); !ok {
			return dst, fmt.Errorf("the number %.40s is not one that the format can sign", value)
		}
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return dst, fmt.Errorf("the number %.40s is beyond the range of doubles", value)
	}
	text, err := jsoncanonicalizer.NumberToJSON(f)
	return append(dst, text...), err
}

func appendScriptObject(dst, value []byte, tagged bool) ([]byte, error) {
	o, v := parseObject(value)
	if v != canon.None {
		return dst, &gateError{v}
	}
	open, pairOpen, sep, pairEnd, end := "{", "", ":", "", "}"
	if tagged {
		open, pairOpen, sep, pairEnd, end = `["M",[`, "[", ",", "]", "]]"
		slices.SortFunc(o, func(a, b field) int { return canon.CompareNames([]byte(a.name), []byte(b.name)) })
	}
	dst = append(dst, open...)
	for i, f := range o {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(canon.AppendString(append(dst, pairOpen...), f.name), sep...)
		var err error
		if dst, err = appendScript(dst, f.value, tagged); err != nil {
			return dst, err
		}
		dst = append(dst, pairEnd...)
	}
	return append(dst, end...), nil
}

func appendScriptArray(dst, value []byte, tagged bool) ([]byte, error) {
	open, end := "[", "]"
	if tagged {
		open, end = `["L",[`, "]]"
	}
	dst = append(dst, open...)
	rest := bytes.TrimSpace(value[1 : len(value)-1])
	for first := true; len(rest) > 0; first = false {
		if !first {
			dst = append(dst, ',')
		}
		n, v := valueEnd(rest, 0)
		if v != canon.None || n == 0 {
			return dst, &gateError{canon.Grammar}
		}
		var err error
		if dst, err = appendScript(dst, rest[:n], tagged); err != nil {
			return dst, err
		}
		next := skipSpace(rest, n)
		if next < len(rest) {
			next = skipSpace(rest, next+1) // behind the comma
		}
		rest = rest[next:]
	}
	return append(dst, end...), nil
}
