package legacy

import (
	"slices"
	"strings"
)

// oddNames sorts out the members of an object that a lax reader could take for
// others: shadow is a name that is repeated, or differs from a known one in
// its case only; unknown is any other name that is not known.
func oddNames(o object, known []string) (shadow, unknown []string) {
	for i, f := range o {
		repeated := slices.ContainsFunc(o[:i], func(g field) bool { return g.name == f.name })
		switch {
		case repeated:
			shadow = append(shadow, f.name)
		case slices.Contains(known, f.name):
		case slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, f.name) }):
			shadow = append(shadow, f.name)
		default:
			unknown = append(unknown, f.name)
		}
	}
	return shadow, unknown
}
