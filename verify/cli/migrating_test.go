package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A migration is one row of docs/migrating.md.
type migration struct{ section, there, whose, here string }

func migrations(t *testing.T) (rows []migration) {
	t.Helper()
	section := ""
	for line := range strings.Lines(readPage(t, "docs/migrating.md")) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = title
		}
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| there ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("%d cells in %s", len(cells), line)
		}
		rows = append(rows, migration{section, strings.TrimSpace(cells[0]), strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
	}
	return rows
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var span = regexp.MustCompile("`([^`]+)`")

func spans(text string) (found []string) {
	for _, m := range span.FindAllStringSubmatch(text, -1) {
		found = append(found, m[1])
	}
	return found
}

func TestTheMigrationGuideHasEachNameOfTheReferenceSystemsOnce(t *testing.T) {
	text, err := os.ReadFile("testdata/reference-systems.txt")
	if err != nil {
		t.Fatal(err)
	}
	section, want := "", map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "# "); ok {
			section = title
		} else if line != "" {
			want[section+": "+line] = true
		}
	}
	seen := map[string]bool{}
	for _, row := range migrations(t) {
		if row.here == "" || row.whose == "" {
			t.Errorf("%s: %s has nothing beside it", row.section, row.there)
		}
		for _, name := range spans(row.there) {
			name = row.section + ": " + name
			switch {
			case !want[name]:
				t.Errorf("%s is no name of testdata/reference-systems.txt", name)
			case seen[name]:
				t.Errorf("%s is there twice", name)
			}
			seen[name] = true
		}
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// What the guide promises must exist: each name on its right side stands in a
// page that describes it, or in the guide's own configuration, which the
// black-box tests load; commands and their flags are those of the program.
func TestTheMigrationGuideNamesOnlyWhatExists(t *testing.T) {
	pages := []string{"README.md"}
	files, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := filepath.Base(file); name != "migrating.md" {
			pages = append(pages, "docs/"+name)
		}
	}
	var known strings.Builder
	for _, page := range pages {
		known.WriteString(readPage(t, page))
	}
	guide := readPage(t, "docs/migrating.md")
	before, _, _ := strings.Cut(guide, "\n## ")
	known.WriteString(before)
	words := strings.FieldsFunc(known.String(), func(r rune) bool {
		return r != '_' && r != '-' && r != '.' && r != '/' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
	for i, w := range words {
		words[i] = strings.TrimRight(w, ".")
	}
	slices.Sort(words)
	name := regexp.MustCompile(`[-/]*[A-Za-z0-9_][-A-Za-z0-9_./]*`)
	for _, row := range migrations(t) {
		for _, s := range spans(row.here) {
			if strings.HasPrefix(s, "mcp-audit ") {
				checkCommand(t, s)
				continue
			}
			for _, word := range name.FindAllString(s, -1) {
				if _, found := slices.BinarySearch(words, word); !found {
					t.Errorf("%s: %q of `%s`, beside %s, stands in no page", row.section, word, s, row.there)
				}
			}
		}
	}
}

// checkCommand requires that a command of mcp-audit, and each flag that is
// written with it, exists.
func checkCommand(t *testing.T, text string) {
	t.Helper()
	cmd, rest, err := New().Find(strings.Fields(text)[1:])
	if err != nil || !cmd.HasParent() {
		t.Errorf("`%s`: there is no such command", text)
		return
	}
	for _, word := range rest {
		if flag, ok := strings.CutPrefix(word, "--"); ok && lookup(cmd, flag) == nil {
			t.Errorf("`%s`: there is no such flag", text)
		}
	}
}

func lookup(cmd *cobra.Command, flag string) any {
	if f := cmd.Flags().Lookup(flag); f != nil {
		return f
	}
	if f := cmd.InheritedFlags().Lookup(flag); f != nil {
		return f
	}
	return nil
}
