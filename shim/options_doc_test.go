package shim_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
)

func TestThePageOnTheShimHasEveryOption(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "shim.md"))
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if _, err := shim.ParseOptions([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(help.String(), -1)
	if len(found) < 10 {
		t.Fatalf("the help has %d options", len(found))
	}
	for _, m := range found {
		if !strings.Contains(string(page), "`--"+m[1]) {
			t.Errorf("docs/shim.md lacks --%s", m[1])
		}
	}
}
