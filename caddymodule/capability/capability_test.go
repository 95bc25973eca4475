//go:build unix

package capability_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
)

func TestSocketPathTellsTokensApartAndHidesThem(t *testing.T) {
	a, b := capability.New(), capability.New()
	pathA, err := capability.SocketPath("/run/x", a)
	if err != nil {
		t.Fatal(err)
	}
	pathB, err := capability.SocketPath("/run/x", b)
	if err != nil {
		t.Fatal(err)
	}
	if pathA == pathB || filepath.Dir(pathA) != "/run/x" || len(filepath.Base(pathA)) != 37 {
		t.Errorf("%s, %s", pathA, pathB)
	}
	if strings.Contains(pathA, a) || strings.Contains(pathA, a[:8]) {
		t.Error("the path shows the token")
	}
}

func TestTakeLeavesOtherCredentialsAlone(t *testing.T) {
	for name, c := range map[string]struct {
		values, left []string
		token        string
	}{
		"none":           {},
		"another scheme": {values: []string{"Bearer x"}, left: []string{"Bearer x"}},
		"alone":          {values: []string{capability.Authorization("t")}, token: "t"},
		"any case":       {values: []string{"mcp-SHIM t"}, token: "t"},
		"beside another": {values: []string{"Bearer x", "Mcp-Shim t"}, left: []string{"Bearer x"}, token: "t"},
		"twice":          {values: []string{"Mcp-Shim t", "Mcp-Shim u"}},
	} {
		h := http.Header{}
		for _, v := range c.values {
			h.Add("Authorization", v)
		}
		if token := capability.Take(h); token != c.token || !slices.Equal(h.Values("Authorization"), c.left) {
			t.Errorf("%s: %q, left %q", name, token, h.Values("Authorization"))
		}
	}
}

func TestSocketPathRefusesWhatIsNoToken(t *testing.T) {
	good := capability.New()
	for _, token := range []string{"", "x", "../../etc/passwd", good[:42], good + "A", good[:42] + "/", strings.Repeat("A", 86)} {
		if path, err := capability.SocketPath("/run/x", token); err == nil {
			t.Errorf("%q gave %s", token, path)
		}
	}
}

func TestCheckSocketWantsAPrivateSocketInAPrivateFolder(t *testing.T) {
	// Socket paths are short; the test's own folder may not be.
	base, err := os.MkdirTemp("/tmp", "cap")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	dir := filepath.Join(base, "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "a.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(path, 0o600)
	if err := capability.CheckSocket(path); err != nil {
		t.Fatal(err)
	}
	chmod(path, 0o660)
	if capability.CheckSocket(path) == nil {
		t.Error("a socket that a group may use passed")
	}
	chmod(path, 0o600)
	chmod(dir, 0o755)
	if err := capability.CheckSocket(path); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("a folder that others may enter: %v", err)
	}
	chmod(dir, 0o700)
	if err := os.Symlink(path, filepath.Join(dir, "b.sock")); err != nil {
		t.Fatal(err)
	}
	if capability.CheckSocket(filepath.Join(dir, "b.sock")) == nil {
		t.Error("a link passed for a socket")
	}
	if err := os.Symlink(dir, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	if capability.CheckSocket(filepath.Join(base, "link", "a.sock")) == nil {
		t.Error("a link passed for the folder")
	}
	if err := capability.CheckSocket(filepath.Join(dir, "none.sock")); err == nil || !strings.Contains(err.Error(), "runtime directory") {
		t.Errorf("a missing socket: %v", err)
	}
	file := filepath.Join(dir, "file.sock")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if capability.CheckSocket(file) == nil {
		t.Error("a plain file passed for a socket")
	}
}
