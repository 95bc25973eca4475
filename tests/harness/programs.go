// Package harness runs the built programs for the black-box tests: Caddy with a
// given Caddyfile, the shim, the mcp-audit command and npm's servers and
// clients, each in folders of its own and with loopback addresses only.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Patience bounds every wait for an event that should come at once.
const Patience = 30 * time.Second

// Programs are the paths of what is tested and of what tests it.
type Programs struct {
	Root  string // of the repository
	Caddy string
	CLI   string
	Shim  string
	Notes string
	Mock  string
	NPM   string // the folder of npm's packages
}

// Find returns the programs. MCP_AUDIT_BIN names the folder they are in;
// without it they are built once, by make.
func Find(t testing.TB) Programs {
	t.Helper()
	p, err := find()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

var find = sync.OnceValues(func() (Programs, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	if !filepath.IsAbs(file) {
		// Built with -trimpath: go test runs in the package's folder.
		dir, err := os.Getwd()
		if err != nil {
			return Programs{}, err
		}
		for root = dir; ; root = filepath.Dir(root) {
			if _, err := os.Stat(filepath.Join(root, "xcaddy.json")); err == nil {
				break
			}
			if root == filepath.Dir(root) {
				return Programs{}, fmt.Errorf("%s is not inside the repository", dir)
			}
		}
	}
	bin := os.Getenv("MCP_AUDIT_BIN")
	if bin == "" {
		bin = filepath.Join(root, "bin")
		if err := command(root, "make", "build", "node_modules"); err != nil {
			return Programs{}, err
		}
	}
	p := Programs{
		Root:  root,
		Caddy: filepath.Join(bin, "caddy"),
		CLI:   filepath.Join(bin, "mcp-audit"),
		Shim:  filepath.Join(bin, "mcp-audit-shim"),
		Notes: filepath.Join(bin, "notes-server"),
		Mock:  filepath.Join(bin, "tests-mock"),
		NPM:   filepath.Join(root, "tests", "npm"),
	}
	if err := command(filepath.Join(root, "tests"), "go", "build", "-o", p.Mock, "./cmd/mock"); err != nil {
		return Programs{}, err
	}
	for _, program := range []string{p.Caddy, p.CLI, p.Shim, p.Notes, p.Mock, filepath.Join(p.NPM, "node_modules")} {
		if _, err := os.Stat(program); err != nil {
			return Programs{}, fmt.Errorf("%w; run the tests by `make test`", err)
		}
	}
	return p, nil
})

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w\n%s", name, args, err, out)
	}
	return nil
}

// Server returns the command line of one of npm's servers, by its package's
// name after server-.
func (p Programs) Server(name string, args ...string) []string {
	script := filepath.Join(p.NPM, "node_modules", "@modelcontextprotocol", "server-"+name, "dist", "index.js")
	return append([]string{"node", "--require", filepath.Join(p.NPM, "loopback.cjs"), script}, args...)
}

// TempDir returns a folder with a short path, as unix sockets need, that is
// removed when the test ends.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mcpa")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Environment is the process's own without what would lead a program to the
// user's files or keys, plus homes in dir, plus extra.
func Environment(dir string, extra ...string) []string {
	home := filepath.Join(dir, "home")
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + home,
		"XDG_CONFIG_HOME=" + filepath.Join(home, "config"),
		"XDG_DATA_HOME=" + filepath.Join(home, "data"),
		"XDG_RUNTIME_DIR=" + filepath.Join(home, "run"),
		"TMPDIR=" + os.TempDir(),
	}
	return append(env, extra...)
}
