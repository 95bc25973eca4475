package policy_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/policy"
)

// matches asks a policy that allows one pattern.
func matches(t testing.TB, selector, pattern, value string) bool {
	t.Helper()
	r := policy.Rule{ID: "A", Allow: true}
	c := policy.Call{Method: "prompts/get", Name: value}
	if selector == "tool" {
		r.Tools, c.Method = []string{pattern}, "tools/call"
	} else {
		r.Names = []string{pattern}
	}
	p, err := policy.New(policy.Config{DefaultDeny: true, Rules: []policy.Rule{r}})
	if err != nil {
		t.Fatal(err)
	}
	return p.Decide(&c).Allow
}

func TestPatternsMatchWhatTheDocumentationSays(t *testing.T) {
	for _, c := range []struct {
		selector, pattern string
		yes, no           []string
	}{
		{"tool", "*", []string{"a", "a/b", " ", "\n", "é"}, []string{""}},
		{"tool", "read_*", []string{"read_", "read_a", "read_a/b", "read_\n"}, []string{"read", "Read_a", " read_a", "xread_a"}},
		{"tool", "*_file", []string{"_file", "a/b_file", "_file_file"}, []string{"_files", "file"}},
		{"tool", "a*b*c", []string{"abc", "a//b//c", "abbcc", "aXbYbZc"}, []string{"ab", "acb", "abcx"}},
		{"tool", "?", []string{"a", "/", "é", "\U0001f600"}, []string{"ab", ""}},
		{"tool", "v[0-9a]", []string{"v0", "va"}, []string{"v", "vb", "v00", "v٠"}},
		{"tool", "v[!0-9]", []string{"va", "v/", "vé"}, []string{"v1", "v"}},
		{"tool", `v[\]\-x]`, []string{"v]", "v-", "vx"}, []string{`v\`}},
		{"tool", `\*`, []string{"*"}, []string{"a", `\*`}},
		{"tool", `a\[b\]\?`, []string{"a[b]?"}, []string{"ab?", "abx"}},
		{"name", "*", []string{"a", "a/b"}, []string{""}},
		{"name", "file:///srv/*", []string{"file:///srv/", "file:///srv/a"}, []string{"file:///srv/a/b", "file:///srv"}},
		{"name", "file:///srv/**", []string{"file:///srv/", "file:///srv/a", "file:///srv/a/b/"}, []string{"file:///srv", "file:///sr"}},
		{"name", "file:///srv/**/*.txt", []string{"file:///srv/a/b.txt", "file:///srv/a/b/c.txt"}, []string{"file:///srv/b.txt", "file:///srv/a/b.txt/c"}},
		{"name", "a?b", []string{"a.b", "aéb"}, []string{"a/b", "ab"}},
		{"name", "a[!x]b", []string{"ayb"}, []string{"a/b", "axb"}},
		{"name", "a[/x]b", []string{"a/b", "axb"}, []string{"ayb"}},
		{"name", "*/**x", []string{"a/x", "/x", "a/b/cx", "a//x"}, []string{"x", "ax", "a/b"}},
		{"name", "**a*b", []string{"ab", "x/a/ab", "a/acb", "aab"}, []string{"a/b", "ba"}},
	} {
		for _, v := range c.yes {
			if !matches(t, c.selector, c.pattern, v) {
				t.Errorf("%s %q does not match %q", c.selector, c.pattern, v)
			}
		}
		for _, v := range c.no {
			if matches(t, c.selector, c.pattern, v) {
				t.Errorf("%s %q matches %q", c.selector, c.pattern, v)
			}
		}
	}
}

func TestNamesThatOnlyLookAlikeAreDifferent(t *testing.T) {
	for _, look := range []string{
		"Delete_file", "delete_file ", " delete_file", "delete_file\u200b", "dеlete_file" /* Cyrillic е */, "delete\u2010file",
		"delete_ﬁle", "delete%5Ffile", "delete_file\x00", "DELETE_FILE", "delete_file\t", "delete_\u0440ile",
	} {
		if matches(t, "tool", "delete_file", look) {
			t.Errorf("%q is delete_file", look)
		}
	}
	// Composed and decomposed forms are two names.
	if matches(t, "tool", "caf\u00e9", "cafe\u0301") {
		t.Error("a decomposed name is the composed one")
	}
}

// reference is a pattern as a regular expression.
func reference(pattern string, path bool) *regexp.Regexp {
	if pattern == "*" {
		return regexp.MustCompile(`(?s)^.+$`)
	}
	one, run := `.`, `.*`
	if path {
		one, run = `[^/]`, `[^/]*`
	}
	var b strings.Builder
	b.WriteString(`(?s)^`)
	for i := 0; i < len(pattern); i++ {
		switch {
		case strings.HasPrefix(pattern[i:], "**"):
			b.WriteString(`.*`)
			i++
		case pattern[i] == '*':
			b.WriteString(run)
		case pattern[i] == '?':
			b.WriteString(one)
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	return regexp.MustCompile(b.String() + `$`)
}

func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{{"a*b", "axxb"}, {"**/x?", "a/b/xy"}, {"*a*a*a*b", "aaaaaaaaaaaaaaa"}, {"a/**/b*", "a/x/y/bz"}, {"[a-c]*", "b/"}, {`\*`, "*"}, {"?", "é"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, pattern, value string) {
		for _, selector := range []string{"tool", "name"} {
			r := policy.Rule{ID: "A", Allow: true}
			c := policy.Call{Method: "prompts/get", Name: value}
			if selector == "tool" {
				r.Tools, c.Method = []string{pattern}, "tools/call"
			} else {
				r.Names = []string{pattern}
			}
			p, err := policy.New(policy.Config{DefaultDeny: true, Rules: []policy.Rule{r}})
			if err != nil {
				continue
			}
			got := p.Decide(&c).Allow
			ascii := strings.IndexFunc(pattern+value, func(r rune) bool { return r > 0x7e }) < 0
			if !ascii || len(pattern)+len(value) > 200 || strings.ContainsAny(pattern, `[]\`) {
				continue
			}
			if want := value != "" && reference(pattern, selector == "name").MatchString(value); got != want {
				t.Errorf("%s %q on %q: %v, want %v", selector, pattern, value, got, want)
			}
		}
	})
}
