//go:build !cgo

package caddymodule_test

import (
	"strings"
	"testing"
)

func TestADatabaseNeedsCgo(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	config := strings.Replace(r.caddyfile("", ""), "output jsonl", "output sqlite", 1)
	if err := r.load(config); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=1") || !strings.Contains(err.Error(), "Caddyfile:") {
		t.Errorf("%v", err)
	}
}

func TestADashboardNeedsCgo(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: newUpstream(t, ok)}
	config := r.caddyfile("", "") + "http://127.0.0.1:9 {\n mcp_audit_dashboard\n}\n"
	if err := r.load(config); err == nil || !strings.Contains(err.Error(), "CGO_ENABLED=1") {
		t.Errorf("%v", err)
	}
}
