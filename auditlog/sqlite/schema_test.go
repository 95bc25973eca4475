package sqlite

import (
	"os"
	"strings"
	"testing"
)

func TestTheFormatsPageHasTheSchema(t *testing.T) {
	page, err := os.ReadFile("../../docs/log-format.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```sql\n"+schema+"```\n") {
		t.Error("docs/log-format.md does not have the schema as it is")
	}
}
