package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

var reportSchema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	p, err := find()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(p.Root, "docs", "verify-report.schema.json"))
	if err != nil {
		return nil, err
	}
	schema := new(jsonschema.Schema)
	if err := json.Unmarshal(text, schema); err != nil {
		return nil, err
	}
	return schema.Resolve(nil)
})

// CheckReport requires that what verify --json printed is as the published
// schema says.
func CheckReport(t testing.TB, printed string) {
	t.Helper()
	schema, err := reportSchema()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(printed) {
		var report any
		if err := json.Unmarshal([]byte(line), &report); err != nil {
			t.Errorf("a report is no JSON: %v: %.200s", err, line)
		} else if err := schema.Validate(report); err != nil {
			t.Errorf("the report is not as docs/verify-report.schema.json says: %v\n%.500s", err, line)
		}
	}
}
