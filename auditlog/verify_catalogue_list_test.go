package auditlog

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// catalogueRowCount is the number of rows of the tamper catalogue.
const catalogueRowCount = 70

// elsewhere names the tests of the rows that need more than a log's lines: a
// manifest, a database, a writer that starts, a witness. Paths are from the
// repository's root.
var elsewhere = map[int][]string{
	22: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound"},
	27: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound", "verify/cli/segments_test.go TestAManifestThatWasKeptElsewhereFindsDeletedSegments"},
	28: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound"},
	30: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound"},
	34: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound"},
	35: {"verify/cli/segments_test.go TestWhatIsDoneToClosedSegmentsIsFound"},
	43: {"auditlog/keyring_test.go TestSecretsThatMustNotBeUsed"},
	51: {"auditlog/anchor/anchor_test.go TestWrongCosignaturesAreNotKept"},
	// Time-stamp tokens (RFC 3161) are not built: a receipt that a command
	// brings is kept and never judged.
	52: {"auditlog/anchor/anchor_test.go TestCommandGetsTheNoteAndItsOutputIsKept"},
	64: {"auditlog/sqlite/tamper_test.go TestTamperingWithADatabaseIsFound"},
	65: {"auditlog/sqlite/tamper_test.go TestAnEditedIndexPageIsFound"},
	66: {"auditlog/sqlite/tamper_test.go TestAMissingOrForeignWalIsFoundWithAnAnchor"},
	68: {"auditlog/refuse_test.go TestAStartOnATamperedLogIsRefused"},
	69: {"auditlog/refuse_test.go TestAStartOnATamperedLogIsRefused"},
	70: {"verify/cli/segments_test.go TestCompressedSegmentsVerifyAndABombIsRefused"},
}

func TestEveryRowOfTheTamperCatalogueHasATest(t *testing.T) {
	inTable := map[int]bool{}
	for _, row := range catalogueRows() {
		if n, err := strconv.Atoi(row.row); err == nil {
			inTable[n] = true
		} else if row.row != "" {
			t.Errorf("row %q is no number", row.row)
		}
	}
	for n := 1; n <= catalogueRowCount; n++ {
		tests := elsewhere[n]
		if !inTable[n] && len(tests) == 0 {
			t.Errorf("row %d has no test", n)
		}
		for _, test := range tests {
			file, name, _ := strings.Cut(test, " ")
			if !slices.Contains(testsIn(t, file), name) {
				t.Errorf("row %d: there is no test %s in %s", n, name, file)
			}
		}
	}
	for n := range inTable {
		if n < 1 || n > catalogueRowCount {
			t.Errorf("the catalogue has no row %d", n)
		}
	}
}

func testsIn(t *testing.T, file string) (names []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", filepath.FromSlash(file)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
