package redact_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// dense is about n bytes of JSON with short members and numbers.
func dense(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"structuredContent":{"rows":[`)
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, `{"id":%d,"name":"item %d","active":true,"score":%d.25,"tags":["a","b"],"owner":{"login":"u%d","max_tokens":null}},`, i, i, i%97, i%13)
	}
	b.WriteString(`{}]}}`)
	return b.Bytes()
}

// text is about n bytes of JSON that is mostly one text with line ends.
func text(n int) []byte {
	return []byte(`{"content":[{"type":"text","text":"` + strings.Repeat(`The quick brown fox jumps over the lazy dog and \"barks\".\n`, n/60) + `"}]}`)
}

// nested is about n bytes of dense JSON as a text.
func nested(n int, match bool) []byte {
	inner := dense(n * 3 / 4)
	if match {
		inner = bytes.ReplaceAll(inner, []byte("max_tokens"), []byte("api_key"))
	}
	s, err := json.Marshal(string(inner))
	if err != nil {
		panic(err)
	}
	return []byte(`{"content":[{"type":"text","text":` + string(s) + `}]}`)
}

func BenchmarkRedact(b *testing.B) {
	match := bytes.ReplaceAll(dense(64<<10), []byte("max_tokens"), []byte("api_key"))
	for _, c := range []struct {
		name string
		src  []byte
	}{
		{"dense 1KB", dense(1 << 10)},
		{"dense 64KB", dense(64 << 10)},
		{"dense 1MB", dense(1 << 20)},
		{"text 1KB", text(1 << 10)},
		{"text 64KB", text(64 << 10)},
		{"text 1MB", text(1 << 20)},
		{"nested 64KB", nested(64<<10, false)},
		{"matches 64KB", match},
		{"nested matches 64KB", nested(64<<10, true)},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := profile(b)
			b.SetBytes(int64(len(c.src)))
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := p.Redact(c.src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The cost of hostile payloads must not grow faster than their length: they
// would stall the proxy otherwise. Compare the two sizes' throughput.
func BenchmarkHostile(b *testing.B) {
	p := profile(b)
	nest := func(n int) string {
		s := `{"token":"x","a":"` + strings.Repeat("y", n/2) + `"}`
		for len(s) < n {
			s = `["` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"]`
		}
		return s
	}
	for name, payload := range map[string]func(n int) string{
		"brackets":           func(n int) string { return strings.Repeat("[", n/2) + strings.Repeat("]", n/2) },
		"one long name":      func(n int) string { return `{"` + strings.Repeat("secretary", n/9) + `":1}` },
		"names":              func(n int) string { return `{` + strings.Repeat(`"token":1,`, n/10) + `"a":1}` },
		"backslashes":        func(n int) string { return `["` + strings.Repeat(`\\`, n/2) + `"]` },
		"many edits in text": func(n int) string { return `["{` + strings.Repeat(`\"token\":1,`, n/12) + `\"a\":1}"]` },
		"text in text":       nest,
		"opening texts":      func(n int) string { return `[` + strings.Repeat(`"[\"[",`, n/7) + `1]` },
	} {
		for _, n := range []int{32 << 10, 256 << 10} {
			b.Run(fmt.Sprintf("%s/%dKB", name, n>>10), func(b *testing.B) {
				src := []byte(payload(n))
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					if _, _, err := p.Redact(src); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkHostileText reads texts that are made to be read again and again.
func BenchmarkHostileText(b *testing.B) {
	p := profile(b)
	for name, part := range map[string]string{
		"addresses": "a://", "keys": "-----BEGIN PRIVATE KEY-----", "tokens": "eyJ.", "bearers": "Bearer ", "assignments": "token=", "mails": "a@",
		"digits": "4111 ", "accounts": "DE89", "names": "password:", "schemes": "https://token=",
	} {
		src := []byte(`["` + strings.Repeat(part, 256<<10/len(part)) + `"]`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if _, _, err := p.Redact(src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
