package tests

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

func promtool(t *testing.T, dir, input string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is missing: apt-get install --no-install-recommends prometheus")
	}
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %q: %v\n%s", args, err, out)
	}
}

func monitoring(t *testing.T) string {
	return filepath.Join(harness.Find(t).Root, "examples", "monitoring")
}

func TestAlertRulesFireWhenTheyShould(t *testing.T) {
	promtool(t, monitoring(t), "", "check", "config", "prometheus.yml")
	promtool(t, monitoring(t), "", "test", "rules", "alerts_test.yml")
}

func TestMetricsAreAsPrometheusWantsThem(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Global: "metrics", Handler: denyDelete})
	caddy.Post(t, call("1", "echo", `{"m":"x"}`))
	caddy.Post(t, call("2", "delete_file", `{}`))
	status, text := caddy.AdminGet(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	// Caddy's own metrics are Caddy's matter.
	var ours strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "mcp_audit_") {
			ours.WriteString(line)
		}
	}
	promtool(t, t.TempDir(), ours.String(), "check", "metrics")
}

// The dashboard for Grafana and the alerts use series that exist, with labels
// that they have.
func TestDashboardAndAlertsUseDocumentedSeries(t *testing.T) {
	docs := string(read(t, filepath.Join(harness.Find(t).Root, "docs", "metrics.md")))
	rows := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `(mcp_audit_[a-z_]+)` \\| [a-z]+ \\|([^|]*)\\|").FindAllStringSubmatch(docs, -1) {
		rows[m[1]] = m[2]
	}
	if len(rows) < 20 {
		t.Fatalf("%d metrics are documented", len(rows))
	}
	check := func(where, expr string) {
		for _, name := range regexp.MustCompile(`mcp_audit_[a-z_]+`).FindAllString(expr, -1) {
			name = strings.TrimSuffix(name, "_bucket")
			if _, ok := rows[name]; !ok {
				t.Errorf("%s uses %s, which is not documented", where, name)
			}
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(read(t, filepath.Join(monitoring(t), "grafana-dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries++
			check("panel "+p.Title, target.Expr)
			labels := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".+").Replace(target.Expr)
			promtool(t, monitoring(t), "groups:\n- name: x\n  rules:\n  - record: x\n    expr: "+quote(t, labels)+"\n", "check", "rules", "/dev/stdin")
			for _, m := range regexp.MustCompile(`\{\{([a-z_]+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				name := strings.TrimSuffix(regexp.MustCompile(`mcp_audit_[a-z_]+`).FindString(target.Expr), "_bucket")
				if !strings.Contains(rows[name], m[1]) {
					t.Errorf("panel %s: %s has no label %s", p.Title, name, m[1])
				}
			}
		}
	}
	if queries < 20 {
		t.Errorf("%d queries", queries)
	}
	check("alerts.yml", string(read(t, filepath.Join(monitoring(t), "alerts.yml"))))
}

// What is deployed in containers loads.
func TestDeployedConfigurationsLoad(t *testing.T) {
	root := harness.Find(t).Root
	dir := harness.TempDir(t)
	texts := map[string]string{"compose": string(read(t, filepath.Join(root, "examples", "deploy", "Caddyfile")))}
	manifest := string(read(t, filepath.Join(root, "examples", "deploy", "kubernetes.yaml")))
	_, rest, found := strings.Cut(manifest, "Caddyfile: |\n")
	embedded, _, _ := strings.Cut(rest, "\n---")
	if !found {
		t.Fatal("the manifest has no Caddyfile")
	}
	var lines []string
	for line := range strings.Lines(embedded) {
		lines = append(lines, strings.TrimPrefix(line, "    "))
	}
	texts["kubernetes"] = strings.Join(lines, "")
	secret := filepath.Join(dir, "secret")
	write(t, secret, []byte("0f1e2d3c4b5a69788796a5b4c3d2e1f0"))
	for name, text := range texts {
		text = strings.NewReplacer("/run/secrets/mcp-audit-secret", secret, "/run/secrets/mcp-audit/secret", secret, "/data/", dir+"/").Replace(text)
		file := filepath.Join(dir, name+".caddyfile")
		write(t, file, []byte(text))
		cmd := exec.Command(harness.Find(t).Caddy, "validate", "--config", file, "--adapter", "caddyfile")
		cmd.Env = append(harness.Environment(dir), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "examples", "deploy", "Dockerfile")); err != nil {
		t.Error(err)
	}
}
