package shim

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
)

// caddyAddress is where the audited route of a running Caddy is.
type caddyAddress struct {
	network, address string // what is dialled
	url              string // of the route
}

// parseCaddyAddress reads the value of --caddy: the URL of a route on this
// machine, or a Unix socket with a route.
func parseCaddyAddress(s string) (caddyAddress, error) {
	if rest, ok := strings.CutPrefix(s, "unix/"); ok {
		path, route, _ := strings.Cut(rest, ":")
		if !filepath.IsAbs(path) {
			return caddyAddress{}, fmt.Errorf("--caddy %s: the socket needs an absolute path, as in unix//run/caddy/mcp.sock:/fs", s)
		}
		if route == "" {
			route = "/"
		}
		u, err := url.ParseRequestURI(route)
		if err != nil || !strings.HasPrefix(route, "/") {
			return caddyAddress{}, fmt.Errorf("--caddy %s: the route after the colon must be a path, as in unix//run/caddy/mcp.sock:/fs", s)
		}
		return caddyAddress{network: "unix", address: path, url: "http://localhost" + u.String()}, nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "" {
		return caddyAddress{}, fmt.Errorf("--caddy %s: use the address of a route, as in http://127.0.0.1:4422/fs or unix//run/caddy/mcp.sock:/fs", s)
	}
	if !loopback(u.Hostname()) {
		return caddyAddress{}, fmt.Errorf("--caddy %s: the route must be on this machine; use a loopback address such as 127.0.0.1", s)
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return caddyAddress{network: "tcp", address: net.JoinHostPort(u.Hostname(), port), url: u.String()}, nil
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// remote is the audit by a running Caddy: the shim listens on a socket that
// only the bearer of this run's capability finds.
type remote struct {
	chain    Chain
	client   *http.Transport
	server   *http.Server
	listener net.Listener
	served   chan struct{}
}

// openRemote begins to listen for Caddy. It does not try to reach Caddy: that
// may be restarted at any time, so each request finds out for itself.
func openRemote(o *Options, handler http.Handler, logger *slog.Logger) (*remote, error) {
	at, err := parseCaddyAddress(o.Caddy)
	if err != nil {
		return nil, err
	}
	token := capability.New()
	path, err := capability.SocketPath(o.RuntimeDir, token)
	if err != nil {
		return nil, err
	}
	listener, err := listenPrivately(path)
	if err != nil {
		return nil, err
	}
	r := &remote{
		listener: listener,
		served:   make(chan struct{}),
		server: &http.Server{
			Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 20,
			ErrorLog: slogAsLog(logger),
		},
		client: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, at.network, at.address)
			},
			DisableCompression:  true,
			MaxIdleConnsPerHost: 64,
		},
	}
	r.chain = Chain{
		URL:       at.url,
		Header:    http.Header{"Authorization": {capability.Authorization(token)}},
		Transport: r.client,
		Unreachable: func(err error) string {
			return fmt.Sprintf("the audit is unavailable, the call was not forwarded: Caddy at %s cannot be reached (%v); start it, or correct --caddy", o.Caddy, cause(err))
		},
	}
	go func() {
		defer close(r.served)
		if err := r.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("the socket for Caddy failed", "error", err)
		}
	}()
	return r, nil
}

// cause is what lies under the wrapping of a dial error; addresses are in the
// sentence already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err
	}
	return err
}

// Chain returns the audited route.
func (r *remote) Chain() Chain { return r.chain }

// Close removes the socket.
func (r *remote) Close(ctx context.Context) error {
	r.client.CloseIdleConnections()
	err := r.server.Shutdown(ctx)
	if err != nil {
		err = r.server.Close()
	}
	<-r.served
	return err
}

// listenPrivately listens on a socket that only this user can reach, in a
// folder that only this user can enter, and removes those of shims that died.
func listenPrivately(path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	const longest = 103 // macOS; Linux takes 107
	if len(path) > longest {
		return nil, fmt.Errorf("the path of the socket for Caddy is longer than %d bytes; give a shorter folder with --runtime-dir", longest)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the socket for Caddy could not be made: %w; give another one with --runtime-dir", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("the folder of the socket for Caddy could not be made: %w; give another one with --runtime-dir", err)
	}
	if err := capability.CheckDir(dir); err != nil {
		return nil, fmt.Errorf("%w; or give another one with --runtime-dir", err)
	}
	removeStale(dir)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for Caddy: %w", err)
	}
	// The folder has kept others out since before the socket was there.
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("listening for Caddy: %w", err)
	}
	return listener, nil
}

// staleAge spares a socket that is being made.
const staleAge = 10 * time.Second

// removeStale removes sockets nobody listens on: their shims were killed.
func removeStale(dir string) {
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		return
	}
	for _, path := range sockets {
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < staleAge {
			continue
		}
		c, err := net.DialTimeout("unix", path, time.Second)
		if err == nil {
			_ = c.Close()
			continue
		}
		if isRefused(err) {
			_ = os.Remove(path)
		}
	}
}

// slogAsLog lets a server of net/http report through our logger.
func slogAsLog(l *slog.Logger) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelDebug)
}
