package pins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Difference is one place where two definitions differ. Old or New is nil where
// there is nothing.
type Difference struct {
	Path string          `json:"path"` // as in description, inputSchema.properties.path.type
	Old  json.RawMessage `json:"old,omitempty"`
	New  json.RawMessage `json:"new,omitempty"`
}

// Diff lists where two definitions differ, in order.
func Diff(old, now json.RawMessage) []Difference {
	var a, b any
	if decode(old, &a) != nil || decode(now, &b) != nil {
		return []Difference{{"", old, now}}
	}
	return appendDiff(nil, "", a, b)
}

func decode(text json.RawMessage, into *any) error {
	if len(text) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

func appendDiff(dst []Difference, path string, a, b any) []Difference {
	if objectA, ok := a.(map[string]any); ok {
		if objectB, ok := b.(map[string]any); ok {
			names := map[string]bool{}
			for n := range objectA {
				names[n] = true
			}
			for n := range objectB {
				names[n] = true
			}
			for _, n := range slices.Sorted(maps.Keys(names)) {
				at := n
				if path != "" {
					at = path + "." + n
				}
				one, inA := objectA[n]
				other, inB := objectB[n]
				switch {
				case !inA:
					dst = append(dst, Difference{at, nil, encode(other)})
				case !inB:
					dst = append(dst, Difference{at, encode(one), nil})
				default:
					dst = appendDiff(dst, at, one, other)
				}
			}
			return dst
		}
	}
	if listA, ok := a.([]any); ok {
		if listB, ok := b.([]any); ok && len(listA) == len(listB) {
			for i := range listA {
				dst = appendDiff(dst, path+"["+strconv.Itoa(i)+"]", listA[i], listB[i])
			}
			return dst
		}
	}
	one, other := encode(a), encode(b)
	if !bytes.Equal(one, other) {
		dst = append(dst, Difference{path, one, other})
	}
	return dst
}

func encode(v any) json.RawMessage {
	if v == nil {
		return json.RawMessage("null")
	}
	text, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage(fmt.Sprintf("%q", err.Error()))
	}
	return text
}
