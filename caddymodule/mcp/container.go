package mcp

import (
	"encoding/binary"
	"math/bits"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

// level is an open container below a value that decides nothing.
type level struct {
	object       bool
	names, arena int // how many were open before it
}

// container passes over an object or array in which no name decides anything:
// most of a message's bytes. It does not recurse and keeps its position in a
// register, which makes it twice as fast as a walk by methods.
func (s *scanner) container() *ScanError {
	var open [MaxDepth + 1]level
	b, i, top := s.b, s.i, 0

value:
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if i >= len(b) {
		return parseError("grammar")
	}
	if c := b[i]; c == '{' || c == '[' {
		if top++; s.depth+top > MaxDepth {
			return parseError("depth")
		}
		open[top] = level{object: c == '{', names: len(s.names), arena: len(s.arena)}
		for i++; i < len(b) && isSpace(b[i]); i++ {
		}
		switch {
		case i < len(b) && b[i] == c+2: // the bracket that closes it
			goto next
		case c == '{':
			goto name
		}
		goto value
	}
	if n := shortString(b[i:]); n > 0 {
		i += n
	} else {
		n, v := scalar(b[i:])
		if v != canon.None {
			return parseError(string(v))
		}
		i += n
	}

next:
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if i >= len(b) {
		return parseError("grammar")
	}
	switch c := b[i]; {
	case c == ',':
		i++
		if open[top].object {
			goto name
		}
		goto value
	case c == '}' && open[top].object:
		if s.repeated(s.names[open[top].names:]) {
			return invalidError("dup_key")
		}
		s.names, s.arena = s.names[:open[top].names], s.arena[:open[top].arena]
	case c == ']' && !open[top].object:
	default:
		return parseError("grammar")
	}
	i++
	if top--; top > 0 {
		goto next
	}
	s.i = i
	return nil

name:
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if n := shortString(b[i:]); n > 0 {
		s.names = append(s.names, name{head: shortHead(b[i:], n), start: i + 1, end: i + n - 1})
		i += n
	} else {
		s.i = i
		n, err := s.name()
		if err != nil {
			return err
		}
		s.names = append(s.names, n)
		i = s.i
	}
	if len(s.names)-open[top].names > MaxKeys {
		return parseError("keys")
	}
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if i >= len(b) || b[i] != ':' {
		return parseError("grammar")
	}
	i++
	goto value
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// shortString returns the length of the string token that b starts with if it
// is of at most seven plain characters, as most names are, else 0.
func shortString(b []byte) int {
	if len(b) < 9 || b[0] != '"' {
		return 0
	}
	w := binary.LittleEndian.Uint64(b[1:])
	quote, slash := w^ones*'"', w^ones*'\\'
	// See textRun; here a byte of more than ASCII is special too.
	special := (w | (w - ones*0x20) | (quote - ones) | (slash - ones)) & highs
	if k := bits.TrailingZeros64(special) >> 3; k < 8 && b[1+k] == '"' {
		return k + 2
	}
	return 0
}

// shortHead is headOf for what shortString found to be n bytes long.
func shortHead(b []byte, n int) uint64 {
	k := n - 2
	return binary.LittleEndian.Uint64(b[1:])&(1<<(8*k)-1) | uint64(k)<<(8*headBytes)
}

// scalar returns the length of the string, number or literal b starts with.
func scalar(b []byte) (n int, v canon.Violation) {
	if len(b) == 0 {
		return 0, canon.Grammar
	}
	word := ""
	switch b[0] {
	case '"':
		n, _, v = canon.ScanString(b)
		return n, v
	case 't':
		word = "true"
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	default:
		if n = canon.NumberLen(b); n == 0 {
			v = canon.Grammar
		}
		return n, v
	}
	if len(b) < len(word) || string(b[:len(word)]) != word {
		return 0, canon.Grammar
	}
	return len(word), canon.None
}
