package redact

import "bytes"

// verdict says what becomes of the value of a member. A greater verdict
// overrules a lesser one.
type verdict uint8

const (
	passes            verdict = iota
	secretUnlessCount         // goes, unless it is a number
	secret
)

// minGlued is the length from which a pattern is found inside a longer word
// (dbpassword). A shorter one, such as pin, would be found in every other word.
const minGlued = 5

// longestName is the length up to which a name is taken apart. No real name is
// longer, and a made-up one must not cost more than its length.
const longestName = 1024

// judge gives the verdict on a decoded name. The value of an overlong one goes
// if a pattern occurs in it at all.
func (p *Profile) judge(name []byte) verdict {
	found := p.filter.find(name)
	if found == 0 {
		return passes
	}
	if len(name) > longestName {
		return secret
	}
	var text [128]byte
	var begins [128]bool
	f := fold(text[:0], begins[:0], name)
	if p.exceptions[string(f.text)] {
		return passes
	}
	v := passes
	for i := range p.patterns {
		if !found.has(i) {
			continue
		}
		if v = max(v, p.patterns[i].judge(f)); v == secret {
			break
		}
	}
	return v
}

// judge gives the verdict of one pattern: the severest of its occurrences.
func (p *pattern) judge(f folded) verdict {
	v := passes
	for at := 0; v != secret; at++ {
		n := bytes.Index(f.text[at:], p.text)
		if n < 0 {
			break
		}
		at += n
		v = max(v, p.at(f, at))
	}
	return v
}

// at gives the verdict on the occurrence of the pattern at one place.
//
// It counts if it is made of whole words, also in the plural, or is glued to
// others within a word, unless that makes another English word (secretary,
// tokenizer). A name that ends in a word of measure or policy (token_count,
// cookies_policy) is about such things and holds none.
func (p *pattern) at(f folded, at int) verdict {
	if p.fragment {
		return secret
	}
	end := at + len(p.text)
	rest := f.after(end)
	plural := string(rest) == "s"
	whole := f.begins[at] && (len(rest) == 0 || plural)
	if !whole {
		if len(p.text) < minGlued || !p.sameDivision(f, at) {
			return passes
		}
		if !plural && (derives(rest) || aboutSecrets(rest) || aboutPlural(rest)) {
			return passes
		}
	}
	end += len(rest)
	last := f.last(end)
	switch {
	case aboutSecrets(last):
		return passes
	case !plural:
		return secret
	case isQuantity(f.previous(at)):
		return passes
	case string(p.text) == "token":
		return tokens(f.previous(at), last)
	default:
		return secret
	}
}

// sameDivision reports whether no word begins inside the occurrence where none
// begins in the pattern, so that intoKenya holds no token.
func (p *pattern) sameDivision(f folded, at int) bool {
	for k := 1; k < len(p.text); k++ {
		if f.begins[at+k] && !p.begins[k] {
			return false
		}
	}
	return true
}

// derives reports whether rest, glued to a noun, makes another English word.
func derives(rest []byte) bool {
	switch string(rest) {
	case "e", "ed", "es", "er", "ers", "ing", "ly", "ness":
		return true
	}
	for _, ending := range [...]string{"ary", "aria", "arie", "ion", "isa", "ise", "isi", "ism", "ive", "iz", "less", "ory"} {
		if bytes.HasPrefix(rest, []byte(ending)) {
			return true
		}
	}
	return false
}

// aboutSecrets reports whether a name that ends in this word says something
// about secrets and holds none.
func aboutSecrets(word []byte) bool {
	switch string(word) {
	case "budget", "consent", "count", "counts", "enabled", "length", "limit", "limits",
		"policies", "policy", "remaining", "required", "size", "usage":
		return true
	}
	return false
}

// aboutPlural is aboutSecrets for what follows a plural in the same word:
// tokensused, cookiespolicy.
func aboutPlural(rest []byte) bool {
	word, ok := bytes.CutPrefix(rest, []byte("s"))
	return ok && (aboutSecrets(word) || string(word) == "used")
}

// isQuantity reports whether a plural after this word is a number of things.
func isQuantity(word []byte) bool {
	switch string(word) {
	case "max", "min", "num", "number", "total":
		return true
	}
	return false
}

// tokens gives the verdict on the plural of token, which mostly counts the
// tokens of a language model: max_tokens, completion_tokens, tokens_per_second
// pass. It goes after a word that makes it a credential, as in access_tokens.
// Alone it may be either: a number is a count, anything else goes.
func tokens(previous, last []byte) verdict {
	switch {
	case len(last) > 0:
		return passes
	case len(previous) == 0:
		return secretUnlessCount
	case isCredential(previous):
		return secret
	default:
		return passes
	}
}

// isCredential reports whether a token of this sort is a credential. The
// longer words count at the end of a glued name too.
func isCredential(word []byte) bool {
	switch string(word) {
	case "api", "app", "bot", "id", "jwt":
		return true
	}
	for _, ending := range [...]string{
		"access", "auth", "bearer", "csrf", "deploy", "device", "login", "personal",
		"refresh", "reset", "security", "service", "session", "xsrf",
	} {
		if bytes.HasSuffix(word, []byte(ending)) {
			return true
		}
	}
	return false
}
