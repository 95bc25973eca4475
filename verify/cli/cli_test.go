package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/verify/release"
)

var update = flag.Bool("update", false, "write the golden files anew")

// vectorSecret sealed testdata/vector.jsonl, the worked example of the format.
const vectorSecret = "example secret, never use it 0001"

func TestMain(m *testing.M) {
	flag.Parse()
	time.Local = time.UTC
	os.Exit(m.Run())
}

// clean removes the environment that commands look at, and gives them an empty
// home.
func clean(t *testing.T) (home string) {
	t.Helper()
	home = t.TempDir()
	for name, value := range map[string]string{
		"HOME": home, "MCP_AUDIT_DIR": "", "MCP_AUDIT_SIGNING_SECRET": "", "AUDIT_SECRET": "",
	} {
		t.Setenv(name, value)
	}
	return home
}

// command runs a command line as the program does.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	root := New()
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(t.Context())
	complain(cmd, err)
	checkReports(t, args, out.String())
	return out.String(), errs.String(), ExitCode(err)
}

// vector copies the worked example to a folder of its own and returns its path.
func vector(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("testdata/vector.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	write(t, path, data)
	return path
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// golden compares an output with a file; folders in it become LOGDIR.
func golden(t *testing.T, name, folder, got string) {
	t.Helper()
	got = strings.ReplaceAll(got, folder, "LOGDIR")
	path := filepath.Join("testdata", name+".golden")
	if *update {
		write(t, path, []byte(got))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output differs from %s:\n%s", path, got)
	}
}

const vectorKey = "audit.example/gateway-1/i0+4375cd69+ASVDuS/xCVURR2rcg2nbbdyTNmWhGXjdoUBO4QZsqVWd"

func TestOutputsOfTheWorkedExample(t *testing.T) {
	flip := func(data []byte) []byte { return bytes.Replace(data, []byte(`"text":"ok"`), []byte(`"text":"no"`), 1) }
	cut := func(data []byte) []byte { return data[:bytes.IndexByte(data, '\n')+1] }
	cases := []struct {
		name   string
		args   []string
		secret bool
		change func([]byte) []byte
		anchor bool
		code   int
	}{
		{name: "verify", args: []string{"verify", "LOG"}, secret: true},
		{name: "verify-json", args: []string{"verify", "--json", "LOG"}, secret: true},
		{name: "verify-anchored", args: []string{"verify", "LOG", "--anchor", "NOTE"}, secret: true, anchor: true},
		{name: "verify-no-key", args: []string{"verify", "LOG"}, code: 3},
		{name: "verify-flipped", args: []string{"verify", "LOG"}, secret: true, change: flip, code: 1},
		{name: "verify-flipped-json", args: []string{"verify", "LOG", "--json"}, secret: true, change: flip, code: 1},
		{name: "verify-cut", args: []string{"verify", "LOG", "--anchor", "NOTE"}, secret: true, anchor: true, change: cut, code: 4},
		{name: "verify-empty", args: []string{"verify", "LOG"}, secret: true, change: func([]byte) []byte { return nil }, code: 1},
		{name: "tail", args: []string{"tail", "LOG"}},
		{name: "tail-json", args: []string{"tail", "--json", "LOG"}},
		{name: "show", args: []string{"show", "2", "LOG"}},
		{name: "show-operation", args: []string{"show", "019e5f21-975c-70a1-a2a3-a4a5a6a7a8a9", "LOG"}},
		{name: "show-raw", args: []string{"show", "--raw", "01KSFJ35TW2491650N2RBHG68T", "LOG"}},
		{name: "show-genesis", args: []string{"show", "0", "LOG"}},
		{name: "pubkey", args: []string{"pubkey", "LOG"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			clean(t)
			if c.secret {
				t.Setenv("MCP_AUDIT_SIGNING_SECRET", vectorSecret)
			}
			log := vector(t)
			note := filepath.Join(filepath.Dir(log), "held.checkpoint")
			if c.anchor {
				data, err := os.ReadFile("testdata/vector.checkpoint")
				if err != nil {
					t.Fatal(err)
				}
				write(t, note, data)
			}
			if c.change != nil {
				data, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				write(t, log, c.change(data))
			}
			args := make([]string, len(c.args))
			for i, a := range c.args {
				args[i] = strings.NewReplacer("LOG", log, "NOTE", note).Replace(a)
			}
			stdout, stderr, code := command(t, args...)
			if code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			text := stdout
			if stderr != "" {
				text += "--- stderr\n" + stderr
			}
			golden(t, c.name, filepath.Dir(log), text)
		})
	}
}

func TestUsageMistakesExitWithTwoAndNameTheRemedy(t *testing.T) {
	clean(t)
	log := vector(t)
	cases := []struct {
		args []string
		want string
	}{
		{[]string{"nothing"}, `unknown command "nothing"`},
		{[]string{"--nothing"}, "--help"},
		{[]string{"verify", "--nothing"}, "mcp-audit verify --help"},
		{[]string{"verify"}, "MCP_AUDIT_DIR"},
		{[]string{"verify", "/does/not/exist"}, "/does/not/exist"},
		{[]string{"verify", t.TempDir()}, "no log (*.jsonl, *.db)"},
		{[]string{"verify", "--format", "csv", log}, "auto, jsonl or sqlite"},
		{[]string{"verify", "--max-line", "12 parsecs", log}, "32MiB"},
		{[]string{"verify", "--max-line", "10", log}, "256 bytes"},
		{[]string{"verify", "--jobs", "-1", log}, "negative"},
		{[]string{"verify", "--pub", "nonsense", log}, "NAME+HASH+KEY"},
		{[]string{"verify", "--keys", "/does/not/exist", log}, "reading the keys"},
		{[]string{"verify", "--anchor", "/does/not/exist", log}, "reading the anchor"},
		{[]string{"show"}, "mcp-audit show --help"},
		{[]string{"tail", "-n", "-1", log}, "negative"},
		{[]string{"keygen", "--key-id", "NOT VALID"}, "NOT VALID"},
		{[]string{"recover", log}, "--accept-chain-break"},
	}
	for _, c := range cases {
		_, stderr, code := command(t, c.args...)
		if code != 2 || !strings.Contains(stderr, c.want) || !strings.HasPrefix(stderr, "mcp-audit: ") {
			t.Errorf("%q: exit %d, %s", c.args, code, stderr)
		}
	}
}

func TestFailuresExitWithOne(t *testing.T) {
	clean(t)
	log := vector(t)
	for _, args := range [][]string{
		{"show", "77", log},
		{"tail", filepath.Join(t.TempDir(), "none.jsonl")},
		{"checkpoint", filepath.Join(t.TempDir(), "none.jsonl")},
		{"checkpoint", log}, // no keys
		{"pubkey", filepath.Join(t.TempDir(), "none.jsonl")},
	} {
		if _, stderr, code := command(t, args...); code != 1 || stderr == "" {
			t.Errorf("%q: exit %d, %s", args, code, stderr)
		}
	}
}

func TestThirdPartyNeedsThePublicKeyAlone(t *testing.T) {
	clean(t)
	log := vector(t)
	// The worked example has no checkpoint in it: nothing but its chain can be
	// checked with a public key.
	if _, _, code := command(t, "verify", log, "--pub", vectorKey); code != 3 {
		t.Errorf("exit %d", code)
	}
	stdout, _, code := command(t, "verify", "--json", log, "--pub", strings.Replace(vectorKey, "gateway-1", "gateway-2", 1))
	if code != 2 || stdout != "" {
		t.Errorf("a vkey of another name: exit %d %s", code, stdout)
	}
}

func TestVersionOptionNamesTheProgram(t *testing.T) {
	stdout, _, code := command(t, "--version")
	if code != 0 || stdout != release.Text("mcp-audit")+"\n" {
		t.Errorf("exit %d %s", code, stdout)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		if c.Short == "" || len(c.Long) < 100 || c.Example == "" {
			t.Errorf("%s: no help", c.CommandPath())
		}
		for _, line := range strings.Split(c.Long, "\n") {
			if len([]rune(line)) > 80 {
				t.Errorf("%s: help line is too long: %s", c.CommandPath(), line)
			}
		}
	}
	check(New())
	for _, c := range withSub(Commands()) {
		check(c)
	}
	if len(Hosted()) != len(Commands()) {
		t.Error("Hosted lacks commands")
	}
}

func TestReportJSONHasTheMembersOfTheFormat(t *testing.T) {
	clean(t)
	t.Setenv("AUDIT_SECRET", vectorSecret)
	stdout, _, _ := command(t, "verify", "--json", vector(t))
	var report map[string]any
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"origin", "records", "kinds", "mac", "watermarks", "findings", "exit", "verified", "invalid", "legacy", "unsigned", "total"} {
		if _, ok := report[name]; !ok {
			t.Errorf("no member %s in %s", name, stdout)
		}
	}
}

func TestTheProgramDoesNotLinkCaddy(t *testing.T) {
	cmd := exec.CommandContext(context.Background(), "go", "list", "-deps", "../../verify/...", "../../auditlog/...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	// Conditions of policies need CEL, and CEL protobuf; nothing needs gRPC.
	forbidden := regexp.MustCompile(`(?m)^(github\.com/(caddyserver|caddy-mcp-audit/mcp-audit/(shim|caddymodule$))|modernc\.org|google\.golang\.org/(grpc|api|appengine)).*$`)
	if found := forbidden.FindAllString(string(out), -1); len(found) > 0 {
		t.Errorf("linked: %q", found)
	}
	if !strings.Contains(string(out), "github.com/caddy-mcp-audit/mcp-audit/verify/cli") {
		t.Error("the list does not have the commands")
	}
}

func TestTextFromALogCannotDriveTheTerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü ✓":     "plain ü ✓",
		"\x1b[31mred":   `\u001b[31mred`,
		"a\u202eb":      `a\u202eb`,
		"c1 \u009b0m":   `c1 \u009b0m`,
		"new\nline":     `new\u000aline`,
		"tag\U000E0041": `tag\udb40\udc41`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestByteSizes(t *testing.T) {
	for text, want := range map[string]int{"32MiB": 32 << 20, "4096": 4096, "1 KiB": 1024, "12B": 12, "1GiB": 1 << 30} {
		var s byteSize
		if err := s.Set(text); err != nil || int(s) != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	if s := byteSize(auditlog.MaxLine); s.String() != "32MiB" {
		t.Error(s.String())
	}
	for _, text := range []string{"", "MiB", "-1", "9999GiB", "x"} {
		if err := new(byteSize).Set(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
