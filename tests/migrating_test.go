package tests

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// The options of Caddy that docs/migrating.md names stand in its example.
func TestTheConfigurationOfTheMigrationGuideLoads(t *testing.T) {
	p := harness.Find(t)
	text := string(read(t, filepath.Join(p.Root, "docs", "migrating.md")))
	example := regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$").FindStringSubmatch(text)
	if example == nil {
		t.Fatal("there is no configuration")
	}
	dir := harness.TempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	write(t, file, []byte(example[1]))
	cmd := exec.Command(p.Caddy, "validate", "--config", file)
	cmd.Env = harness.Environment(dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("it does not load: %v\n%s", err, out)
	} else if strings.Contains(string(out), "not formatted") {
		t.Error("it is not formatted as caddy fmt does")
	}
}
