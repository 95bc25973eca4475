package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// route is one way: its URL and the Caddy on it, if any.
type route struct {
	url   string
	cmd   *exec.Cmd
	admin string // the socket of its Caddy's admin endpoint
}

// cpu is the processor time that the way's Caddy has used, 0 if there is none
// or the operating system does not tell.
func (r *route) cpu() time.Duration {
	if r.cmd == nil {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// The command's name, in parentheses, may contain spaces.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	const utime, stime, tick = 11, 12, 10 * time.Millisecond
	user, err1 := strconv.Atoi(fields[utime])
	system, err2 := strconv.Atoi(fields[stime])
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}

const caddyfile = `{
	admin %s
	auto_https off
	grace_period 2s
	log {
		level ERROR
	}
	servers {
		protocols h1
	}
%s}
http://%s {
	bind 127.0.0.1
	route /mcp* {
		%s
		reverse_proxy %s
	}
}
`

const logBlock = `	mcp_audit {
		log default {
			output jsonl %s
			durability %s
		}
	}
`

// startRoutes starts a Caddy for each way but the direct one.
func startRoutes(ctx context.Context, bin, folder, upstream string) (map[string]*route, func(), error) {
	routes := map[string]*route{direct: {url: "http://" + upstream + "/mcp"}}
	stopAll := func() {
		for _, r := range routes {
			if r.cmd != nil && r.cmd.ProcessState == nil {
				r.cmd.Process.Signal(os.Interrupt)
				timer := time.AfterFunc(10*time.Second, func() { r.cmd.Process.Kill() })
				r.cmd.Wait()
				timer.Stop()
			}
		}
	}
	for _, way := range []struct{ name, durability string }{{plain, ""}, {written, "written"}, {durable, "durable"}} {
		dir := filepath.Join(folder, way.durability)
		logs, handler := "", ""
		if way.durability != "" {
			logs = fmt.Sprintf(logBlock, filepath.Join(dir, "audit.jsonl"), way.durability)
			handler = "mcp_audit"
		}
		admin := filepath.Join(folder, "admin-"+way.durability+".sock")
		r, err := startCaddy(ctx, bin, folder, func(address string) string {
			return fmt.Sprintf(caddyfile, "unix/"+admin, logs, address, handler, upstream)
		})
		if err != nil {
			stopAll()
			return nil, nil, fmt.Errorf("%s: %w", way.name, err)
		}
		r.admin = admin
		routes[way.name] = r
	}
	return routes, stopAll, nil
}

// startCaddy starts a Caddy on a free port and returns when that is open.
func startCaddy(ctx context.Context, bin, folder string, config func(address string) string) (*route, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := listener.Addr().String()
	listener.Close()
	file := filepath.Join(folder, "Caddyfile-"+address[strings.LastIndex(address, ":")+1:])
	if err := os.WriteFile(file, []byte(config(address)), 0o600); err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "caddy"), "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+folder, "XDG_CONFIG_HOME="+folder, "XDG_DATA_HOME="+folder)
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; run `make build` first", err)
	}
	for range 500 {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			return &route{url: "http://" + address + "/mcp", cmd: cmd}, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	cmd.Process.Kill()
	cmd.Wait()
	return nil, fmt.Errorf("caddy does not listen:\n%s", &stderr)
}
