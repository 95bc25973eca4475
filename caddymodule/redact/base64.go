package redact

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// The bounds of looking into base64: how short a text may be, and how many
// layers there may be of it.
const (
	shortestBase64 = 16
	mostBase64     = 2
)

// decodeBase64 decodes a text that is base64 in either alphabet, with or without
// padding.
func decodeBase64(text string) ([]byte, bool) {
	text = strings.TrimRight(text, "=")
	alphabet := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		alphabet = base64.RawURLEncoding
	}
	raw, err := alphabet.DecodeString(text)
	return raw, err == nil
}

// hides reports whether a whole string, or what a data URI carries, is base64 of
// a text that has something to redact. What it decodes to is no text of this
// message, so that it can only go as a whole.
func (t *pass) hides(text []byte) bool {
	if t.s.decoded >= mostBase64 {
		return false
	}
	if hasPrefix(text, "data:") {
		_, data, found := strings.Cut(string(text[:min(len(text), 128)]), ";base64,")
		if !found {
			return false
		}
		text = text[min(len(text), 128)-len(data):]
	}
	if !beginsText(text) {
		return false
	}
	raw, ok := decodeBase64(strings.Map(withoutBreaks, string(text)))
	if !ok || !utf8.Valid(raw) || !printable(raw) {
		return false
	}
	if opensJSON(raw) {
		inner := scanner{p: t.s.p, decoded: t.s.decoded + 1}
		in := pass{s: &inner, level: inner.level(0), text: raw, cover: none}
		in.space()
		if in.value(inData) || in.cover != none {
			return len(in.level.edits) > 0 || in.cover != none
		}
	}
	inner := scanner{p: t.s.p, decoded: t.s.decoded + 1}
	nested := pass{s: &inner, level: inner.level(0), text: raw, cover: none}
	return len(t.s.p.detect(nil, raw)) > 0 || nested.hides(raw)
}

// beginsText reports whether a text may be base64 of a text: the first
// characters decode to such ones. Most of what is not is told by that.
func beginsText(text []byte) bool {
	if len(text) < shortestBase64 {
		return false
	}
	var standard [shortestBase64]byte
	for i, b := range text[:shortestBase64] {
		switch {
		case b == '-':
			b = '+'
		case b == '_':
			b = '/'
		case b == '=' && i < shortestBase64-2, !base64Byte(b):
			return false
		}
		standard[i] = b
	}
	var raw [shortestBase64]byte
	n, err := base64.StdEncoding.Decode(raw[:], standard[:])
	if err != nil {
		return false
	}
	// The last character may be cut.
	for n > 0 && raw[n-1] >= 0x80 {
		n--
	}
	return n > 0 && utf8.Valid(raw[:n]) && printable(raw[:n])
}

func withoutBreaks(r rune) rune {
	if r == '\n' || r == '\r' {
		return -1
	}
	return r
}
