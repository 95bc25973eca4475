//go:build !race

package canon_test

// Without the race detector, which makes pools drop what they hold: then every
// call allocates and the count says nothing.

import (
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/canon"
)

func TestSteadyStateAllocatesNothing(t *testing.T) {
	src := sample(1051)
	dst, _ := canon.Append(nil, src)
	jcsForm := append([]byte(nil), dst...)
	padded := []byte("[0.25" + strings.Repeat("0", 100) + ",1e-7]")
	for name, f := range map[string]func(){
		"Append":      func() { dst, _ = canon.Append(dst[:0], src) },
		"Check":       func() { canon.Check(src) },
		"padded":      func() { dst, _ = canon.Append(dst[:0], padded) },
		"IsCanonical": func() { canon.IsCanonical(jcsForm, 72) },
	} {
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
