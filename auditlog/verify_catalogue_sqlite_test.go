//go:build cgo

package auditlog

import (
	"fmt"
	"testing"
)

// The rows that a database can hold are run on databases too. Rows whose lines
// are no JSON, or that hold one number twice, cannot be made: the indexes and
// the key do not take them.
func TestTamperCatalogueOnSQLite(t *testing.T) {
	ran := 0
	for _, row := range catalogueRows() {
		t.Run(row.row+" "+row.name, func(t *testing.T) {
			row.run(t, func(l *testLog) []Source {
				var list []Source
				for i, lines := range l.files {
					source, err := DatabaseOf(t, fmt.Sprintf("file%d", i), lines)
					if err != nil {
						t.Skip("a database cannot hold these lines:", err)
					}
					list = append(list, source)
				}
				return list
			})
			ran++
		})
	}
	if ran < 40 {
		t.Errorf("only %d rows ran", ran)
	}
}
