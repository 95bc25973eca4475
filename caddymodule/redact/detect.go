package redact

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// kind is a set of kinds of values that are found by how they look.
type kind uint32

const (
	awsKey kind = 1 << iota
	vendorToken
	jwt
	privateKey
	bearer
	basicAuth
	assignment
	urlCredentials
	card
	iban
	ssn
	email
	phone

	secrets = awsKey | vendorToken | jwt | privateKey | bearer | basicAuth | assignment | urlCredentials
	payment = card | iban
	pii     = payment | ssn | email | phone
)

// kinds are the words of Config.Detect: groups, and the kinds in them.
var kinds = map[string]kind{
	"secrets": secrets, "payment": payment, "pii": pii,
	"aws": awsKey, "tokens": vendorToken, "jwt": jwt, "private_key": privateKey, "bearer": bearer,
	"basic_auth": basicAuth, "assignments": assignment, "url": urlCredentials,
	"card": card, "iban": iban, "ssn": ssn, "email": email, "phone": phone,
}

// DefaultDetect returns the words of a profile that names none: values that are
// secrets whatever they are called, and numbers with a check. What names people
// without being a secret has to be asked for.
func DefaultDetect() []string { return []string{"secrets", "payment"} }

// DetectWords returns the words that Config.Detect takes, in order.
func DetectWords() []string {
	words := []string{"none"}
	for w := range kinds {
		words = append(words, w)
	}
	slices.Sort(words)
	return words
}

// parseDetect reads Config.Detect.
func parseDetect(words []string) (set kind, err error) {
	if words == nil {
		words = DefaultDetect()
	}
	for _, w := range words {
		name, remove := strings.CutPrefix(w, "-")
		k, known := kinds[name]
		switch {
		case w == "none" && len(words) == 1:
			return 0, nil
		case !known:
			return 0, fmt.Errorf("there is nothing %q to detect; did you mean %s? There are %s", w, nearest(name, DetectWords()), strings.Join(DetectWords(), ", "))
		case remove:
			set &^= k
		default:
			set |= k
		}
	}
	return set, nil
}

// nearest is the word that takes the fewest changes to become w.
func nearest(w string, words []string) string {
	best, least := "", len(w)+64
	for _, candidate := range words {
		if d := distance(w, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// distance is that of Levenshtein.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// span is a found value in a text, and what it is.
type span struct {
	start, end int
	kind       string
	cost       int // bytes that were read to find it, or not
}

// Reading ahead may cost so many times the length of a text, and a little more.
// What costs more is made to: the rest of such a text goes as a whole.
const (
	aheadFactor = 16
	aheadSlack  = 64 << 10
)

// What a byte of a text is to the search.
const (
	wordByte uint8 = 1 << iota // part of a word: letter, digit or _
	digitByte
	markByte // may stand in the middle of a value, or before it
)

var byteClass = func() (t [256]uint8) {
	for c := range 256 {
		b := byte(c)
		switch {
		case isDigit(b):
			t[c] = wordByte | digitByte
		case isLetter(b) || b == '_' || b >= 0x80:
			t[c] = wordByte
		case strings.IndexByte("@:=-+(", b) >= 0:
			t[c] = markByte
		}
	}
	return t
}()

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

func isWord(b byte) bool { return byteClass[b]&wordByte != 0 }

// detect appends to dst the values in a decoded text that look like one of the
// profile's kinds, in order and without overlap. Its cost is linear: each search
// begins where the text has a mark or a word begins, and passes over what it has
// read, or reads a bounded stretch.
func (p *Profile) detect(dst []span, text []byte) []span {
	set := p.detects
	from := len(dst)
	if set != 0 {
		dst = p.scan(dst, text, set)
	}
	for i := range p.custom {
		dst = p.custom[i].find(dst, text)
	}
	if len(p.custom) > 0 && len(dst)-from > 1 {
		dst = arrange(dst, from)
	}
	return dst
}

// arrange puts spans in order and drops those that overlap an earlier one.
func arrange(list []span, from int) []span {
	part := list[from:]
	slices.SortStableFunc(part, func(a, b span) int { return a.start - b.start })
	kept := list[:from]
	end := -1
	for _, s := range part {
		if s.start >= end {
			kept, end = append(kept, s), s.end
		}
	}
	return kept
}

func (p *Profile) scan(dst []span, text []byte, set kind) []span {
	done := 0 // the end of what was found last
	budget := aheadFactor*len(text) + aheadSlack
	add := func(s span, ok bool) bool {
		budget -= s.cost
		if !ok || s.start < done || alreadyRedacted(text, s) {
			return false
		}
		dst = append(dst, s)
		done = s.end
		return true
	}
	for i := proseRun(text); i < len(text); {
		// Something that may be part of a value stands at i: read on from where
		// its word begins, byte by byte, up to the next space behind it.
		if budget < 0 {
			return append(dst, span{start: max(i, done), end: len(text), kind: "costly"})
		}
		from := max(wordStart(text, i), done)
		for from < len(text) && (from <= i || text[from] != ' ') && budget >= 0 {
			c := byteClass[text[from]]
			switch {
			case c == 0:
				from++
				continue
			case c&wordByte != 0:
				if add(p.atWord(text, from, set)) {
					from = done
					continue
				}
				for from++; from < len(text) && byteClass[text[from]]&wordByte != 0; from++ {
				}
				continue
			}
			if add(p.atMark(text, from, set)) {
				from = done
				continue
			}
			from++
		}
		i = from
		if i < len(text) && budget >= 0 {
			i += proseRun(text[i:])
		}
	}
	return dst
}

// longestBefore bounds how far the beginning of a value lies before the first
// of its characters that is no prose.
const longestBefore = 64

// wordStart is where the word around i begins, with the name of a scheme before
// it, as in "bearer x1".
func wordStart(text []byte, i int) int {
	start := i
	for start > 0 && i-start < longestBefore && (alnumDot(text[start-1]) || text[start-1] >= 0x80) {
		start--
	}
	for _, scheme := range [...]string{"bearer ", "basic "} {
		if n := len(scheme); start >= n && string(text[start-n:start]) == scheme {
			return start - n
		}
	}
	return start
}

// proseRun returns how many bytes at the start of b are lower case letters,
// spaces, full stops, commas, or beyond ASCII, eight at a time: no value that is
// looked for is made of these alone.
func proseRun(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		low := w &^ highs
		prose := w | // beyond ASCII
			((low|highs)-ones*'a')&^(low+ones*(0x7f-'z')) |
			zeros(low^ones*' ') | zeros(low^ones*'.') | zeros(low^ones*',')
		if prose &= highs; prose != highs {
			return i + bits.TrailingZeros64(^prose&highs)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; (c < 'a' || c > 'z') && c != ' ' && c != '.' && c != ',' && c < 0x80 {
			break
		}
	}
	return i
}

// zeros sets the high bit of each byte of w that is 0; those of w are below 0x80.
func zeros(w uint64) uint64 {
	const sevens, highs = 0x7f7f7f7f7f7f7f7f, 0x8080808080808080
	return ^(w + sevens) & highs
}

// alreadyRedacted reports whether a value stands in the place of one.
func alreadyRedacted(text []byte, s span) bool {
	const begin = "[REDACTED"
	return s.end-s.start >= len(begin) && string(text[s.start:s.start+len(begin)]) == begin
}

// atWord looks for a value that begins with the word at i.
func (p *Profile) atWord(text []byte, i int, set kind) (span, bool) {
	c := text[i]
	if isDigit(c) {
		if set&(card|ssn|phone) != 0 {
			return atDigit(text, i, set)
		}
		return span{}, false
	}
	if i+4 > len(text) {
		return span{}, false
	}
	if set&(vendorToken|awsKey|jwt|bearer|basicAuth) != 0 && prefixHeads[c][text[i+1]>>5]&(1<<(text[i+1]&31)) != 0 {
		s, ok := atPrefix(text, i, set)
		if ok || s.cost > 0 {
			return s, ok
		}
	}
	if set&iban != 0 && c >= 'A' && c <= 'Z' && isDigit(text[i+2]) && isDigit(text[i+3]) {
		return atIBAN(text, i)
	}
	return span{}, false
}

// atMark looks for a value around the mark at i.
func (p *Profile) atMark(text []byte, i int, set kind) (span, bool) {
	switch c := text[i]; {
	case c == '@' && set&email != 0:
		return atEmail(text, i)
	case c == ':' && set&urlCredentials != 0 && i+2 < len(text) && text[i+1] == '/' && text[i+2] == '/':
		return p.atURL(text, i)
	case (c == '=' || c == ':') && set&assignment != 0:
		return p.atAssignment(text, i)
	case c == '-' && set&privateKey != 0:
		return atPEM(text, i)
	case (c == '+' || c == '(') && set&phone != 0:
		return atPhone(text, i)
	}
	return span{}, false
}
