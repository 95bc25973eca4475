package redact

import (
	"fmt"
	"strconv"
	"strings"
)

// step is one part of a JSON path.
type step struct {
	name    string
	index   int  // of an array's element; -1: not one
	any     bool // every member and element
	descend bool // at any depth
	last    bool
}

// paths are the compiled JSON paths, one behind the other; a set of steps that
// may match next is a bit each.
type paths struct {
	steps []step
	roots []int // of each path's first step
}

// maxSteps bounds the steps of all paths together.
const maxSteps = 64

// parsePath adds a path. It begins with $, for a message, and takes .name,
// ['name'], [0], .*, [*] and ..name.
func (p *paths) parse(text string) error {
	fault := func(at int, why string) error {
		return fmt.Errorf("path %q: %s at character %d; write it like $.params.arguments.password, with .name, ['name'], [0], [*] and ..name", text, why, at+1)
	}
	if !strings.HasPrefix(text, "$") {
		return fault(0, "it does not begin with $")
	}
	root := len(p.steps)
	for i := 1; i < len(text); {
		s := step{index: -1}
		switch {
		case text[i] == '[':
			end := strings.IndexByte(text[i:], ']')
			if end < 0 {
				return fault(i, "[ has no ]")
			}
			inner := text[i+1 : i+end]
			switch {
			case inner == "*":
				s.any = true
			case len(inner) > 2 && (inner[0] == '\'' || inner[0] == '"') && inner[len(inner)-1] == inner[0]:
				s.name = inner[1 : len(inner)-1]
			default:
				n, err := strconv.Atoi(inner)
				if err != nil || n < 0 {
					return fault(i, "what is in brackets is no name in quotes, no number and no *")
				}
				s.index = n
			}
			i += end + 1
		case text[i] == '.':
			i++
			if i < len(text) && text[i] == '.' {
				s.descend = true
				i++
			}
			end := i
			for end < len(text) && text[end] != '.' && text[end] != '[' {
				end++
			}
			s.name = text[i:end]
			if s.name == "" {
				return fault(i, "a name is missing")
			}
			if s.name == "*" {
				s.name, s.any = "", true
			}
			i = end
		default:
			return fault(i, "there is neither . nor [")
		}
		p.steps = append(p.steps, s)
	}
	if len(p.steps) == root {
		return fault(1, "it names the whole message")
	}
	if len(p.steps) > maxSteps {
		return fmt.Errorf("path %q: all paths together have more than %d steps", text, maxSteps)
	}
	p.steps[len(p.steps)-1].last = true
	p.roots = append(p.roots, root)
	return nil
}

// begin is the set of steps of a message.
func (p *paths) begin() (set uint64) {
	for _, r := range p.roots {
		set |= 1 << r
	}
	return set
}

// enter is the set of steps in a child with a decoded name, or an index (a name
// then is nil). all reports that the child is what a path names.
func (p *paths) enter(set uint64, name []byte, index int) (next uint64, all bool) {
	for i := 0; set>>i != 0; i++ {
		if set>>i&1 == 0 {
			continue
		}
		s := &p.steps[i]
		if s.descend {
			next |= 1 << i
		}
		matches := s.any || name != nil && s.index < 0 && s.name == string(name) || name == nil && s.index >= 0 && s.index == index
		switch {
		case !matches:
		case s.last:
			all = true
		default:
			next |= 1 << (i + 1)
		}
	}
	return next, all
}
