//go:build unix

package caddymodule

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/capability"
)

// withCapability is a request as the handler leaves it.
func withCapability(token string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/fs", nil)
	vars := map[string]any{}
	r = r.WithContext(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, vars))
	if token != "" {
		caddyhttp.SetVar(r.Context(), capabilityVar, token)
	}
	return r
}

func TestShimUpstreamsLeadToTheShimThatSentTheRequest(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "up") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	u := &ShimUpstreams{RuntimeDir: dir}
	if err := u.Provision(caddy.Context{}); err != nil {
		t.Fatal(err)
	}
	token := capability.New()
	path, err := capability.SocketPath(dir, token)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := u.GetUpstreams(withCapability(token))
	if err != nil || len(got) != 1 || got[0].Dial != "unix/"+path {
		t.Fatalf("%v, %v", got, err)
	}
	for name, other := range map[string]string{
		"none": "", "another shim's": capability.New(), "a path": "../../" + filepath.Base(path), "the path's name": filepath.Base(path),
	} {
		if got, err := u.GetUpstreams(withCapability(other)); err == nil || got != nil {
			t.Errorf("capability %s leads to %v", name, got)
		} else if other != "" && strings.Contains(err.Error(), other) {
			t.Errorf("the error tells the capability: %v", err)
		}
	}
}

func TestShimUpstreamsCaddyfile(t *testing.T) {
	for input, want := range map[string]string{
		"mcp_shim":                                        "",
		"mcp_shim {\n runtime_dir /run/x\n}":              "/run/x",
		"mcp_shim /run/x":                                 "error: wrong argument count",
		"mcp_shim {\n runtime_dir\n}":                     "error: wrong argument count",
		"mcp_shim {\n runtime_dir /a /b\n}":               "error: wrong argument count",
		"mcp_shim {\n runtime_dir /a\n runtime_dir /b\n}": "error: duplicate subdirective",
		"mcp_shim {\n runtime /a\n}":                      "error: unrecognized subdirective",
	} {
		u := new(ShimUpstreams)
		err := u.UnmarshalCaddyfile(caddyfile.NewTestDispenser(input))
		if text, wantErr := strings.CutPrefix(want, "error: "); wantErr {
			if err == nil || !strings.Contains(strings.ToLower(err.Error()), text) {
				t.Errorf("%q: %v, want %q", input, err, text)
			}
			continue
		}
		if err != nil || u.RuntimeDir != want {
			t.Errorf("%q: %q, %v", input, u.RuntimeDir, err)
		}
	}
}

func TestShimUpstreamsRefuseAFolderThatResolvesToNothing(t *testing.T) {
	u := &ShimUpstreams{RuntimeDir: "{env.NO_SUCH_VARIABLE_HERE}"}
	if err := u.Provision(caddy.Context{}); err == nil || !strings.Contains(err.Error(), "runtime_dir") {
		t.Errorf("%v", err)
	}
}
