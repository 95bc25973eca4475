package harness

import (
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// StartEverything starts npm's server-everything over HTTP and returns its
// host:port. It has no option for the address and would listen on every
// interface, so a preloaded script binds it to 127.0.0.1.
func StartEverything(t testing.TB, dir string) string {
	t.Helper()
	address := FreeAddress(t)
	line := Find(t).Server("everything", "streamableHttp")
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = Environment(dir, "PORT="+address[strings.LastIndex(address, ":")+1:])
	cmd.Dir = dir
	awaitListener(t, Launch(t, cmd), address)
	return address
}

// Filesystem is the command line of npm's server-filesystem for a folder.
func Filesystem(t testing.TB, folder string) []string {
	resolved, err := filepath.EvalSymlinks(folder)
	if err != nil {
		t.Fatal(err)
	}
	return Find(t).Server("filesystem", resolved)
}

// StartNotes starts the example server over HTTP and returns its host:port.
func StartNotes(t testing.TB, dir string, args ...string) string {
	t.Helper()
	address := FreeAddress(t)
	cmd := exec.Command(Find(t).Notes, append([]string{"-http", address}, args...)...)
	cmd.Env = Environment(dir)
	cmd.Dir = dir
	awaitListener(t, Launch(t, cmd), address)
	return address
}

// StartServer starts a program that listens on a given address, and returns
// when it does.
func StartServer(t testing.TB, cmd *exec.Cmd, address string) *Process {
	t.Helper()
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Fatalf("another program listens on %s; stop it", address)
	}
	server := Launch(t, cmd)
	awaitListener(t, server, address)
	return server
}

func awaitListener(t testing.TB, server *Process, address string) {
	t.Helper()
	Eventually(t, server.Cmd.Path+" listens on "+address, func() bool {
		if !server.Running() {
			t.Fatalf("%s ended:\n%s", server.Cmd.Path, server.Err)
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}
