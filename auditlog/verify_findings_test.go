package auditlog

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestFindingNamesHasEveryFinding reads the names from the calls that make
// findings, here and in the database's check.
func TestFindingNamesHasEveryFinding(t *testing.T) {
	makers := map[string]int{"find": 0, "findAt": 1, "add": 0, "addAs": 0, "found": 0, "refuse": 0}
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	var used []string
	for _, pattern := range []string{"*.go", "sqlite/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				maker := ""
				switch f := call.Fun.(type) {
				case *ast.Ident:
					if maker = f.Name; maker != "found" {
						return true
					}
				case *ast.SelectorExpr:
					maker = f.Sel.Name
				}
				at, ok := makers[maker]
				if !ok || len(call.Args) <= at+1 { // a finding has a detail
					return true
				}
				if lit, ok := call.Args[at].(*ast.BasicLit); ok {
					if s, err := strconv.Unquote(lit.Value); err == nil && name.MatchString(s) {
						used = append(used, s)
					}
				}
				return true
			})
		}
	}
	for _, fault := range []LineFault{LineMalformed, LineUnsealed, LineDowngrade, LineBadSeal, LineExtraMember, lineOversized} {
		used = append(used, string(fault))
	}
	if len(used) < 100 {
		t.Fatalf("only %d uses were found: %v", len(used), used)
	}
	names := FindingNames()
	for _, s := range used {
		if !slices.Contains(names, s) {
			t.Errorf("FindingNames has no %s", s)
		}
	}
	if dup := slices.Compact(slices.Clone(names)); len(dup) != len(names) {
		t.Error("FindingNames has a name twice")
	}
}
