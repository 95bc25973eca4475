package auditlog

import (
	"encoding/json"
	"os"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// reportSchema is the published schema of reports.
var reportSchema = sync.OnceValues(func() (*jsonschema.Resolved, error) {
	text, err := os.ReadFile("../docs/verify-report.schema.json")
	if err != nil {
		return nil, err
	}
	schema := new(jsonschema.Schema)
	if err := json.Unmarshal(text, schema); err != nil {
		return nil, err
	}
	return schema.Resolve(nil)
})

// fitsSchema requires that a report is as the published schema says.
func fitsSchema(t *testing.T, r *Report) {
	t.Helper()
	schema, err := reportSchema()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var report any
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(report); err != nil {
		t.Errorf("the report is not as docs/verify-report.schema.json says: %v\n%s", err, text)
	}
}
