package redact

import (
	"math"
	"unicode/utf8"
)

// automaton finds out in one pass over a name, without folding it into a
// buffer, which patterns occur in its folded text (Aho and Corasick). Most
// names hold none, and only the others are looked at closely.
type automaton struct {
	classes [256]uint8 // column of a byte of the folded text; other: in no pattern
	width   int
	next    []uint32 // state*width + column -> state
	found   []set    // by state
	// least is the number of characters of the shortest pattern.
	least int
}

// set is a set of patterns by index. The last bit stands for all patterns from
// there on.
type set uint64

const lastOfSet = 63

func (s set) has(pattern int) bool { return s>>min(pattern, lastOfSet)&1 != 0 }

// Columns of the table. skip, for separators, has none.
const (
	other uint8 = 0
	skip  uint8 = 255
)

// maxColumns leaves room for skip. A byte beyond them is treated as other, and
// patterns that hold one end before it.
const maxColumns = 254

func newAutomaton(patterns []pattern) automaton {
	a := automaton{width: 1, least: math.MaxInt}
	for _, p := range patterns {
		a.least = min(a.least, utf8.RuneCount(p.text))
		for _, b := range p.text {
			if a.classes[b] == other && a.width < maxColumns {
				a.classes[b] = uint8(a.width)
				a.width++
			}
		}
	}
	a.grow()
	for i, p := range patterns {
		a.insert(p.text, 1<<min(i, lastOfSet))
	}
	a.link()
	for b := range utf8.RuneSelf {
		r, c := foldRune(rune(b))
		if c == separator {
			a.classes[b] = skip
		} else {
			a.classes[b] = a.classes[byte(r)]
		}
	}
	return a
}

func (a *automaton) grow() uint32 {
	a.next = append(a.next, make([]uint32, a.width)...)
	a.found = append(a.found, 0)
	return uint32(len(a.found) - 1)
}

func (a *automaton) insert(text []byte, as set) {
	state := uint32(0)
	for _, b := range text {
		column := a.classes[b]
		if column == other {
			break
		}
		edge := int(state)*a.width + int(column)
		if a.next[edge] == 0 {
			to := a.grow()
			a.next[edge] = to
		}
		state = a.next[edge]
	}
	a.found[state] |= as
}

// link completes the trie to an automaton, breadth first: where a state has no
// edge, it goes on as its longest proper suffix does.
func (a *automaton) link() {
	suffix := make([]uint32, len(a.found))
	var queue []uint32
	for column := range a.width {
		if to := a.next[column]; to != 0 {
			queue = append(queue, to)
		}
	}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		back := suffix[state]
		a.found[state] |= a.found[back]
		for column := range a.width {
			edge, fallback := int(state)*a.width+column, a.next[int(back)*a.width+column]
			if to := a.next[edge]; to == 0 {
				a.next[edge] = fallback
			} else {
				suffix[to] = fallback
				queue = append(queue, to)
			}
		}
	}
}

// find returns the patterns that occur in the folded text of name. It may
// name one too many, never one too few.
func (a *automaton) find(name []byte) (found set) {
	if len(name) < a.least {
		return 0
	}
	next, patterns, width := a.next, a.found, a.width
	state := uint32(0)
	for i := 0; i < len(name); {
		b := name[i]
		if b < utf8.RuneSelf {
			i++
			if column := a.classes[b]; column != skip {
				state = next[int(state)*width+int(column)]
				found |= patterns[state]
			}
			continue
		}
		r, n := utf8.DecodeRune(name[i:])
		i += n
		r, c := foldRune(r)
		if c == separator {
			continue
		}
		var buf [utf8.UTFMax]byte
		for _, b := range utf8.AppendRune(buf[:0], r) {
			state = next[int(state)*width+int(a.classes[b])]
			found |= patterns[state]
		}
	}
	return found
}
