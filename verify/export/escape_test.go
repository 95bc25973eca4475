package export

import (
	"encoding/csv"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCellEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"":           "",
		"plain":      "plain",
		"a b":        "a b",
		"a,b":        `"a,b"`,
		`say "x"`:    `"say ""x"""`,
		"two\nlines": "\"two\nlines\"",
		"cr\rhere":   "\"cr\rhere\"",
		"=1+1":       `"'=1+1"`,
		"+1":         `"'+1"`,
		"-1":         `"'-1"`,
		"@SUM(A1)":   `"'@SUM(A1)"`,
		"\t=1":       "\"'\t=1\"",
		"\r=1":       "\"'\r=1\"",
		"\n=1":       "\"'\n=1\"",
		"  =1":       `"'  =1"`,
		"＝1":         `"'＝1"`,
		"'=1":        `"''=1"`,
		"a=1":        "a=1",
		" a":         `" a"`,
		"ü":          "ü",
	} {
		if got := string(appendCell(nil, in)); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestCEFEscapes(t *testing.T) {
	for in, want := range map[string][2]string{
		"plain":      {"plain|", "k=plain"},
		"a|b":        {`a\|b|`, "k=a|b"},
		"a=b":        {"a=b|", `k=a\=b`},
		`a\b`:        {`a\\b|`, `k=a\\b`},
		"a\nb":       {"a b|", `k=a\nb`},
		"a\r\nb":     {"a  b|", `k=a\r\nb`},
		"a\x1b[31mb": {`a\\u001b[31mb|`, `k=a\\u001b[31mb`},
		"a\u2028b":   {`a\\u2028b|`, `k=a\\u2028b`},
		"a\u202eb":   {`a\\u202eb|`, `k=a\\u202eb`},
		"ü":          {"ü|", "k=ü"},
	} {
		c := cef{b: []byte("|")}
		c.pair("k", in)
		if got := string(c.b[1:]); got != want[1] {
			t.Errorf("%q: %s, want %s", in, got, want[1])
		}
		c.b = nil
		c.header(in)
		if got := string(c.b); got != want[0] {
			t.Errorf("%q in the header: %s, want %s", in, got, want[0])
		}
	}
}

func TestSyslogEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"plain": ` k="plain"`, `a"b`: ` k="a\"b"`, `a\b`: ` k="a\\b"`, "a]b": ` k="a\]b"`, "a\nb": ` k="a\\u000ab"`, "ü": ` k="ü"`, "": "",
	} {
		var s syslog
		s.param("k", in)
		if got := string(s.b); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"": "-", "a b\nc": "abc", "hö": "h", "long": "lon"} {
		if got := header(in, 3); got != want {
			t.Errorf("%q in the header: %s", in, got)
		}
	}
}

func TestOctetCounting(t *testing.T) {
	list := rows(t)
	stream := written(t, "syslog", Options{Octets: true, Host: "h"}, list)
	lines := strings.SplitAfter(written(t, "syslog", Options{Host: "h"}, list), "\n")
	for i := range list {
		length, rest, ok := strings.Cut(stream, " ")
		n, err := strconv.Atoi(length)
		if !ok || err != nil || n > len(rest) {
			t.Fatalf("frame %d: %v: %q", i, err, stream)
		}
		if rest[:n]+"\n" != lines[i] {
			t.Errorf("frame %d is %q, the line %q", i, rest[:n], lines[i])
		}
		stream = rest[n:]
	}
	if stream != "" {
		t.Errorf("left over: %q", stream)
	}
}

// unescape undoes escapes of a backslash and one character.
func unescape(t *testing.T, s string, meaning map[byte]byte) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			if i++; i == len(s) {
				t.Fatalf("%q ends in a backslash", s)
			}
			c, ok := meaning[s[i]]
			if !ok {
				t.Fatalf(`%q has \%c`, s, s[i])
			}
			b.WriteByte(c)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func FuzzEscapes(f *testing.F) {
	for _, s := range []string{"", "=1", "'", "a|b=c\\d\ne\r\n", `x"]\`, "\x00\x1b[0m", "ü\u2028", "  +", strings.Repeat("é|=\\\"]", 400), "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) {
			// Texts of records are valid.
			s = strings.ToValidUTF8(s, "?")
		}

		// CSV: one cell, no formula, and the text comes back.
		text := string(appendCell(nil, s))
		records, err := csv.NewReader(strings.NewReader("x," + text + ",y\r\n")).ReadAll()
		if err != nil || len(records) != 1 || len(records[0]) != 3 {
			t.Fatalf("CSV %q: %v %q", text, err, records)
		}
		cell := records[0][1]
		if startsFormula(cell) {
			t.Errorf("CSV: %q is a formula", cell)
		}
		// That reader turns CRLF into LF, as it says.
		if want := strings.ReplaceAll(s, "\r\n", "\n"); strings.TrimPrefix(cell, "'") != want {
			t.Errorf("CSV: %q became %q", s, cell)
		}

		// CEF: one line, and the text comes back but for control characters.
		c := cef{b: []byte("|")}
		c.pair("k", s)
		value := string(c.b[1:])
		plain := oneLine(clip(s), true)
		if s == "" {
			if value != "" {
				t.Errorf("CEF: %q", value)
			}
		} else if got := unescape(t, strings.TrimPrefix(value, "k="), map[byte]byte{'\\': '\\', '=': '=', 'n': '\n', 'r': '\r'}); got != plain {
			t.Errorf("CEF: %q became %q", plain, got)
		}
		c.b = nil
		c.header(s)
		head := string(c.b)
		if got := unescape(t, strings.TrimSuffix(head, "|"), map[byte]byte{'\\': '\\', '|': '|'}); got != strings.NewReplacer("\n", " ", "\r", " ").Replace(plain) {
			t.Errorf("CEF header: %q became %q", s, got)
		}
		if strings.Count(strings.NewReplacer(`\\`, "", `\|`, "").Replace(head), "|") != 1 {
			t.Errorf("CEF header: %q has a bar of its own", head)
		}

		// Syslog: one line, one parameter, and the text comes back.
		var sys syslog
		sys.param("k", s)
		param := string(sys.b)
		if s != "" {
			inner := strings.TrimSuffix(strings.TrimPrefix(param, ` k="`), `"`)
			if got := unescape(t, inner, map[byte]byte{'\\': '\\', '"': '"', ']': ']'}); got != oneLine(clip(s), false) {
				t.Errorf("syslog: %q became %q", s, got)
			}
			if strings.ContainsAny(strings.NewReplacer(`\\`, "", `\"`, "", `\]`, "").Replace(inner), `"]\`) {
				t.Errorf("syslog: %q", param)
			}
		}
		for _, line := range []string{value, head, param} {
			if strings.ContainsAny(line, "\r\n\u2028\u2029") || !utf8.ValidString(line) || len(clip(s)) > maxField {
				t.Errorf("no single line: %q", line)
			}
		}
		if name := header(s, 32); len(name) == 0 || len(name) > 32 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Errorf("syslog header: %q", name)
		}
	})
}
