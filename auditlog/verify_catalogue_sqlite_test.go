//go:build cgo

package auditlog

import (
	"fmt"
	"testing"
)

// notInADatabase are the rows whose lines no database can hold: lines that are
// no JSON, which the computed columns do not take, and forms that its own
// columns make.
var notInADatabase = map[string]bool{
	"a leading zero": true, "blank lines": true, "a hole of NUL bytes": true,
	"openings not canonical": true, "line over the limit": true,
}

// The rows that a database can hold are run on databases too.
func TestTamperCatalogueOnSQLite(t *testing.T) {
	for _, row := range catalogueRows() {
		t.Run(row.row+" "+row.name, func(t *testing.T) {
			row.run(t, func(l *testLog) []Source {
				var list []Source
				for i, lines := range l.files {
					source, err := DatabaseOf(t, fmt.Sprintf("file%d", i), lines)
					if notInADatabase[row.name] {
						if err == nil {
							t.Fatal("a database can hold these lines after all")
						}
						t.Skip("a database cannot hold these lines:", err)
					}
					if err != nil {
						t.Fatal(err)
					}
					list = append(list, source)
				}
				return list
			})
		})
	}
}
