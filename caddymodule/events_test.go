package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	_ "github.com/caddyserver/caddy/v2/modules/caddyevents/eventsconfig"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule"
)

// heard gets what the events app delivers, across the tests of the process.
var heard = make(chan caddy.Event, 1000)

type listener struct{}

func init() { caddy.RegisterModule(listener{}) }

func (listener) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.mcp_audit_test", New: func() caddy.Module { return new(listener) }}
}

func (listener) Handle(_ context.Context, e caddy.Event) error { heard <- e; return nil }

func (*listener) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { d.Next(); return nil }

var (
	_ caddyevents.Handler   = (*listener)(nil)
	_ caddyfile.Unmarshaler = (*listener)(nil)
)

// listening is the rig's configuration with a listener to some events.
func (r *rig) listening(subdirectives, logOptions string, events ...string) string {
	var on strings.Builder
	for _, name := range events {
		on.WriteString("\t\ton " + name + " mcp_audit_test\n")
	}
	return strings.Replace(r.caddyfile(subdirectives, logOptions), "\tgrace_period 1s\n", "\tgrace_period 1s\n\tevents {\n"+on.String()+"\t}\n", 1)
}

// ready is a site with a readiness endpoint.
func ready(port int) string {
	return fmt.Sprintf("http://127.0.0.1:%d {\n\tbind 127.0.0.1\n\tmcp_audit_health\n}\n", port)
}

func nextHeard(t *testing.T) caddy.Event {
	t.Helper()
	select {
	case e := <-heard:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event was emitted")
		panic("unreachable")
	}
}

func TestDeniedCallIsAnEventWithTheNamesOfItsRecord(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	denying := "policy {\n\trule NO deny {\n\t\ttool echo\n\t\treason \"not this one\"\n\t}\n}"
	if err := r.load(r.listening(denying, "", "mcp_audit_denied")); err != nil {
		t.Fatal(err)
	}
	r.post(echoCall)
	e := nextHeard(t)
	if e.Name() != "mcp_audit_denied" || e.Data["tool_name"] != "echo" || e.Data["rule_id"] != "NO" || e.Data["reason"] != "not this one" || e.Data["log"] != "default" {
		t.Errorf("%s: %v", e.Name(), e.Data)
	}
	found := false
	for _, rec := range r.records() {
		found = found || rec.str("audit_operation_id") == e.Data["audit_operation_id"]
	}
	if !found {
		t.Errorf("no record has the operation %v", e.Data["audit_operation_id"])
	}
	r.verify()
}

func TestReplacedLogIsToldAndSoIsItsReturn(t *testing.T) {
	r := start(t, newUpstream(t, ok), "", "")
	port := freePort(t)
	if err := r.load(r.listening("", "", "mcp_audit_sink_failed", "mcp_audit_chain_refused") + ready(port)); err != nil {
		t.Fatal(err)
	}
	r.post(echoCall)
	r.await(2)
	if status := probe(t, port); status != http.StatusOK {
		t.Errorf("the probe answers %d", status)
	}
	whole, err := os.ReadFile(r.log())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.log(), whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	r.post(echoCall)
	if got := []string{nextHeard(t).Name(), nextHeard(t).Name()}; got[0] != "mcp_audit_sink_failed" || got[1] != "mcp_audit_chain_refused" {
		t.Errorf("events %v", got)
	}
	if status := probe(t, port); status != http.StatusServiceUnavailable {
		t.Errorf("the probe answers %d", status)
	}
	if err := os.WriteFile(r.log(), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.load(r.listening("explain", "", "mcp_audit_sink_recovered") + ready(port)); err != nil {
		t.Fatal(err)
	}
	if e := nextHeard(t); e.Name() != "mcp_audit_sink_recovered" {
		t.Errorf("event %s", e.Name())
	}
	if status := probe(t, port); status != http.StatusOK {
		t.Errorf("the probe answers %d", status)
	}
}

// probe is what a readiness endpoint answers.
func probe(t *testing.T, port int) int {
	t.Helper()
	resp := get(t, fmt.Sprintf("http://127.0.0.1:%d/", port))
	defer resp.Body.Close()
	return resp.StatusCode
}

// TestEventsReferenceIsComplete compares docs/events.md with the program.
func TestEventsReferenceIsComplete(t *testing.T) {
	page, err := os.ReadFile("../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\S+)` \\|").FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, row[1])
	}
	if have := append(slices.Clone(caddymodule.EventNames), caddymodule.AdminPaths()...); !slices.Equal(documented, have) {
		t.Errorf("docs/events.md has %q, the program %q", documented, have)
	}
}
