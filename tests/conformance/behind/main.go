//go:build linux

// Command behind runs a client of the conformance suite behind the product, at
// the address of the suite's own server.
//
//	behind CLIENT [ARGUMENT...] URL
//	behind -loopback COMMAND [ARGUMENT...]
//
// The suite starts a server for each scenario and appends its URL to the client's
// command. The server's address is part of what is tested (a token's audience, a
// resource's name), so the product must have the same one. The client and a Caddy
// therefore run in a network namespace of their own, where that port is Caddy's.
// All other ports of the suite, its authorization servers, are relayed unchanged,
// as is the server's port under another number, for Caddy.
//
// The suite itself has to run in a namespace too: what listens there is its own.
// With -loopback the program raises that namespace's loopback interface, which is
// down at first, and becomes the command.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// upstreamPort is where Caddy finds the suite's server. The suite's own ports are
// picked by the system, which gives no such low one.
const upstreamPort = "1024"

func main() {
	arguments := os.Args[1:]
	if len(arguments) > 1 && arguments[0] == "-loopback" {
		fatal(become(arguments[1:]))
	}
	if len(arguments) < 2 {
		fatal(errors.New("usage: behind CLIENT [ARGUMENT...] URL"))
	}
	// The namespace belongs to this thread and to what it starts.
	runtime.LockOSThread()
	status, err := behind(arguments)
	if err != nil {
		fatal(err)
	}
	os.Exit(status)
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "behind:", err)
	os.Exit(2)
}

func become(command []string) error {
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	if err := raiseLoopback(); err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}

func behind(client []string) (int, error) {
	release, err := turn(os.Getenv("CONFORMANCE_TURNS"))
	if err != nil {
		return 0, err
	}
	defer release()

	server, err := url.Parse(client[len(client)-1])
	if err != nil {
		return 0, err
	}
	ports, err := listening()
	if err != nil {
		return 0, err
	}
	relays := newRelays()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("a network namespace: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return 0, err
	}
	for _, port := range ports {
		local := port
		if port == server.Port() {
			local = upstreamPort
		}
		if err := relays.add(local, port); err != nil {
			return 0, err
		}
	}

	folder, err := os.MkdirTemp(os.Getenv("CONFORMANCE_LOGS"), "client-")
	if err != nil {
		return 0, err
	}
	config := filepath.Join(folder, "Caddyfile")
	if err := os.WriteFile(config, []byte(caddyfile(folder, server.Port())), 0o600); err != nil {
		return 0, err
	}
	caddy := exec.Command(os.Getenv("CONFORMANCE_CADDY"), "run", "--config", config, "--adapter", "caddyfile")
	caddy.Env = append(os.Environ(), "XDG_DATA_HOME="+folder, "XDG_CONFIG_HOME="+folder)
	output, err := os.Create(filepath.Join(folder, "caddy.log"))
	if err != nil {
		return 0, err
	}
	defer output.Close()
	caddy.Stdout, caddy.Stderr = output, output
	caddy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := caddy.Start(); err != nil {
		return 0, err
	}
	defer func() {
		_ = caddy.Process.Signal(syscall.SIGTERM)
		_ = caddy.Wait()
	}()
	if err := answers("127.0.0.1:" + server.Port()); err != nil {
		return 0, fmt.Errorf("%w; see %s", err, output.Name())
	}

	run := exec.Command(client[0], client[1:]...)
	run.Stdin, run.Stdout, run.Stderr = os.Stdin, os.Stdout, os.Stderr
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := run.Start(); err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for received := range signals {
			_ = run.Process.Signal(received)
		}
	}()
	_ = run.Wait()
	return run.ProcessState.ExitCode(), nil
}

func caddyfile(folder, port string) string {
	return fmt.Sprintf(`{
	admin off
	auto_https off
	persist_config off
	grace_period 500ms
	mcp_audit {
		log default {
			output jsonl %s/audit.jsonl
		}
	}
}

http://:%s {
	route {
		mcp_audit {
			forward_headers Authorization
			%s
		}
		reverse_proxy 127.0.0.1:%s {
			flush_interval -1
		}
	}
}
`, folder, port, os.Getenv("CONFORMANCE_OPTION"), upstreamPort)
}

// turn waits for one of the files of a folder to be free: the suite starts all
// its clients at once, and so many Caddys would only wait for each other.
func turn(folder string) (release func(), err error) {
	names, err := filepath.Glob(filepath.Join(folder, "turn-*"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no turns in %q", folder)
	}
	for {
		for _, name := range names {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				return func() { _ = file.Close() }, nil
			}
			_ = file.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// listening lists the TCP ports that something in this namespace listens on.
func listening() ([]string, error) {
	var ports []string
	seen := map[string]bool{}
	for _, table := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		file, err := os.Open(table)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != "0A" {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			number, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				return nil, err
			}
			port := strconv.FormatUint(number, 10)
			if !seen[port] {
				seen[port] = true
				ports = append(ports, port)
			}
		}
		_ = file.Close()
	}
	return ports, nil
}

type target struct {
	connection net.Conn
	port       string
}

// relays joins connections of the namespace to ports outside of it. A socket
// belongs to the namespace of the thread that made it, so the dialing goroutines
// are started before the namespace is entered.
type relays struct{ targets chan target }

func newRelays() *relays {
	r := &relays{targets: make(chan target)}
	go func() {
		for t := range r.targets {
			go join(t)
		}
	}()
	return r
}

func (r *relays) add(local, port string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:"+local)
	if err != nil {
		return err
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			r.targets <- target{connection, port}
		}
	}()
	return nil
}

func join(t target) {
	defer t.connection.Close()
	server, err := net.Dial("tcp", "localhost:"+t.port)
	if err != nil {
		return
	}
	defer server.Close()
	done := make(chan struct{}, 2)
	pipe := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if half, ok := to.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite()
		} else {
			_ = to.Close()
			_ = from.Close()
		}
		done <- struct{}{}
	}
	go pipe(server, t.connection)
	go pipe(t.connection, server)
	<-done
	<-done
}

func answers(address string) error {
	deadline := time.Now().Add(time.Minute)
	for {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			return connection.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// raiseLoopback sets the flags of lo by SIOCSIFFLAGS. Its struct ifreq is the
// name in 16 bytes, and a union of 24 that begins with the flags.
func raiseLoopback() error {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(socket)
	var request struct {
		name  [16]byte
		flags uint16
		_     [22]byte
	}
	copy(request.name[:], "lo")
	request.flags = syscall.IFF_UP | syscall.IFF_RUNNING
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(socket), syscall.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("interface lo: %w", errno)
	}
	return nil
}
