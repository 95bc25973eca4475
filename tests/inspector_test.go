package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// inspectorCase is one run of the Inspector.
type inspectorCase struct {
	name string
	args []string
	// exit is the program's exit code: 5 is a tool's error, 1 one of the server.
	exit int
	// outcome is what the log must have of it.
	outcome string
}

// inspectorCases are the cases of every transport, with a call of a tool that
// the server has.
func inspectorCases(call ...string) []inspectorCase {
	return []inspectorCase{
		{"tools/list", nil, 0, "success"},
		{"tools/call", call, 0, "success"},
		{"resources/list", nil, 0, "success"},
		{"prompts/list", nil, 0, "success"},
	}
}

var (
	// server-everything speaks up to 2025-11-25.
	everythingCases = inspectorCases("--tool-name", "echo", "--tool-arg", "message=hi")
	failingCases    = []inspectorCase{
		{"tools/call", []string{"--tool-name", "get-sum", "--tool-arg", "a=x"}, 5, "tool_error"},
		{"resources/read", []string{"--uri", "demo://nowhere"}, 1, "rpc_error"},
	}
	// The Go SDK's conformance server speaks 2026-07-28.
	conformanceCases = inspectorCases("--tool-name", "test_simple_text")
)

// The Inspector is what server authors try their servers with: it must print
// the same and end the same, whether the product is there or not.
func TestInspectorWorksAsWithoutTheProduct(t *testing.T) {
	conformance := buildConformanceServer(t)
	for _, transport := range []struct {
		name  string
		args  []string
		cases []inspectorCase
		// start returns the target without the product, the one with it, and
		// a function that ends the product and returns its log.
		start     func(t *testing.T, dir string) (direct, audited []string, stop func() string)
		transport string
		revision  string
	}{
		{"Streamable HTTP", []string{"--transport", "http"}, slices.Concat(everythingCases, failingCases), inspectHTTP, "http", legacy},
		{"HTTP+SSE", []string{"--transport", "sse"}, everythingCases, inspectSSE, "http", legacy},
		{"stdio", nil, everythingCases, func(t *testing.T, dir string) ([]string, []string, func() string) {
			return inspectStdio(t, dir, harness.Find(t).Server("everything", "stdio"))
		}, "stdio", legacy},
		{"Streamable HTTP in 2026-07-28", []string{"--transport", "http", "--protocol-era", "modern"}, conformanceCases, func(t *testing.T, dir string) ([]string, []string, func() string) {
			address := harness.FreeAddress(t)
			cmd := exec.Command(conformance, "-http", address)
			cmd.Env = harness.Environment(dir)
			harness.StartServer(t, cmd, address)
			return inspectCaddy(t, harness.Site{Upstream: address}, "/mcp")
		}, "http", modern},
		{"stdio in 2026-07-28", []string{"--protocol-era", "modern"}, conformanceCases, func(t *testing.T, dir string) ([]string, []string, func() string) {
			return inspectStdio(t, dir, []string{conformance})
		}, "stdio", modern},
	} {
		t.Run(transport.name, func(t *testing.T) {
			t.Parallel()
			dir := harness.TempDir(t)
			direct, audited, stop := transport.start(t, dir)
			for _, c := range transport.cases {
				t.Run(strings.Join(append([]string{c.name}, c.args...), " "), func(t *testing.T) {
					args := append(append([]string{"--method", c.name}, c.args...), transport.args...)
					want := inspect(t, dir, direct, args)
					if want.code != c.exit {
						t.Fatalf("without the product it exits with %d, want %d:\n%s%s", want.code, c.exit, want.stdout, want.stderr)
					}
					if got := inspect(t, dir, audited, args); got != want {
						t.Errorf("it differs\nwithout the product: %+v\nwith it:             %+v", want, got)
					}
				})
			}
			log := stop()
			records := harness.Closed(t, log)
			found := make(map[string]int)
			for _, o := range harness.Operations(t, records) {
				if o.Intent.Transport != transport.transport {
					t.Errorf("%s has transport %q", o.Intent.Method, o.Intent.Transport)
				}
				found[o.Intent.Method+" "+o.Outcome.Outcome]++
				// The Inspector leaves without a word: what it or the server had
				// open beside what it was told to do ends in many ways.
				if isOpenEnded := o.Intent.Method == "roots/list" || o.Intent.Method == "subscriptions/listen"; isOpenEnded {
					continue
				}
				if o.Outcome.Revision != transport.revision {
					t.Errorf("%s has revision %q", o.Intent.Method, o.Outcome.Revision)
				}
				if !slices.Contains([]string{"success", "tool_error", "rpc_error"}, o.Outcome.Outcome) {
					t.Errorf("%s: outcome %s %s", o.Intent.Method, o.Outcome.Outcome, o.Outcome.Reason)
				}
			}
			for _, c := range transport.cases {
				if one := c.name + " " + c.outcome; found[one] == 0 {
					t.Errorf("the log has no %s, but %v", one, found)
				}
			}
			harness.VerifyClean(t, log)
		})
	}
}

type inspection struct {
	stdout, stderr string
	code           int
}

// inspect runs the Inspector's command line for a target.
func inspect(t *testing.T, dir string, target, args []string) inspection {
	t.Helper()
	npm := harness.Find(t).NPM
	line := append([]string{filepath.Join(npm, "node_modules", "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"), "--cli"}, target...)
	cmd := exec.Command(inspectorNode(t, npm), append(append(line, "--quiet", "--format", "json"), args...)...)
	// Compiling the Inspector is much of what a run takes.
	cmd.Env = harness.Environment(dir, "NODE_COMPILE_CACHE="+filepath.Join(dir, "compiled"))
	cmd.Dir = dir
	stdout, stderr, code := harness.Run(t, cmd)
	return inspection{stdout, stderr, code}
}

// inspectorNode is a Node.js that is new enough for the Inspector, which npm
// has as a package for Linux; elsewhere it must be the machine's own.
func inspectorNode(t *testing.T, npm string) string {
	t.Helper()
	arch := strings.Replace(runtime.GOARCH, "amd64", "x64", 1)
	node := filepath.Join(npm, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if _, err := os.Stat(node); err != nil {
		return "node"
	}
	return node
}

// buildConformanceServer builds the server that the Go SDK is tested with.
func buildConformanceServer(t *testing.T) string {
	t.Helper()
	server := filepath.Join(harness.TempDir(t), "everything-server")
	build := exec.Command("go", "build", "-o", server, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	build.Dir = filepath.Join(harness.Find(t).Root, "tests")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return server
}

func inspectHTTP(t *testing.T, dir string) (direct, audited []string, stop func() string) {
	return inspectCaddy(t, harness.Site{Upstream: harness.StartEverything(t, dir)}, "/mcp")
}

// inspectSSE audits the transport of 2024-11-05: a stream at one path, and
// messages to the path that its first event names.
func inspectSSE(t *testing.T, dir string) (direct, audited []string, stop func() string) {
	address := harness.FreeAddress(t)
	line := harness.Find(t).Server("everything", "sse")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = harness.Environment(dir, "PORT="+address[strings.LastIndex(address, ":")+1:])
	cmd.Dir = dir
	harness.StartServer(t, cmd, address)
	return inspectCaddy(t, harness.Site{
		Upstream: address,
		Routes:   "@sse path /sse /message\nroute @sse {\nmcp_audit\nreverse_proxy " + address + "\n}",
	}, "/sse")
}

func inspectCaddy(t *testing.T, site harness.Site, path string) (direct, audited []string, stop func() string) {
	t.Helper()
	caddy := harness.StartCaddy(t, site)
	return []string{"http://" + site.Upstream + path}, []string{"http://" + caddy.Listen + path}, func() string {
		caddy.Stop(t)
		return caddy.Log
	}
}

// inspectStdio puts the shim before the command, and nothing else: the log is
// where it is for a user who configured nothing.
func inspectStdio(t *testing.T, dir string, server []string) (direct, audited []string, stop func() string) {
	t.Helper()
	return server, append([]string{harness.Find(t).Shim, "--"}, server...), func() string {
		return filepath.Join(dir, "home", ".mcp-audit", "audit.jsonl")
	}
}
