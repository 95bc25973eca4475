package export

import (
	"strconv"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// object builds the text of a JSON object. Members without a value are left
// out.
type object struct{ b []byte }

func newObject(b []byte) object { return object{append(b, '{')} }

func (o *object) name(name string) {
	if last := o.b[len(o.b)-1]; last != '{' {
		o.b = append(o.b, ',')
	}
	o.b = append(canon.AppendString(o.b, name), ':')
}

// raw adds a value that is JSON text.
func (o *object) raw(name string, value []byte) {
	if len(value) > 0 {
		o.name(name)
		o.b = append(o.b, value...)
	}
}

func (o *object) text(name, value string) {
	if value != "" {
		o.name(name)
		o.b = canon.AppendString(o.b, value)
	}
}

func (o *object) integer(name string, value int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, value, 10)
}

// nested adds an object, unless it stays empty.
func (o *object) nested(name string, fill func(*object)) {
	before := len(o.b)
	o.name(name)
	start := len(o.b)
	inner := newObject(o.b)
	fill(&inner)
	if o.b = append(inner.b, '}'); len(o.b) == start+2 {
		o.b = o.b[:before]
	}
}

// list adds a list of one object, unless that stays empty.
func (o *object) list(name string, fill func(*object)) {
	before := len(o.b)
	o.name(name)
	start := len(o.b)
	inner := newObject(append(o.b, '['))
	fill(&inner)
	if o.b = append(inner.b, "}]"...); len(o.b) == start+4 {
		o.b = o.b[:before]
	}
}

func (o *object) end() []byte { return append(o.b, '}') }
