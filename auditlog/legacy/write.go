package legacy

import "github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"

// writer appends the members of an object in the order they are given.
type writer struct {
	b     []byte
	inner bool // the last byte is "{": no comma
}

func (w *writer) name(name string) {
	switch {
	case len(w.b) == 0:
		w.b = append(w.b, '{')
	case !w.inner:
		w.b = append(w.b, ',')
	}
	w.inner = false
	w.b = append(w.b, '"')
	w.b = append(w.b, name...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) text(name, value string) {
	w.name(name)
	w.b = canon.AppendString(w.b, value)
}

// optional leaves the member out if it is empty.
func (w *writer) optional(name, value string) {
	if value != "" {
		w.text(name, value)
	}
}

// json leaves the member out if value is nil.
func (w *writer) json(name string, value []byte) {
	if value != nil {
		w.name(name)
		w.b = append(w.b, value...)
	}
}

func (w *writer) open(name string) {
	w.name(name)
	w.b = append(w.b, '{')
	w.inner = true
}

func (w *writer) close() {
	w.b = append(w.b, '}')
	w.inner = false
}

// identity writes principal and policy, if the entry has them.
func (w *writer) identity(e *entry) {
	if e.principal != nil {
		w.open("principal")
		for i, name := range principalMembers {
			w.text(name, e.principal[i])
		}
		w.close()
	}
	if e.policy != nil {
		w.open("policy")
		w.text("decision", e.policy[0])
		w.optional("rule_id", e.policy[1])
		w.close()
	}
}
