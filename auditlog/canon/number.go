package canon

import (
	"bytes"
	"strconv"
)

// numberLen returns the length of the JSON number at the start of b, 0 if
// there is none. simple says that its token is its own canonical form: an
// integer of at most 15 digits that is not negative zero.
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
	simple = n-digits <= 15 && !(b[0] == '-' && b[1] == '0')
	if n < len(b) && b[n] == '.' {
		simple = false
		start := n + 1
		for n = start; n < len(b) && isDigit(b[n]); n++ {
		}
		if n == start {
			return 0, false
		}
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

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// maxNumber bounds the tokens that are converted; no double has a shorter
// decimal text than its 17 digits, so a longer significant part is never exact,
// but leading and trailing zeros may pad it.
const maxNumber = 400

// appendNumber appends the JCS text of a number token. exact is false, and dst
// unchanged, if that text is another decimal value or the value a negative zero.
func appendNumber(dst, token []byte) (out []byte, exact bool) {
	if len(token) > maxNumber {
		return dst, false
	}
	f, err := strconv.ParseFloat(string(token), 64)
	if err != nil || f == 0 && token[0] == '-' {
		return dst, false
	}
	start := len(dst)
	dst = appendDouble(dst, f)
	if !sameDecimal(token, dst[start:]) {
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

// sameDecimal compares two number tokens as exact decimal values.
func sameDecimal(a, b []byte) bool {
	var bufA, bufB [maxNumber]byte
	negA, digitsA, expA := decimal(bufA[:0], a)
	negB, digitsB, expB := decimal(bufB[:0], b)
	if len(digitsA) == 0 || len(digitsB) == 0 {
		return len(digitsA) == len(digitsB)
	}
	return negA == negB && expA == expB && bytes.Equal(digitsA, digitsB)
}

// decimal splits a number token into its significant digits, without leading
// and trailing zeros, and the power of ten of the last of them.
func decimal(buf, token []byte) (neg bool, digits []byte, exp int64) {
	if token[0] == '-' {
		neg, token = true, token[1:]
	}
	if e := bytes.IndexAny(token, "eE"); e >= 0 {
		// An exponent too long for an int64 cannot belong to a double.
		exp, _ = strconv.ParseInt(string(token[e+1:]), 10, 64)
		token = token[:e]
	}
	digits = buf
	for i, b := range token {
		if b == '.' {
			exp -= int64(len(token) - i - 1)
			continue
		}
		if b != '0' || len(digits) > 0 {
			digits = append(digits, b)
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		exp++
	}
	return neg, digits, exp
}
