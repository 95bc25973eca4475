package tests

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// Each link from one page to another finds a file, and in it the heading.
func TestLinksBetweenPagesLead(t *testing.T) {
	root := harness.Find(t).Root
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == "node_modules" || name == "dist" || name == "bin" || name != "." && strings.HasPrefix(name, ".") && path != root) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		for _, m := range link.FindAllStringSubmatch(string(read(t, path)), -1) {
			file, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s leads nowhere", path, m[1])
			} else if heading != "" && !headings(t, target)[heading] {
				t.Errorf("%s: %s has no such heading", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// headings are the anchors of a page, by the rules of GitHub.
func headings(t *testing.T, path string) map[string]bool {
	found := map[string]bool{}
	text := string(read(t, path))
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ToLower(regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(m[1], ""))
		found[strings.ReplaceAll(name, " ", "-")] = true
	}
	for _, m := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

func TestTheArchitectureNamesEveryPackage(t *testing.T) {
	root := harness.Find(t).Root
	text := string(read(t, filepath.Join(root, "ARCHITECTURE.md")))
	cmd := exec.Command("go", "list", "-tags", "nobadger,nomysql,nopgx", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		name := strings.TrimPrefix(strings.TrimSpace(line), "github.com/caddy-mcp-audit/mcp-audit")
		name = strings.TrimPrefix(name, "/")
		packages[name] = true
		if name != "" && !strings.Contains(text, "`"+name+"`") {
			t.Errorf("%s is missing", name)
		}
	}
	for _, m := range regexp.MustCompile("`((?:auditlog|caddymodule|shim|verify)(?:/[a-z-]+)+)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(m[1]))); !packages[m[1]] && err != nil {
			t.Errorf("there is no %s", m[1])
		}
	}
}

// SECURITY.md has the rows of the table in docs/log-format.md, in its own words.
func TestBothThreatTablesHaveTheSameAttackers(t *testing.T) {
	root := harness.Find(t).Root
	count := func(page, head string) int {
		_, table, found := strings.Cut(string(read(t, filepath.Join(root, page))), head)
		if !found {
			t.Fatalf("%s has no table that begins with %s", page, head)
		}
		table, _, _ = strings.Cut(table, "\n\n")
		return strings.Count(table, "\n")
	}
	if here, there := count("SECURITY.md", "| attacker |"), count("docs/log-format.md", "| Attacker |"); here != there {
		t.Errorf("SECURITY.md has %d rows, docs/log-format.md %d", here, there)
	}
}
