//go:build !race

package redact_test

// Without the race detector, which makes pools drop what they hold: then every
// call allocates and the count says nothing.

import (
	"strings"
	"testing"
)

func TestNothingIsAllocatedWithoutAMatch(t *testing.T) {
	p := profile(t)
	for name, src := range map[string][]byte{
		"dense": dense(8 << 10), "text": text(8 << 10), "nested": nested(8<<10, false),
		"near misses":    []byte(`{"max_tokens":1,"secretary":2,"tokenizer":[],"\u0061\u0062":3,"größe":4,"inputSchema":{"token":{}}}`),
		"long near miss": []byte(`{"` + strings.Repeat("x", 5000) + `":1}`),
	} {
		if n := testing.AllocsPerRun(100, func() { p.Redact(src) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
