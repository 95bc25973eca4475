package redact

import "bytes"

// atDigit looks for a card number, a social security number or a telephone
// number that begins with the digit at i.
func atDigit(text []byte, i int, set kind) (span, bool) {
	if i > 0 && (text[i-1] == '.' || text[i-1] == '-' || text[i-1] == '/' || text[i-1] == ':' || text[i-1] == ',') {
		// Part of a version, a date, a UUID, a path or a number.
		return span{}, false
	}
	if set&card != 0 {
		if s, ok := atCard(text, i); ok {
			return s, true
		}
	}
	if set&ssn != 0 {
		if s, ok := atSSN(text, i); ok {
			return s, true
		}
	}
	if set&phone != 0 {
		return atPhone(text, i)
	}
	return span{}, false
}

// atCard finds a payment card number: 13 to 19 digits, perhaps in groups of
// which each has two or more, with an issuer's beginning and length, and the
// check of Luhn.
func atCard(text []byte, i int) (span, bool) {
	var digits [20]byte
	n, end, separator, group := 0, i, byte(0), 0
	for ; end < len(text); end++ {
		c := text[end]
		if isDigit(c) {
			if n == 19 {
				return span{}, false
			}
			digits[n] = c - '0'
			n++
			group++
			continue
		}
		if (c != ' ' && c != '-') || separator != 0 && c != separator || end+1 >= len(text) || !isDigit(text[end+1]) || group < 2 {
			break
		}
		separator, group = c, 0
	}
	if end < len(text) && (isLetter(text[end]) || text[end] == '_' || text[end] == '.' && end+1 < len(text) && isDigit(text[end+1])) {
		return span{}, false
	}
	if !issued(digits[:n]) || !luhn(digits[:n]) || separator != 0 && !grouped(text[i:end], separator) {
		return span{}, false
	}
	return span{i, end, "card", 0}, true
}

// grouped reports whether a card number is divided as they are printed: groups
// of four, or 4-6-5 and 4-6-4.
func grouped(text []byte, separator byte) bool {
	parts := bytes.Split(text, []byte{separator})
	if len(parts) == 3 && len(parts[0]) == 4 && len(parts[1]) == 6 && (len(parts[2]) == 5 || len(parts[2]) == 4) {
		return true
	}
	for _, p := range parts[:len(parts)-1] {
		if len(p) != 4 {
			return false
		}
	}
	return len(parts[len(parts)-1]) <= 4
}

// issued reports whether digits begin, and are as many, as those of a card.
func issued(d []byte) bool {
	n := len(d)
	if n < 13 {
		return false
	}
	two := int(d[0])*10 + int(d[1])
	four := two*100 + int(d[2])*10 + int(d[3])
	switch {
	case d[0] == 4:
		return n == 13 || n == 16 || n == 19
	case two >= 51 && two <= 55, four >= 2221 && four <= 2720:
		return n == 16
	case two == 34, two == 37:
		return n == 15
	case four == 6011, two == 65, four >= 6440 && four <= 6499:
		return n == 16 || n == 19
	case four >= 3528 && four <= 3589:
		return n >= 16
	case two == 36, two == 38, two == 39, four >= 3000 && four <= 3059:
		return n >= 14
	case two == 62:
		return n >= 16
	case two == 50, two >= 56 && two <= 58, two == 63, two == 67:
		return n >= 16
	}
	return false
}

func luhn(d []byte) bool {
	sum := 0
	for i := range d {
		v := int(d[len(d)-1-i])
		if i%2 == 1 {
			if v *= 2; v > 9 {
				v -= 9
			}
		}
		sum += v
	}
	return sum%10 == 0
}

// ibanLengths are those of the registry, by country.
var ibanLengths = map[string]int{
	"AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28, "CH": 21,
	"CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18, "FO": 18, "FR": 27,
	"GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IQ": 23, "IS": 26,
	"IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "LY": 25, "MC": 27,
	"MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18, "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25,
	"QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24, "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23,
	"TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24, "XK": 20,
}

// atIBAN finds an account number, perhaps in groups of four, with the remainder
// of 1 by 97 that ISO 13616 asks for.
func atIBAN(text []byte, i int) (span, bool) {
	want := ibanLengths[string(text[i:i+2])]
	if want == 0 {
		return span{}, false
	}
	var chars [34]byte
	n, end := 0, i
	for ; end < len(text) && n < want; end++ {
		c := text[end]
		switch {
		case upperAlnum(c):
			chars[n] = c
			n++
		case c == ' ' && n%4 == 0 && n > 0:
		default:
			return span{}, false
		}
	}
	if n < want || end < len(text) && (alnum(text[end]) || text[end] == '_') {
		return span{}, false
	}
	remainder := 0
	for _, c := range append(append([]byte(nil), chars[4:n]...), chars[:4]...) {
		if isDigit(c) {
			remainder = (remainder*10 + int(c-'0')) % 97
		} else {
			remainder = (remainder*100 + int(c-'A') + 10) % 97
		}
	}
	if remainder != 1 {
		return span{}, false
	}
	return span{i, end, "iban", 0}, true
}

// atSSN finds a US social security number in its usual form, but for numbers
// that are never given out.
func atSSN(text []byte, i int) (span, bool) {
	const form = "ddd-dd-dddd"
	if len(text)-i < len(form) || len(text)-i > len(form) && (isWord(text[i+len(form)]) || text[i+len(form)] == '-') {
		return span{}, false
	}
	s := text[i : i+len(form)]
	for k := range form {
		if form[k] == 'd' != isDigit(s[k]) || form[k] == '-' && s[k] != '-' {
			return span{}, false
		}
	}
	area := string(s[:3])
	if area == "000" || area == "666" || s[0] == '9' || string(s[4:6]) == "00" || string(s[7:]) == "0000" {
		return span{}, false
	}
	return span{i, i + len(form), "ssn", 0}, true
}

// atPhone finds a telephone number: + and 8 to 15 digits (E.164), perhaps in
// groups, or a North American one in one of its usual forms.
func atPhone(text []byte, i int) (span, bool) {
	if text[i] == '+' {
		n, end, last := 0, i+1, i
		for ; end < len(text) && n <= 15; end++ {
			c := text[end]
			if isDigit(c) {
				n++
				last = end
				continue
			}
			if n == 0 || end-last > 2 || c != ' ' && c != '-' && c != '.' && c != '(' && c != ')' {
				break
			}
		}
		if n < 8 || n > 15 || i > 0 && isWord(text[i-1]) || last+1 < len(text) && isWord(text[last+1]) || text[i+1] == '0' {
			return span{}, false
		}
		return span{i, last + 1, "phone", 0}, true
	}
	for _, form := range []string{"(ddd) ddd-dddd", "(ddd)ddd-dddd", "ddd-ddd-dddd", "ddd.ddd.dddd"} {
		if len(text)-i < len(form) || len(text)-i > len(form) && (isWord(text[i+len(form)]) || text[i+len(form)] == '-' || text[i+len(form)] == '.' && len(text)-i > len(form)+1 && isDigit(text[i+len(form)+1])) {
			continue
		}
		fits := true
		for k := range form {
			c := text[i+k]
			fits = fits && (form[k] == 'd' && isDigit(c) || form[k] != 'd' && form[k] == c)
		}
		area := i
		if form[0] == '(' {
			area++
		}
		if fits && text[area] >= '2' {
			return span{i, i + len(form), "phone", 0}, true
		}
	}
	return span{}, false
}

// atEmail finds the address around the @ at i.
func atEmail(text []byte, i int) (span, bool) {
	start := i
	for start > 0 && i-start < 64 && (alnumDot(text[start-1]) || text[start-1] == '+' || text[start-1] == '%') {
		start--
	}
	for start < i && (text[start] == '.' || text[start] == '-') {
		start++
	}
	end, dot := i+1, 0
	for ; end < len(text) && end-i < 255 && (alnum(text[end]) || text[end] == '-' || text[end] == '.'); end++ {
		if text[end] == '.' {
			dot = end
		}
	}
	for end > i+1 && (text[end-1] == '.' || text[end-1] == '-') {
		end--
		if dot >= end {
			dot = bytes.LastIndexByte(text[i+1:end], '.') + i + 1
		}
	}
	// git@host names an account, not a person.
	if start == i || text[i-1] == '.' || dot <= i+1 || end-dot < 3 || string(text[start:i]) == "git" {
		return span{}, false
	}
	for _, c := range text[dot+1 : end] {
		if !isLetter(c) {
			return span{}, false
		}
	}
	return span{start, end, "email", 0}, true
}
