package tests

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
)

// The examples of docs/identity.md and docs/authentication.md load, with the
// certificates and secrets that they name.
func TestExamplesOfIdentityLoad(t *testing.T) {
	dir := harness.TempDir(t)
	authority := writeAuthority(t, dir)
	writeCertificate(t, filepath.Join(dir, "caddy"), clientCertificate(t, "caddy", authority, authority+".key"))
	for _, name := range []string{"alice", "ci", "files-server"} {
		write(t, filepath.Join(dir, name), []byte(strings.Repeat(name, 32)))
	}
	here := strings.NewReplacer("/etc/ssl/clients.pem", authority, "/etc/ssl/internal.pem", authority,
		"/etc/ssl/caddy.pem", filepath.Join(dir, "caddy.crt"), "/etc/ssl/caddy.key", filepath.Join(dir, "caddy.key"), "/run/secrets/", dir+"/")
	var examples [][]string
	for _, page := range []string{"identity.md", "authentication.md"} {
		text := string(read(t, filepath.Join(harness.Find(t).Root, "docs", page)))
		examples = append(examples, regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$").FindAllStringSubmatch(text, -1)...)
	}
	if len(examples) < 9 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, example := range examples {
		file := filepath.Join(dir, "Caddyfile")
		write(t, file, []byte(here.Replace(example[1])))
		cmd := exec.Command(harness.Find(t).Caddy, "validate", "--config", file)
		cmd.Env = harness.Environment(dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("example %d does not load: %v\n%s", i+1, err, out)
		} else if strings.Contains(string(out), "not formatted") {
			t.Errorf("example %d is not formatted as caddy fmt does", i+1)
		}
	}
}

// A shim's records name its user and run, the run's start its process, and the
// first call what the client says of itself.
func TestShimNamesItsUserProcessAndClient(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.TempDir(t)
	shim := harness.StartShim(t, dir, append([]string{"--client-id", "desk", "--"}, mock(t, dir)...)...)
	shim.Initialize(t)
	shim.Call(t, call("1", "echo", `{"m":"x"}`))
	process := shim.Cmd.Process.Pid
	if err := shim.In.Close(); err != nil {
		t.Fatal(err)
	}
	shim.Exit(t)
	run, said := "", false
	for _, r := range harness.ReadLog(t, harness.ShimLog(dir)) {
		switch {
		case r.Kind == "start":
			if want := fmt.Sprintf(`"actor":"mcp-audit-shim, process %d of %d"`, process, os.Getpid()); !strings.Contains(r.Line, want) {
				t.Errorf("record %s lacks %s", r.Line, want)
			}
			run = runOf(r.Line)
		case r.Traffic():
			if r.Principal["subject"] != me.Username || r.Principal["source"] != "shim" || r.Principal["client_id"] != "desk" || runOf(r.Line) != run {
				t.Errorf("record %s", r.Line)
			}
			said = said || r.Method == "initialize" && strings.Contains(r.Line, `"client_info":{`)
		}
	}
	if run == "" || !said {
		t.Errorf("run %q, the client's name is recorded: %t", run, said)
	}
}

func runOf(line string) string {
	if m := regexp.MustCompile(`"run":"([^"]+)"`).FindStringSubmatch(line); m != nil {
		return m[1]
	}
	return ""
}
