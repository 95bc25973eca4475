package clients

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inPlaces puts texts where the clients of one user look for them.
func inPlaces(t *testing.T, texts map[string]string) Place {
	t.Helper()
	home := t.TempDir()
	p := Place{OS: "linux", Home: home, Config: filepath.Join(home, ".config"), Project: filepath.Join(home, "project")}
	for name, text := range texts {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func find(t *testing.T, p Place, client, name string) Server {
	t.Helper()
	all, errs := List(p)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	i := slices.IndexFunc(all, func(s Server) bool { return s.Client.ID == client && s.Name == name })
	if i < 0 {
		t.Fatalf("%s has no %s: %+v", client, name, all)
	}
	return all[i]
}

// wrapCases are configurations and what wrapping the server "fs" makes of them.
var wrapCases = []struct {
	client, file, before, after string
}{
	{"claude-desktop", ".config/Claude/claude_desktop_config.json",
		`{"globalShortcut":"x","mcpServers":{"fs":{"command":"npx","args":["-y","server","/a b"],"env":{"A":"1"}},"other":{"url":"https://x.example/mcp"}}}`,
		`{"globalShortcut":"x","mcpServers":{"fs":{"command":"/bin/mcp-audit-shim","args":["--client-id","claude-desktop","--server-id","fs","--","npx","-y","server","/a b"],"env":{"A":"1"}},"other":{"url":"https://x.example/mcp"}}}`},
	{"claude-code", ".claude.json",
		`{"projects":{"/home/me/~x":{"mcpServers":{"fs":{"command":"node","args":[]}},"n":1.0}}}`,
		`{"projects":{"/home/me/~x":{"mcpServers":{"fs":{"command":"/bin/mcp-audit-shim","args":["--client-id","claude-code","--server-id","fs","--","node"]}},"n":1.0}}}`},
	{"cursor", "project/.cursor/mcp.json",
		"{\n  \"mcpServers\": {\n    \"fs\": { \"command\": \"node\" } // mine\n  }\n}\n",
		"{\n  \"mcpServers\": {\n    \"fs\": { \"command\": \"/bin/mcp-audit-shim\",\"args\":[\"--client-id\",\"cursor\",\"--server-id\",\"fs\",\"--\",\"node\"] } // mine\n  }\n}\n"},
	{"vscode", ".config/Code/User/mcp.json",
		"{\n\t// servers\n\t\"servers\": {\n\t\t\"fs\": {\n\t\t\t\"command\": \"node\", // why\n\t\t\t\"args\": [\"a\"],\n\t\t},\n\t},\n}\n",
		"{\n\t// servers\n\t\"servers\": {\n\t\t\"fs\": {\n\t\t\t\"command\": \"/bin/mcp-audit-shim\", // why\n\t\t\t\"args\": [\"--client-id\",\"vscode\",\"--server-id\",\"fs\",\"--\",\"node\",\"a\"],\n\t\t},\n\t},\n}\n"},
	{"zed", ".config/zed/settings.json",
		`{"context_servers":{"fs":{"command":{"path":"node","args":["a"]}}},/* c */"theme":"x"}`,
		`{"context_servers":{"fs":{"command":{"path":"/bin/mcp-audit-shim","args":["--client-id","zed","--server-id","fs","--","node","a"]}}},/* c */"theme":"x"}`},
	{"continue", ".continue/config.yaml",
		"# mine\nname: x\nmcpServers:\n  - name: other\n    url: https://x.example\n  - name: fs # the files\n    command: npx # by npm\n    args:\n      - -y\n      - \"server\"\n    env:\n      A: \"1\"\nmodels: []\n",
		"# mine\nname: x\nmcpServers:\n  - name: other\n    url: https://x.example\n  - name: fs # the files\n    command: \"/bin/mcp-audit-shim\" # by npm\n    args:\n      - \"--client-id\"\n      - \"continue\"\n      - \"--server-id\"\n      - \"fs\"\n      - \"--\"\n      - \"npx\"\n      - \"-y\"\n      - \"server\"\n    env:\n      A: \"1\"\nmodels: []\n"},
	{"continue", "project/.continue/config.yaml",
		"mcpServers:\n- command: 'npx'\n  name: fs\n",
		"mcpServers:\n- command: \"/bin/mcp-audit-shim\"\n  args:\n    - \"--client-id\"\n    - \"continue\"\n    - \"--server-id\"\n    - \"fs\"\n    - \"--\"\n    - \"npx\"\n  name: fs\n"},
}

func TestWrapChangesTheCommandAndNothingElse(t *testing.T) {
	for _, c := range wrapCases {
		t.Run(c.client+" "+c.file, func(t *testing.T) {
			p := inPlaces(t, map[string]string{c.file: c.before})
			s := find(t, p, c.client, "fs")
			if s.State() != NotAudited {
				t.Errorf("it is %s", s.State())
			}
			got, err := s.Wrap([]byte(c.before), Wrap{Shim: "/bin/mcp-audit-shim"})
			if err != nil || string(got) != c.after {
				t.Fatalf("%v: it became\n%s\nwant\n%s", err, got, c.after)
			}
			backup, err := Replace(s.File, []byte(c.before), got, "now")
			if err != nil {
				t.Fatal(err)
			}
			if old, err := os.ReadFile(backup); err != nil || string(old) != c.before {
				t.Errorf("the backup: %v %s", err, old)
			}
			again := find(t, p, c.client, "fs")
			if again.State() != Audited {
				t.Errorf("it is %s", again.State())
			}
			if _, err := again.Wrap(got, Wrap{Shim: "/bin/mcp-audit-shim"}); !errors.Is(err, ErrState) {
				t.Errorf("wrapped twice: %v", err)
			}
			back, err := again.Unwrap(got)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(again.File, back, 0o600); err != nil {
				t.Fatal(err)
			}
			if last := find(t, p, c.client, "fs"); last.Command != s.Command || strings.Join(last.Arguments, "\n") != strings.Join(s.Arguments, "\n") {
				t.Errorf("unwrapped it starts %q %q, before %q %q", last.Command, last.Arguments, s.Command, s.Arguments)
			}
		})
	}
}

func TestStatesOfServers(t *testing.T) {
	p := inPlaces(t, map[string]string{
		".cursor/mcp.json": `{"mcpServers":{"a":{"command":"C:\\bin\\mcp-audit-shim.exe","args":["--","x"]},"b":{"command":"mcp-audit","args":["wrap","--","x"]},
			"c":{"command":"mcp-audit-shim","args":["--version"]},"d":{"url":"https://u:p@x.example/mcp?k=v"},"e":{"command":7}}}`,
		"project/.mcp.json": "not JSON", "project/.vscode/mcp.json": `{"servers":[]}`, ".config/zed/settings.json": "", ".continue/config.yaml": "a: [",
	})
	all, errs := List(p)
	states := map[string]State{}
	for _, s := range all {
		states[s.Name] = s.State()
	}
	if states["a"] != Audited || states["b"] != Audited || states["c"] != NotAudited || states["d"] != Remote || states["e"] != Unreadable {
		t.Errorf("%v", states)
	}
	if len(errs) != 3 {
		t.Errorf("%v", errs)
	}
}

func TestReplaceKeepsLinksAndModes(t *testing.T) {
	dir := t.TempDir()
	real, link := filepath.Join(dir, "real"), filepath.Join(dir, "link")
	if err := os.WriteFile(real, []byte("a"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	if _, err := Replace(link, []byte("other"), []byte("b"), "1"); err == nil {
		t.Error("a file that was changed meanwhile is replaced")
	}
	if _, err := Replace(link, []byte("a"), []byte("b"), "2"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(link)
	if err != nil || info.Mode().Type() != os.ModeSymlink {
		t.Errorf("the link: %v %v", info, err)
	}
	info, err = os.Stat(real)
	text, _ := os.ReadFile(real)
	if err != nil || info.Mode().Perm() != 0o640 || string(text) != "b" {
		t.Errorf("%v %v %s", info, err, text)
	}
}

// The examples are what wrap would make of a client's own configuration.
func TestExamplesAreAudited(t *testing.T) {
	for name, place := range map[string]string{
		"claude_desktop_config.json": ".config/Claude/claude_desktop_config.json", "claude-code.mcp.json": "project/.mcp.json",
		"cursor.mcp.json": ".cursor/mcp.json", "vscode.mcp.json": "project/.vscode/mcp.json",
		"zed.settings.json": ".config/zed/settings.json", "continue.config.yaml": ".continue/config.yaml",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "examples", "clients", name))
		if err != nil {
			t.Fatal(err)
		}
		all, errs := List(inPlaces(t, map[string]string{place: string(text)}))
		if len(errs) > 0 || len(all) != 1 || all[0].State() != Audited || all[0].Name != "filesystem" || all[0].Command != "/usr/local/bin/mcp-audit-shim" {
			t.Errorf("%s: %v %+v", name, errs, all)
			continue
		}
		if args := strings.Join(all[0].Arguments, " "); !strings.HasPrefix(args, "--client-id "+all[0].Client.ID+" --server-id filesystem -- npx -y @modelcontextprotocol/server-filesystem ") {
			t.Errorf("%s: %s", name, args)
		}
	}
}

func FuzzEditYAML(f *testing.F) {
	for _, c := range wrapCases {
		if c.client == "continue" {
			f.Add([]byte(c.before))
		}
	}
	f.Add([]byte("mcpServers: [{name: fs, command: x}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := yamlServers(text, []string{"mcpServers"})
		if err != nil {
			return
		}
		for _, s := range list {
			s.in, s.Client = file{format: yamlList, keys: []string{"mcpServers"}}, Client{ID: "continue"}
			// What comes out was compared with what was meant, or it is refused.
			_, _ = s.Wrap(text, Wrap{Shim: "/bin/mcp-audit-shim"})
		}
	})
}
