package index

import (
	"strings"
	"time"
)

// Filter says which entries are wanted. All conditions that are set must hold;
// of a list, one value. A "*" in a value stands for any characters. Members
// longer than 1024 bytes are compared by their first 1024.
type Filter struct {
	Since, Until time.Time // of the entry's closing record: Since ≤ time < Until
	Tools        []string
	Methods      []string
	Clients      []string
	Servers      []string
	Principals   []string // their subjects
	Outcomes     []string
	Decisions    []string
	// Own adds the log's own records, such as starts, gaps and checkpoints.
	Own bool
	// Newest turns the order around; Limit (0: none) bounds the entries.
	Newest bool
	Limit  int
}

// where makes the condition of a query on the records of one segment, r.
func (f *Filter) where() (condition string, values []any) {
	var b strings.Builder
	// An entry is a closed operation, an event, or an operation that is open.
	b.WriteString(`(r.kind IN ('outcome','event') OR r.kind='intent' AND NOT EXISTS(SELECT 1 FROM records o WHERE o.op=r.op AND o.kind='outcome')`)
	if f.Own {
		b.WriteString(` OR r.kind NOT IN ('intent','outcome','event')`)
	}
	b.WriteString(`)`)
	if !f.Since.IsZero() {
		b.WriteString(` AND r.at>=?`)
		values = append(values, f.Since.UnixNano())
	}
	if !f.Until.IsZero() {
		b.WriteString(` AND r.at<?`)
		values = append(values, f.Until.UnixNano())
	}
	for _, list := range []struct {
		column string
		values []string
	}{
		{"tool", f.Tools}, {"method", f.Methods}, {"client", f.Clients}, {"server", f.Servers},
		{"principal", f.Principals}, {"outcome", f.Outcomes}, {"decision", f.Decisions},
	} {
		if len(list.values) == 0 {
			continue
		}
		b.WriteString(` AND (`)
		for i, v := range list.values {
			if i > 0 {
				b.WriteString(` OR `)
			}
			b.WriteString(`r.` + list.column)
			if strings.Contains(v, "*") {
				b.WriteString(` GLOB ?`)
				v = glob.Replace(v)
			} else {
				b.WriteString(`=?`)
				if len(v) > maxText {
					v = v[:maxText]
				}
			}
			values = append(values, v)
		}
		b.WriteString(`)`)
	}
	return b.String(), values
}

// glob leaves "*" as the only character with a meaning.
var glob = strings.NewReplacer("?", "[?]", "[", "[[]")
