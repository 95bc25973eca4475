package sdkdiff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf16"
)

// Show says which value an application holds, in ASCII, so that texts that only
// look alike stay apart. tests/npm/sdkdiff.mjs does the same; a map of Go has
// no order and shows its keys sorted.
func Show(value any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return "unprintable: " + err.Error()
	}
	return ascii(strings.TrimSuffix(out.String(), "\n"))
}

func ascii(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
