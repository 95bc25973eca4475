package sdkdiff

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Same reports whether two JSON texts are the same value: numbers exactly,
// strings by their UTF-16 units, members in their order, -0 apart from 0. A
// text that is not JSON is the same as itself only.
func Same(a, b string) bool {
	if a == b {
		return true
	}
	x, okX := canonical(a)
	y, okY := canonical(b)
	return okX && okY && x == y
}

func canonical(text string) (string, bool) {
	v := &values{in: text}
	v.value()
	v.space()
	return v.out.String(), !v.failed && v.in == ""
}

// values reads JSON by hand, since no decoder keeps lone surrogates, the order
// of members and the digits of numbers at once.
type values struct {
	in     string
	out    strings.Builder
	failed bool
}

func (v *values) space() { v.in = strings.TrimLeft(v.in, " \t\r\n") }

func (v *values) take(token string) bool {
	v.space()
	rest, ok := strings.CutPrefix(v.in, token)
	if ok {
		v.in = rest
		v.out.WriteString(token)
	}
	return ok
}

func (v *values) value() {
	switch {
	case v.failed:
	case v.take("{"):
		v.list("}", func() {
			v.space()
			v.text()
			v.failed = v.failed || !v.take(":")
			v.value()
		})
	case v.take("["):
		v.list("]", v.value)
	case v.take("null"), v.take("true"), v.take("false"):
	case strings.HasPrefix(v.in, `"`):
		v.text()
	default:
		v.number()
	}
}

func (v *values) list(end string, item func()) {
	if v.take(end) {
		return
	}
	for item(); !v.failed && v.take(","); {
		item()
	}
	v.failed = v.failed || !v.take(end)
}

func (v *values) number() {
	n := len(v.in) - len(strings.TrimLeft(v.in, "+-.0123456789eE"))
	digits := v.in[:n]
	v.in = v.in[n:]
	r, ok := new(big.Rat).SetString(digits)
	switch {
	case !ok:
		v.failed = true
	case r.Sign() == 0 && strings.HasPrefix(digits, "-"):
		v.out.WriteString("-0")
	default:
		v.out.WriteString(r.RatString())
	}
}

func (v *values) text() {
	if !strings.HasPrefix(v.in, `"`) {
		v.failed = true
		return
	}
	v.in = v.in[1:]
	v.out.WriteByte('"')
	for v.in != "" && v.in[0] != '"' {
		r, size := utf8.DecodeRuneInString(v.in)
		if r == '\\' && len(v.in) > 1 {
			r, size = rune(v.in[1]), 2
			if short := strings.IndexByte("bfnrt", v.in[1]); short >= 0 {
				r = rune("\b\f\n\r\t"[short])
			}
			if v.in[1] == 'u' && len(v.in) >= 6 {
				unit, err := strconv.ParseUint(v.in[2:6], 16, 16)
				v.failed = v.failed || err != nil
				r, size = rune(unit), 6
			}
		}
		if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
			fmt.Fprintf(&v.out, `\u%04x\u%04x`, high, low)
		} else {
			fmt.Fprintf(&v.out, `\u%04x`, r)
		}
		v.in = v.in[size:]
	}
	if v.in == "" {
		v.failed = true
		return
	}
	v.in = v.in[1:]
	v.out.WriteByte('"')
}
