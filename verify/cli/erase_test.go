package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

const planted = "a value that has to be erased"

// committedLog is a log whose records commit to their payloads, with three calls
// of which the second has the planted value. It returns that operation's id.
func committedLog(t *testing.T, path string) (log *auditlog.Log, operation string) {
	t.Helper()
	commit, err := auditlog.ParseCommit([]string{"payload"})
	if err != nil {
		t.Fatal(err)
	}
	log = openLog(t, path)
	log.SetCommit(commit)
	for i := range 3 {
		value := fmt.Sprintf("value %d", i)
		if i == 1 {
			value = planted
		}
		op, err := log.Begin(t.Context(), auditlog.Intent{
			Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call", ToolName: "echo", MCPName: "echo"},
			Params:  auditlog.Payload{Received: fmt.Appendf(nil, `{"arguments":{"m":%q}}`, value)}, Request: []byte(`{}`),
		})
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			operation = op.ID()
		}
		if err := op.End(t.Context(), auditlog.Outcome{
			Result: auditlog.Success, Answer: auditlog.Payload{Received: fmt.Appendf(nil, `{"content":[%q]}`, value)}, Response: []byte(`{}`),
		}); err != nil {
			t.Fatal(err)
		}
	}
	return log, operation
}

func inFolder(t *testing.T, dir, text string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && bytes.Contains(read(t, filepath.Join(dir, e.Name())), []byte(text)) {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestErasedCallIsGoneAndItsOldProofHolds(t *testing.T) {
	for _, name := range []string{"audit.jsonl", "audit.db"} {
		for _, how := range [][]string{{"--whole"}, {"--field", "params", "--field", "result"}} {
			t.Run(name+strings.Join(how, ""), func(t *testing.T) {
				clean(t)
				path := filepath.Join(t.TempDir(), name)
				log, operation := committedLog(t, path)
				// The log's writer stays while others prove and erase.
				if _, stderr, code := command(t, "checkpoint", path); code != 0 {
					t.Fatal(stderr)
				}
				out := filepath.Join(t.TempDir(), "call")
				stdout, stderr, code := command(t, "prove", path, "--operation", operation, "--disclose", "params", "-o", out)
				if code != 0 || !strings.Contains(stdout, "not disclosed: result") {
					t.Fatalf("%d %s%s", code, stdout, stderr)
				}
				proof := read(t, out+".outcome.tlog-proof")
				if bytes.Contains(read(t, out+".outcome.json"), []byte(planted)) || !bytes.Contains(read(t, out+".intent.json"), []byte(planted)) {
					t.Error("not exactly what was asked for is disclosed")
				}
				args := append([]string{"erase", path, "--operation", operation, "--reason", "request 7", "--authorised-by", "privacy officer"}, how...)
				if stdout, stderr, code := command(t, args...); code != 0 {
					t.Fatalf("%d %s%s", code, stdout, stderr)
				}
				call(t, log, "echo", auditlog.Success, "")
				closeLog(t, log)
				if left := inFolder(t, filepath.Dir(path), planted); len(left) > 0 {
					t.Errorf("%v have what was erased", left)
				}
				report := verified(t, path)
				if report.Exit != 0 {
					t.Errorf("exit %d: %+v", report.Exit, report.Findings)
				}
				erased := 0
				for _, f := range report.Findings {
					if strings.HasPrefix(f.Kind, "erased_") && strings.Contains(f.Detail, "privacy officer") && strings.Contains(f.Detail, "request 7") {
						erased += f.Count
					}
				}
				if erased != 2 {
					t.Errorf("%d of 2 erasures are named: %+v", erased, report.Findings)
				}
				// What was proven before the erasure is proven still.
				write(t, out+".outcome.tlog-proof", proof)
				vkey := report.VKey
				if stdout, stderr, code := command(t, "verify-proof", out+".outcome.json", out+".outcome.tlog-proof", "--pub", vkey); code != 0 {
					t.Errorf("%d %s%s", code, stdout, stderr)
				}
				if _, stderr, code := command(t, "export", path); code != 0 {
					t.Errorf("export: %d %s", code, stderr)
				}
			})
		}
	}
}

func TestEraseNamesWhatIsMissing(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, operation := committedLog(t, path)
	closeLog(t, log)
	by := []string{"--reason", "r", "--authorised-by", "a"}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"neither seq nor operation", append([]string{"--whole"}, by...), "either --seq N or --operation ID"},
		{"neither whole nor field", append([]string{"--seq", "3"}, by...), "either --whole or --field"},
		{"both", append([]string{"--seq", "3", "--whole", "--field", "params"}, by...), "either --whole or --field"},
		{"no reason", []string{"--seq", "3", "--whole", "--authorised-by", "a"}, "--reason and --authorised-by"},
		{"unknown operation", append([]string{"--operation", "x", "--whole"}, by...), "no such record"},
		{"not committed", append([]string{"--operation", operation, "--field", "principal"}, by...), "do not commit to principal"},
	} {
		if _, stderr, code := command(t, append([]string{"erase", path}, c.args...)...); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %s", c.name, code, stderr)
		}
	}
	if r := verified(t, path); r.Exit != 0 {
		t.Errorf("%+v", r.Findings)
	}
}
