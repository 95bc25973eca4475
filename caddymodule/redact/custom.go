package redact

import (
	"fmt"
	"regexp"
)

// Pattern is a kind of value of the operator's own.
type Pattern struct {
	// Name is what stands in the placeholder: [a-z][a-z0-9_]{0,31}.
	Name string
	// Expr is a regular expression (RE2, whose cost is linear). If it has a
	// group, the first one is the value.
	Expr string
}

type customPattern struct {
	name string
	re   *regexp.Regexp
}

var patternName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

func compilePatterns(list []Pattern) (out []customPattern, err error) {
	seen := make(map[string]bool)
	for _, p := range list {
		switch {
		case !patternName.MatchString(p.Name):
			return nil, fmt.Errorf("the pattern's name %q is not 1 to 32 of a-z, 0-9 and _, beginning with a letter", p.Name)
		case seen[p.Name]:
			return nil, fmt.Errorf("the pattern %s is given twice", p.Name)
		}
		seen[p.Name] = true
		re, err := regexp.Compile(p.Expr)
		if err != nil {
			return nil, fmt.Errorf("pattern %s: %w", p.Name, err)
		}
		if re.MatchString("") {
			return nil, fmt.Errorf("pattern %s matches the empty text, so that it would match everywhere; make it longer", p.Name)
		}
		out = append(out, customPattern{p.Name, re})
	}
	return out, nil
}

// find appends what the pattern matches.
func (c *customPattern) find(dst []span, text []byte) []span {
	for _, at := range c.re.FindAllSubmatchIndex(text, -1) {
		start, end := at[0], at[1]
		if len(at) > 2 && at[2] >= 0 {
			start, end = at[2], at[3]
		}
		if s := (span{start, end, c.name, 0}); end > start && !alreadyRedacted(text, s) {
			dst = append(dst, s)
		}
	}
	return dst
}
