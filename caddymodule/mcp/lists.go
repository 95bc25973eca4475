package mcp

import (
	"errors"
	"strings"
)

// listMembers are the lists of results, with the method that a listed entry
// stands for and the member that names it.
var listMembers = map[string]struct{ method, name string }{
	"tools":             {"tools/call", "name"},
	"prompts":           {"prompts/get", "name"},
	"resources":         {"resources/read", "uri"},
	"resourceTemplates": {"resources/read", "uriTemplate"},
}

// ListEntry is one entry of a list that a server gives out.
type ListEntry struct {
	List   string // the member that holds it: tools, prompts, resources or resourceTemplates
	Method string // the method that it stands for
	Name   string // its name or URI
	Text   []byte // the entry as it stands
}

// ErrList is returned by FilterList for a list whose entries cannot be told
// apart: it must not go on.
var ErrList = errors.New("the list cannot be read, so that no entry of it can be taken out")

// IsList reports whether a method's result is a list.
func IsList(method string) bool {
	switch method {
	case "tools/list", "prompts/list", "resources/list", "resources/templates/list":
		return true
	}
	return false
}

// FilterList calls keep for each entry of the lists in a result, data[result],
// and calls cut with the ranges of data that hold what was not kept: without
// them, and their commas, the rest stands as it was. What is no entry with one
// name that every parser reads alike is not kept, without asking. It reports
// whether anything was left out.
func FilterList(data []byte, result Span, keep func(*ListEntry) bool, cut func(Span)) (changed bool, err error) {
	object := result.Of(data)
	eachMember(object, func(member, value []byte) {
		list, known := listMembers[string(member)]
		if !known {
			for name := range listMembers {
				if strings.EqualFold(name, string(member)) {
					err = ErrList
				}
			}
			return
		}
		if first := firstByte(value); first != '[' {
			err = ErrList
			return
		}
		entry := ListEntry{List: string(member), Method: list.method}
		base := cap(data)
		kept := -1 // the end of the last entry that was kept
		from := -1 // of the run of entries that go
		eachElement(value, func(element []byte) {
			start := base - cap(element)
			end := start + len(element)
			entry.Text = element
			if name, ok := entryName(element, list.name); ok {
				if entry.Name = name; keep(&entry) {
					if from >= 0 {
						cut(Span{from, start})
						changed, from = true, -1
					}
					kept = end
					return
				}
			}
			if from < 0 {
				from = start
			}
		})
		if from >= 0 {
			if kept >= 0 {
				from = kept // the comma before them goes, too
			}
			last := from
			eachElement(value, func(element []byte) { last = base - cap(element) + len(element) })
			cut(Span{from, last})
			changed = true
		}
	})
	return changed, err
}

func firstByte(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

// entryName is the name of an entry, if it has one that is told once, in one
// spelling.
func entryName(element []byte, member string) (name string, ok bool) {
	if firstByte(element) != '{' {
		return "", false
	}
	n := 0
	eachMember(element, func(key, value []byte) {
		if !strings.EqualFold(string(key), member) {
			return
		}
		if n++; string(key) == member && firstByte(value) == '"' {
			name, ok = Text(value), true
		}
	})
	return name, ok && n == 1
}

// CacheScope is where the cacheScope of a result stands, if it has one.
func CacheScope(data []byte, result Span) (at Span) {
	eachMember(result.Of(data), func(name, value []byte) {
		if string(name) == "cacheScope" {
			start := cap(data) - cap(value)
			at = Span{start, start + len(value)}
		}
	})
	return at
}
