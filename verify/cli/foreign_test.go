package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// entryVector is the worked example's entry in Integrity v2 form.
func entryVector(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("../../auditlog/testdata/evidence-vector.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Compat struct {
			Line string `json:"line"`
		} `json:"compat_v2"`
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v.Compat.Line
}

func foreignFile(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestVerifyReadsLogsOfOtherSystems(t *testing.T) {
	clean(t)
	line := entryVector(t)
	path := foreignFile(t, "old.jsonl", line)
	stdout, _, code := command(t, "verify", path)
	if code != auditlog.ExitIncomplete || !strings.Contains(stdout, "hint: give the other system's secret") {
		t.Errorf("without a key: %d\n%s", code, stdout)
	}
	t.Setenv("AUDIT_SECRET", vectorSecret)
	stdout, _, code = command(t, "verify", path)
	for _, want := range []string{"format: P4ST4S/mcp-audit", "status: v2_valid 1", "verified: 1", "nothing in this format shows entries that are missing", "records 1..1 are not covered by any external anchor"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if code != auditlog.ExitClean {
		t.Error(code)
	}
	stdout, _, code = command(t, "verify", "--json", path)
	var report struct {
		Format   string         `json:"format"`
		Statuses map[string]int `json:"statuses"`
		Total    int            `json:"total"`
		Exit     int            `json:"exit"`
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || report.Format != "p4st4s" || report.Statuses["v2_valid"] != 1 || report.Total != 1 {
		t.Errorf("%+v %v %d", report, err, code)
	}
	old := foreignFile(t, "older.jsonl", line[:strings.Index(line, `,"integrity"`)]+"}")
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{path, "--require", "v2"}, 0}, {[]string{path, "--require", "v3"}, 1}, {[]string{path, "--key-id", "k1"}, 0}, {[]string{path, "--key-id", "k2"}, 1},
		{[]string{old}, 0}, {[]string{old, "--strict"}, 1}, {[]string{old, "--require-integrity-v2"}, 1}, {[]string{path, "--require", "v1"}, 2},
		{[]string{vector(t), "--require", "v3"}, 0}, {[]string{vector(t), "--require", "v2"}, 0},
	} {
		if stdout, stderr, code := command(t, append([]string{"verify"}, c.args...)...); code != c.code {
			t.Errorf("%q: exit %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
	}
}

func TestAForeignLogInThePlaceOfOursIsADowngrade(t *testing.T) {
	clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret)
	path := foreignFile(t, logName, entryVector(t))
	if err := os.WriteFile(path+".state", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, _, code := command(t, "verify", path); code != auditlog.ExitTampered || !strings.Contains(stdout, "downgrade") {
		t.Errorf("%d\n%s", code, stdout)
	}
}

func TestFoldersAreSearchedForArchivesOfOtherSystems(t *testing.T) {
	clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret)
	dir := t.TempDir()
	for _, name := range []string{"a.jsonl", "a.jsonl.20260101T000000Z", "a.jsonl.20260101T000000Z.1", "b-2026-01-01T00-00-00-000Z.jsonl", "b.jsonl", "c-2026-01-01T00-00-00-000Z.jsonl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(entryVector(t)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	stdout, stderr, code := command(t, "verify", dir)
	if code != 0 || strings.Count(stdout, "log: ") != 3 || strings.Count(stdout, "verified: 3\n") != 1 || strings.Count(stdout, "verified: 2\n") != 1 || strings.Count(stdout, "verified: 1\n") != 1 {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
}

func TestImportStartsALogThatNamesTheOldOne(t *testing.T) {
	clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret+" and more")
	path := foreignFile(t, "old.jsonl", entryVector(t))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "new", logName)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "")
	stdout, stderr, code := command(t, "import", path, "--output", target, "--name", "audit.example/new")
	if code != 0 || !strings.Contains(stdout, "status unchecked") {
		t.Fatalf("%d %s%s", code, stdout, stderr)
	}
	log, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	sum, err := hashFiles([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	genesis, _, _ := strings.Cut(string(log), "\n")
	if want := `"import":{"count":1,"sha256":"` + sum.String() + `","status":"unchecked"}`; !strings.Contains(genesis, want) {
		t.Errorf("no %s in %s", want, genesis)
	}
	if stdout, stderr, code := command(t, "verify", "--strict", target); code != 0 {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Error("the old log was changed", err)
	}
	if _, stderr, code := command(t, "import", path, "--output", target); code != 1 || !strings.Contains(stderr, "exists already") {
		t.Errorf("%d %s", code, stderr)
	}
	if _, stderr, code := command(t, "import", vector(t), "--output", filepath.Join(t.TempDir(), "x.jsonl")); code != 1 || !strings.Contains(stderr, "no log of another system") {
		t.Errorf("%d %s", code, stderr)
	}
}

func TestCheckpointOfAForeignLogIsAnAnchor(t *testing.T) {
	clean(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret)
	line := entryVector(t)
	path := foreignFile(t, "old.jsonl", line)
	dir := t.TempDir()
	keys, signed := filepath.Join(dir, "keys.json"), filepath.Join(dir, "note")
	if _, stderr, code := command(t, "checkpoint", path, "--output", signed); code != 1 || !strings.Contains(stderr, "mcp-audit keygen") {
		t.Errorf("%d %s", code, stderr)
	}
	if _, stderr, code := command(t, "keygen", "--out", keys); code != 0 {
		t.Fatal(stderr)
	}
	if _, stderr, code := command(t, "checkpoint", path, "--keys", keys, "--output", signed); code != 0 {
		t.Fatal(stderr)
	}
	ring, err := auditlog.LoadKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := vkeyOf(ring, "", "legacy/old.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, code := command(t, "verify", path, "--anchor", signed, "--pub", vkey); code != 0 || !strings.Contains(stdout, "anchored: 1 of 1") {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(line, `"request_id":"7"`, `"request_id": "7"`, 1)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if stdout, _, code := command(t, "verify", path, "--anchor", signed, "--pub", vkey); code != auditlog.ExitDiverges {
		t.Errorf("%d\n%s", code, stdout)
	}
}
