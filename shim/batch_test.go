package shim_test

import (
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/shim"
)

func TestBatchFilesGetNoArgumentThatIsACommand(t *testing.T) {
	for _, c := range []struct {
		path    string
		args    []string
		allowed bool
	}{
		{`/node/npx.cmd`, []string{"-y", "@modelcontextprotocol/server-filesystem", "/notes of mine"}, true},
		{`/node/npx.CMD`, []string{"a&calc"}, false},
		{`/node/run.bat`, []string{"-y", "%PATH%"}, false},
		{`/node/run.bat`, []string{`x" & calc`}, false},
		{`/node/run.bat`, []string{"a|b"}, false},
		{`/node/run.bat`, []string{"a^b"}, false},
		{`/node/node.exe`, []string{"a&calc", `"`, "%PATH%"}, true},
	} {
		if err := shim.CheckBatch(c.path, c.args); (err == nil) != c.allowed {
			t.Errorf("%s %q: %v", c.path, c.args, err)
		}
	}
}
