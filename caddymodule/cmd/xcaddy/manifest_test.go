package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

func TestManifestPinsTheCaddyOfTheModule(t *testing.T) {
	m, err := ReadManifest(filepath.Join(root, "xcaddy.json"))
	if err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(mod), "module "+m.Module+"\n") {
		t.Errorf("xcaddy.json builds %s, which is not the module of go.mod", m.Module)
	}
	found := regexp.MustCompile(`(?m)^\tgithub\.com/caddyserver/caddy/v2 (\S+)$`).FindSubmatch(mod)
	if found == nil || string(found[1]) != m.CaddyVersion {
		t.Errorf("xcaddy.json builds Caddy %s, go.mod has %q", m.CaddyVersion, found)
	}
}

func TestManifestMistakesAreNamed(t *testing.T) {
	const good = `{"xcaddy_version":"v0.4.5","caddy_version":"v2.11.9","module":"example.com/m"}`
	cases := []struct{ name, text, want string }{
		{"no file", "", "reading the build manifest"},
		{"unknown member", `{"caddy":"v2.11.9"}`, `unknown field "caddy"`},
		{"no release", `{"xcaddy_version":"latest","caddy_version":"v2.11.9","module":"m"}`, "xcaddy_version"},
		{"no module", `{"xcaddy_version":"v0.4.5","caddy_version":"v2.11.9"}`, "module is missing"},
		{"two objects", good + good, "there is more after the object"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "xcaddy.json")
			if c.text != "" {
				if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := ReadManifest(path); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestManifestBecomesAnXcaddyCommand(t *testing.T) {
	m := &Manifest{XcaddyVersion: "v0.4.5", CaddyVersion: "v2.11.9", Module: "example.com/m", Tags: []string{"a", "b"}, CGO: true}
	args, err := m.Args("/src", "/out/caddy")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"run", "github.com/caddyserver/xcaddy/cmd/xcaddy@v0.4.5", "build", "v2.11.9",
		"--with", "example.com/m@v0.0.0=/src", "--output", "/out/caddy",
	}
	if !slices.Equal(args, want) {
		t.Errorf("arguments %q, want %q", args, want)
	}
	env := m.Env(nil, "-X p.v=1")
	want = []string{"CGO_ENABLED=1", "XCADDY_GO_BUILD_FLAGS=-trimpath -tags a,b -ldflags '-s -w -X p.v=1'"}
	if !slices.Equal(env, want) {
		t.Errorf("environment %q, want %q", env, want)
	}
}
