package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/rewrite"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/sqlite"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestCaddyfilesAdaptToTheirGoldenJSON(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfile")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if filepath.Base(file) == "sqlite.caddyfile" && sqlite.Available() != nil {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		raw, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(text, map[string]any{"filename": "Caddyfile"})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, w := range warnings {
			t.Errorf("%s: %s", file, w)
		}
		var got bytes.Buffer
		if err := json.Indent(&got, raw, "", "  "); err != nil {
			t.Fatal(err)
		}
		got.WriteByte('\n')
		golden := strings.TrimSuffix(file, ".caddyfile") + ".json"
		if *update {
			if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s adapts to\n%s", file, got.String())
		}
	}
}
