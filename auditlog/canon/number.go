package canon

import (
	"bytes"
	"math"
	"strconv"
)

// numberLen returns the length of the JSON number at the start of b, 0 if
// there is none. simple says that its token is its own canonical form: an
// integer or a plain fraction of at most 15 digits that is not zero with a sign.
func numberLen(b []byte) (n int, simple bool) {
	if n < len(b) && b[n] == '-' {
		n++
	}
	digits := n
	switch {
	case n < len(b) && b[n] == '0':
		n++
	case n < len(b) && b[n] >= '1' && b[n] <= '9':
		for n < len(b) && isDigit(b[n]) {
			n++
		}
	default:
		return 0, false
	}
	whole := n - digits
	simple = whole <= maxExact && !(b[0] == '-' && b[1] == '0')
	if n < len(b) && b[n] == '.' {
		start := n + 1
		for n = start; n < len(b) && isDigit(b[n]); n++ {
		}
		if n == start {
			return 0, false
		}
		simple = plainFraction(b[digits:digits+whole], b[start:n])
	}
	if n < len(b) && (b[n] == 'e' || b[n] == 'E') {
		simple = false
		n++
		if n < len(b) && (b[n] == '+' || b[n] == '-') {
			n++
		}
		start := n
		for n < len(b) && isDigit(b[n]) {
			n++
		}
		if n == start {
			return 0, false
		}
	}
	return n, simple
}

// maxExact is how many significant digits every double tells apart: a decimal
// with no more of them is the shortest text of its double.
const maxExact = 15

// plainFraction reports whether a number without an exponent is its own
// canonical form: few enough digits, no trailing zero, and not so small that
// the form has an exponent.
func plainFraction(whole, fraction []byte) bool {
	if len(whole)+len(fraction) > maxExact || fraction[len(fraction)-1] == '0' {
		return false
	}
	return whole[0] != '0' || len(fraction) < 6 || string(fraction[:6]) != "000000"
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// maxDigits is how many significant digits the JCS text of a double has at
// most; a token with more is never exact.
const maxDigits = 17

// maxExponent is beyond the power of ten of the last significant digit of any
// double.
const maxExponent = 400

// appendNumber appends the JCS text of a number token. exact is false, and dst
// unchanged, if that text is another decimal value or the value a negative zero.
func appendNumber(dst, token []byte) (out []byte, exact bool) {
	var buf, same [maxDigits]byte
	neg, digits, exp, ok := decimal(buf[:0], token)
	switch {
	case !ok:
		return dst, false
	case len(digits) == 0:
		if neg {
			return dst, false
		}
		return append(dst, '0'), true
	}
	// The number in its shortest spelling: zeros may pad a token to any length.
	var text [32]byte
	short := text[:0]
	if neg {
		short = append(short, '-')
	}
	short = append(append(short, digits...), 'e')
	short = strconv.AppendInt(short, exp, 10)
	f, err := strconv.ParseFloat(string(short), 64)
	if err != nil {
		return dst, false
	}
	start := len(dst)
	dst = appendDouble(dst, f)
	_, sameDigits, sameExp, ok := decimal(same[:0], dst[start:])
	if !ok || exp != sameExp || !bytes.Equal(digits, sameDigits) {
		return dst[:start], false
	}
	return dst, true
}

// appendDouble appends a finite double as ECMAScript's Number::toString does
// (RFC 8785 section 3.2.2.3).
func appendDouble(dst []byte, f float64) []byte {
	if f == 0 {
		return append(dst, '0')
	}
	var buf [32]byte
	// d.ddde±xx, the shortest digits that round-trip
	text := strconv.AppendFloat(buf[:0], f, 'e', -1, 64)
	if text[0] == '-' {
		dst = append(dst, '-')
		text = text[1:]
	}
	e := bytes.IndexByte(text, 'e')
	exp, _ := strconv.Atoi(string(text[e+1:]))
	var digitBuf [24]byte
	digits := append(digitBuf[:0], text[0])
	if e > 2 {
		digits = append(digits, text[2:e]...)
	}
	k, n := len(digits), exp+1
	switch {
	case k <= n && n <= 21:
		dst = append(dst, digits...)
		for range n - k {
			dst = append(dst, '0')
		}
	case 0 < n && n <= 21:
		dst = append(dst, digits[:n]...)
		dst = append(dst, '.')
		dst = append(dst, digits[n:]...)
	case -6 < n && n <= 0:
		dst = append(dst, '0', '.')
		for range -n {
			dst = append(dst, '0')
		}
		dst = append(dst, digits...)
	default:
		dst = append(dst, digits[0])
		if k > 1 {
			dst = append(dst, '.')
			dst = append(dst, digits[1:]...)
		}
		dst = append(dst, 'e')
		if n-1 >= 0 {
			dst = append(dst, '+')
		}
		dst = strconv.AppendInt(dst, int64(n-1), 10)
	}
	return dst
}

// decimal splits a number token into its significant digits, without leading
// and trailing zeros, and the power of ten of the last of them; zero has no
// digits. ok is false if there are more than maxDigits or the power is beyond
// that of any double.
func decimal(digits, token []byte) (neg bool, _ []byte, exp int64, ok bool) {
	if token[0] == '-' {
		neg, token = true, token[1:]
	}
	if e := bytes.IndexAny(token, "eE"); e >= 0 {
		// An exponent too long for an int64 becomes the largest, which no
		// token is long enough to make up for.
		exp, _ = strconv.ParseInt(string(token[e+1:]), 10, 64)
		token = token[:e]
	}
	zeros := 0      // since the last other digit
	fraction := 0   // digits behind the point
	behind := false // the point
	for _, b := range token {
		switch {
		case b == '.':
			behind = true
			continue
		case b == '0':
			if len(digits) > 0 {
				zeros++
			}
		case len(digits)+zeros >= maxDigits:
			return neg, nil, 0, false
		default:
			for ; zeros > 0; zeros-- {
				digits = append(digits, '0')
			}
			digits = append(digits, b)
		}
		if behind {
			fraction++
		}
	}
	if len(digits) == 0 {
		return neg, digits, 0, true
	}
	if exp > math.MaxInt64/2 || exp < math.MinInt64/2 {
		return neg, nil, 0, false
	}
	exp += int64(zeros) - int64(fraction)
	return neg, digits, exp, exp >= -maxExponent && exp <= maxExponent
}
