package tests

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// LOG-7: what is done to the log, and to its configuration, is a signed record
// that says who did it.
func TestTheLogAuditsItself(t *testing.T) {
	for _, store := range []string{"jsonl", "sqlite"} {
		t.Run(store, func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Store: store})
			calls(t, caddy, 0, 1)
			for _, change := range []func(*harness.Site){
				func(s *harness.Site) { s.LogOptions = "checkpoint every 50 records" },
				func(s *harness.Site) { s.LogOptions = "checkpoint every 60 records" },
			} {
				if refusal := caddy.Reload(t, change); refusal != "" {
					t.Fatal(refusal)
				}
			}
			folder := filepath.Dir(caddy.Log)
			for _, args := range [][]string{{"rotate-key", caddy.Log}, {"export", caddy.Log, "--record", "--format", "csv"}} {
				if _, stderr, code := harness.Run(t, harness.CLI(t, folder, args...)); code != 0 {
					t.Fatalf("%v: %s", args, stderr)
				}
			}
			calls(t, caddy, 1, 1)
			caddy.Stop(t)
			if r := harness.VerifyLog(t, caddy.Log); r.Exit != 0 || r.MAC != "checked" || len(r.Findings) > 0 {
				t.Errorf("%s", r)
			}
			type own struct {
				Kind    string `json:"kind"`
				Actor   string `json:"actor"`
				Version string `json:"version"`
				To      string `json:"config_sha256"`
				From    string `json:"prev_config_sha256"`
				Action  string `json:"action"`
				Target  string `json:"target"`
				NewKey  string `json:"new_key_id"`
				Note    string `json:"note"`
				Seal    struct {
					KeyID string `json:"key_id"`
					MAC   string `json:"mac"`
				} `json:"seal"`
			}
			byKind := map[string][]own{}
			for line := range strings.Lines(string(rawLines(t, caddy.Log))) {
				var r own
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatal(err)
				}
				if len(r.Seal.MAC) != 43 {
					t.Errorf("a record without a MAC: %s", line)
				}
				byKind[r.Kind] = append(byKind[r.Kind], r)
			}
			// The proxy, and each command that wrote.
			if starts := byKind["start"]; len(starts) != 3 || starts[0].Actor != "caddy" || starts[0].Version == "" {
				t.Errorf("starts %+v", starts)
			}
			if stops := byKind["stop"]; len(stops) != 3 || stops[2].Actor != "caddy" {
				t.Errorf("stops %+v", stops)
			}
			changes := byKind["config"]
			if len(changes) != 2 || changes[0].Actor != "reload" || changes[0].To == "" || changes[0].From == "" || changes[0].From == changes[0].To || changes[1].From != changes[0].To {
				t.Errorf("changes %+v", changes)
			}
			if rotations := byKind["key_rotation"]; len(rotations) != 1 || rotations[0].NewKey == rotations[0].Seal.KeyID || strings.Count(rotations[0].Note, "\n— ") != 2 {
				t.Errorf("rotations %+v", rotations)
			}
			if reads := byKind["access"]; len(reads) != 1 || reads[0].Action != "export" || reads[0].Actor == "" || !strings.Contains(reads[0].Target, "csv") {
				t.Errorf("accesses %+v", reads)
			}
		})
	}
}
