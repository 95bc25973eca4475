package mcp

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// name is a decoded member name: in the body, or in the arena if it had
// escapes.
type name struct {
	head       uint64 // its length, at most 255, and its first seven bytes
	start, end int
	arena      bool
}

const (
	headBytes = 7
	headMask  = 1<<(8*headBytes) - 1
)

// headOf returns the head of a name.
func headOf(text []byte) uint64 {
	var word [8]byte
	copy(word[:headBytes], text)
	return binary.LittleEndian.Uint64(word[:]) | uint64(min(len(text), 255))<<(8*headBytes)
}

// name scans a member name. Only one with escapes is copied.
func (s *scanner) name() (name, *ScanError) {
	n, escaped, v := canon.ScanString(s.b[s.i:])
	if v != canon.None {
		return name{}, parseError(string(v))
	}
	token := Span{s.i, s.i + n}
	s.i += n
	if !escaped {
		text := Span{token.Start + 1, token.End - 1}
		return name{head: headOf(text.Of(s.b)), start: text.Start, end: text.End}, nil
	}
	start := len(s.arena)
	s.arena, _ = canon.Unquote(s.arena, token.Of(s.b))
	return name{head: headOf(s.arena[start:]), start: start, end: len(s.arena), arena: true}, nil
}

func (s *scanner) text(n name) []byte {
	if n.arena {
		return s.arena[n.start:n.end]
	}
	return s.b[n.start:n.end]
}

// fewNames is up to where comparing each with each is faster than sorting.
const fewNames = 12

// repeated reports whether two names of an object are equal when decoded. It
// may reorder them.
func (s *scanner) repeated(names []name) bool {
	if len(names) <= fewNames {
		for i := 1; i < len(names); i++ {
			for j := range i {
				if names[i].head == names[j].head && s.same(names[i], names[j]) {
					return true
				}
			}
		}
		return false
	}
	slices.SortFunc(names, func(a, b name) int {
		if c := cmp.Compare(a.head, b.head); c != 0 {
			return c
		}
		return bytes.Compare(s.text(a), s.text(b))
	})
	for i := 1; i < len(names); i++ {
		if names[i-1].head == names[i].head && s.same(names[i-1], names[i]) {
			return true
		}
	}
	return false
}

// same compares names of one head.
func (s *scanner) same(a, b name) bool { return bytes.Equal(s.text(a), s.text(b)) }
