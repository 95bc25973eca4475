package redact

import (
	"unicode"
	"unicode/utf8"
)

// folded is a name as patterns see it: its letters and digits in lower case,
// without separators, and where its words begin. Words are divided by
// separators (anything that is neither letter nor digit), between letters and
// digits, and by camel case: dbPassword, DBPassword, db_password and
// DB-PASSWORD all have the words db and password.
type folded struct {
	text   []byte
	begins []bool // for each byte of text, whether a word begins with it
}

// class is what a character means for the division into words.
type class uint8

const (
	separator class = iota
	lower           // also letters without case
	upper
	digit
)

// foldRune returns the lower case of a character, the ASCII one where it has
// one, and its class.
func foldRune(r rune) (rune, class) {
	const fullWidth, toASCII = 0xFF01, 0xFF01 - '!'
	if r < utf8.RuneSelf {
		switch {
		case r >= 'a' && r <= 'z':
			return r, lower
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A', upper
		case r >= '0' && r <= '9':
			return r, digit
		default:
			return r, separator
		}
	}
	switch {
	case r >= fullWidth && r <= fullWidth+'~'-'!':
		r -= toASCII
	case r == 'ſ':
		// A parser that folds case reads it as s.
		r = 's'
	}
	switch {
	case unicode.IsDigit(r):
		return r, digit
	case unicode.IsUpper(r) || unicode.IsTitle(r):
		return unicode.ToLower(r), upper
	case unicode.IsLetter(r) || unicode.IsMark(r):
		return r, lower
	default:
		return r, separator
	}
}

// foldName folds a pattern.
func foldName(name string) folded { return fold(nil, nil, []byte(name)) }

// fold appends the folded form of name to the two buffers, which are empty.
func fold(text []byte, begins []bool, name []byte) folded {
	var last, before class // of the character before, and of the one before that
	lastAt := 0
	for i := 0; i < len(name); {
		r, n := rune(name[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(name[i:])
		}
		i += n
		r, c := foldRune(r)
		if c != separator {
			if c == lower && last == upper && before == upper && !pluralOfAcronym(r, name[i:]) {
				// The last capital belongs to the new word: DBPassword.
				begins[lastAt] = true
			}
			begin := last == separator || (c == digit) != (last == digit) || c == upper && last == lower
			lastAt = len(text)
			text = utf8.AppendRune(text, r)
			begins = append(begins, begin)
			for len(begins) < len(text) {
				begins = append(begins, false)
			}
		}
		before, last = last, c
	}
	return folded{text, begins}
}

// pluralOfAcronym reports whether r is the s of a name such as apiKEYs, which
// begins no new word.
func pluralOfAcronym(r rune, rest []byte) bool {
	next, _ := utf8.DecodeRune(rest)
	_, c := foldRune(next)
	return r == 's' && (len(rest) == 0 || c != lower)
}

// longestWord bounds how much of a word is looked at beside a match. No word
// of the lists in match.go is longer.
const longestWord = 16

// after returns the text from at to the end of its word, at most longestWord
// bytes of it; nothing if a word begins at at.
func (f folded) after(at int) []byte {
	end := at
	for end < len(f.text) && end-at < longestWord && !f.begins[end] {
		end++
	}
	return f.text[at:end]
}

// previous returns the word, or the part of a word, that ends at at, at most
// its last longestWord bytes. Numbers are passed over.
func (f folded) previous(at int) []byte {
	for at > 0 && isDigit(f.text[at-1]) {
		at--
	}
	start := at
	for start > 0 && at-start < longestWord {
		start--
		if f.begins[start] {
			break
		}
	}
	return f.text[start:at]
}

// last returns the last word that begins at at or behind it, unless it is longer
// than longestWord; nothing if there is none. Numbers are passed over.
func (f folded) last(at int) []byte {
	end := len(f.text)
	for end > at && isDigit(f.text[end-1]) {
		end--
	}
	start := end
	for start > at && end-start < longestWord {
		start--
		if f.begins[start] {
			return f.text[start:end]
		}
	}
	return nil
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }
