package cli

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/legacy"
)

// reportSchema is the published schema of `verify --json`.
var reportSchema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	text, err := os.ReadFile("../../docs/verify-report.schema.json")
	if err != nil {
		return nil, err
	}
	schema := new(jsonschema.Schema)
	if err := json.Unmarshal(text, schema); err != nil {
		return nil, err
	}
	return schema.Resolve(nil)
})

// checkReports requires of every line that verify --json printed that it is as
// the schema says. Each test that runs a command goes through here.
func checkReports(t *testing.T, args []string, stdout string) {
	t.Helper()
	if !slices.Contains(args, "verify") || !slices.Contains(args, "--json") {
		return
	}
	schema, err := reportSchema()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stdout) {
		var report any
		if err := json.Unmarshal([]byte(line), &report); err != nil {
			t.Errorf("a report is no JSON: %v", err)
			continue
		}
		if err := schema.Validate(report); err != nil {
			t.Errorf("the report is not as docs/verify-report.schema.json says: %v\n%s", err, line)
		}
	}
}

func TestTheSchemaNamesEveryFindingAndStatus(t *testing.T) {
	text, err := os.ReadFile("../../docs/verify-report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Defs map[string]struct {
			Enum []string `json:"enum"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	names := slices.Concat(auditlog.FindingNames(), legacy.FindingNames())
	slices.Sort(names)
	if got := schema.Defs["finding_name"].Enum; !slices.Equal(got, slices.Compact(names)) {
		t.Errorf("the schema has the findings\n%q\nwant\n%q", got, names)
	}
	for _, s := range []legacy.Status{legacy.V2Valid, legacy.LegacyOnly, legacy.LegacyConflict, legacy.LegacyInvalid, legacy.Unsigned, legacy.ChainSigned, legacy.Unchecked, legacy.Unreadable} {
		if !slices.Contains(schema.Defs["status"].Enum, string(s)) {
			t.Errorf("the schema has no status %s", s)
		}
	}
}

func TestTheSchemaRefusesWhatIsNoReport(t *testing.T) {
	clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret)
	stdout, _, _ := command(t, "verify", "--json", vector(t))
	schema, err := reportSchema()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(map[string]any){
		"a member is missing": func(r map[string]any) { delete(r, "watermarks") },
		"a member is unknown": func(r map[string]any) { r["records_total"] = 3 },
		"another exit code":   func(r map[string]any) { r["exit"] = 7 },
		"an unknown finding": func(r map[string]any) {
			r["findings"] = []any{map[string]any{"finding": "odd", "class": "T", "count": 1, "detail": "x"}}
		},
		"a finding without a class": func(r map[string]any) {
			r["findings"] = []any{map[string]any{"finding": "fork", "count": 1, "detail": "x"}}
		},
	} {
		var report map[string]any
		if err := json.Unmarshal([]byte(stdout), &report); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(report); err != nil {
			t.Fatal(err)
		}
		change(report)
		if schema.Validate(report) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
