package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// profileLength is how long a profile is taken.
const profileLength = 8 * time.Second

// profile writes CPU profiles of the audited Caddy, which `go tool pprof` reads.
func profile(ctx context.Context, bin, corpus, to string) (err error) {
	folder, err := os.MkdirTemp("", "mcp-audit-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	upstream, err := serve()
	if err != nil {
		return err
	}
	routes, stopAll, err := startRoutes(ctx, bin, folder, upstream)
	if err != nil {
		return err
	}
	defer stopAll()
	for _, p := range payloads[:5] {
		body, err := os.ReadFile(filepath.Join(corpus, p.file))
		if err != nil {
			return err
		}
		file := filepath.Join(to, strings.TrimSuffix(p.file, ".json")+".pprof")
		done := make(chan error, 1)
		go func() { done <- takeProfile(ctx, routes[written].admin, file) }()
		_, err = load(ctx, routes[written].url, body, p.connections, profileLength+time.Second)
		if err = errors.Join(err, <-done); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return nil
}

func takeProfile(ctx context.Context, admin, file string) (err error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", admin)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1/debug/pprof/profile?seconds=%.0f", profileLength.Seconds()), nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the admin endpoint answers %s", resp.Status)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}
