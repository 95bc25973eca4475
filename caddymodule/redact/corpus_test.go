package redact_test

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/redact"
)

// corpusLine is a text, what it must become, and what is found in it.
type corpusLine struct{ kind, in, want string }

func corpus(t *testing.T) (lines []corpusLine) {
	t.Helper()
	f, err := os.Open("testdata/corpus.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		parts := strings.SplitN(strings.ReplaceAll(s.Text(), "␤", "\n"), "\t", 3)
		if len(parts) != 3 {
			t.Fatalf("not understood: %s", s.Text())
		}
		l := corpusLine{kind: parts[1], in: parts[2], want: parts[2]}
		if parts[0] == "goes" {
			before, rest, _ := strings.Cut(parts[2], "⟦")
			value, after, found := strings.Cut(rest, "⟧")
			if !found {
				t.Fatalf("no value is marked: %s", s.Text())
			}
			l.in, l.want = before+value+after, before+"[REDACTED:"+l.kind+"]"+after
		}
		lines = append(lines, l)
	}
	return lines
}

func TestDetectorsFindTheCorpusAndNothingElse(t *testing.T) {
	p, err := redact.New(redact.Config{Detect: []string{"secrets", "pii"}})
	if err != nil {
		t.Fatal(err)
	}
	var found, missed, false_, passed int
	for _, l := range corpus(t) {
		src, err := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": l.in}}})
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": l.want}}})
		if err != nil {
			t.Fatal(err)
		}
		out, changed, err := p.Redact(src)
		if err != nil {
			t.Errorf("%s: %v", l.in, err)
			continue
		}
		if !changed {
			out = src
		}
		good := string(out) == string(want)
		switch {
		case l.want != l.in && good:
			found++
		case l.want != l.in:
			missed++
		case good:
			passed++
		default:
			false_++
		}
		if !good {
			t.Errorf("%s:\n %s\n became\n %s", l.kind, src, out)
		}
		if got := p.Text(l.in); got != l.want {
			t.Errorf("as a text: %q became %q", l.in, got)
		}
		if changed {
			if again, twice, _ := p.Redact(out); twice {
				t.Errorf("a second pass made %s of %s", again, out)
			}
		}
	}
	if found+missed < 100 || passed+false_ < 100 {
		t.Errorf("the corpus has only %d and %d lines", found+missed, passed+false_)
	}
	t.Logf("recall %.3f of %d, precision %.3f of %d that pass", float64(found)/float64(found+missed), found+missed, float64(found)/float64(found+false_), passed+false_)
}
