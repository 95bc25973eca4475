package caddymodule_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddyserver/caddy/v2/caddyconfig"
)

// streaming is a server whose stream ends when the test says so.
func streaming(t *testing.T) (up *upstream, release chan struct{}) {
	release = make(chan struct{})
	up = newUpstream(t, nil)
	up.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body := readBody(t, req)
		if !strings.Contains(body, "slow") {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":7,"result":{}}`))
			return
		}
		send := sse(w)
		send(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		select {
		case <-release:
			send(`{"jsonrpc":"2.0","id":7,"result":{}}`)
		case <-req.Context().Done():
		}
	})
	return up, release
}

var slowCall = strings.Replace(echoCall, "echo", "slow", 1)

func TestReloadLeavesAnOpenStreamItsOutcome(t *testing.T) {
	up, release := streaming(t)
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, slowCall)
	defer resp.Body.Close()
	stream := newReader(resp.Body)
	nextEvent(t, stream)
	if err := r.load(r.caddyfile("explain", "")); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.post(echoCall); status != 200 {
		t.Errorf("status after the reload: %d", status)
	}
	r.await(3) // the quick call is over before the slow one ends
	close(release)
	nextEvent(t, stream)
	got := r.await(4)
	if got[3].str("outcome") != "success" || got[3].str("audit_operation_id") != got[0].str("audit_operation_id") {
		t.Errorf("records:\n%s", show(got))
	}
	if got[0].str("run") != got[1].str("run") {
		t.Error("the two configurations did not share the log")
	}
	r.verify()
}

func TestReloadThatRemovesTheHandlerLeavesAnOpenStreamItsOutcome(t *testing.T) {
	up, release := streaming(t)
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, slowCall)
	defer resp.Body.Close()
	stream := newReader(resp.Body)
	nextEvent(t, stream)
	if err := r.load("{\n\tadmin off\n\tpersist_config off\n\tgrace_period 1s\n}\n"); err != nil {
		t.Fatal(err)
	}
	close(release)
	nextEvent(t, stream)
	if got := r.await(2); got[1].str("outcome") != "success" {
		t.Errorf("records:\n%s", show(got))
	}
	r.verify()
}

func TestRejectedReloadIsHarmless(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.post(echoCall)
	for _, broken := range []string{
		r.caddyfile("log missing", ""),
		r.caddyfile("", "secret {env.MCP_AUDIT_TEST_UNSET}"),
		strings.Replace(r.caddyfile("", ""), "reverse_proxy", "no_such_directive", 1),
	} {
		if err := r.load(broken); err == nil {
			t.Error("the reload was accepted")
		}
		if status, _ := r.post(echoCall); status != 200 {
			t.Errorf("status after a rejected reload: %d", status)
		}
	}
	r.await(8)
	r.verify()
}

func TestValidateTouchesNothing(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.post(echoCall)
	r.await(2)
	fresh := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: up}
	for _, text := range []string{r.caddyfile("explain", ""), fresh.caddyfile("", "")} {
		raw, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
		if err != nil {
			t.Fatal(err)
		}
		var cfg *caddy.Config
		if err := caddy.StrictUnmarshalJSON(raw, &cfg); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(cfg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Dir(fresh.log())); !os.IsNotExist(err) {
		t.Errorf("validating made the log folder: %v", err)
	}
	if status, _ := r.post(echoCall); status != 200 {
		t.Errorf("status after a validation: %d", status)
	}
	r.await(4)
	r.verify()
}

func TestShutdownEndsOpenStreamsWithARecord(t *testing.T) {
	up, release := streaming(t)
	defer close(release)
	r := start(t, up, "", "")
	resp := r.send(context.Background(), http.MethodPost, slowCall)
	defer resp.Body.Close()
	nextEvent(t, newReader(resp.Body))
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	// Stop without exit leaves the stream its outcome; the client's end of it
	// comes with the closed connection.
	resp.Body.Close()
	if got := r.await(2); got[1].str("kind") != "outcome" {
		t.Errorf("records:\n%s", show(got))
	}
	r.awaitClosed()
}

// logKey is a key that no witness has.
func logKey(t *testing.T) string {
	t.Helper()
	vkey, err := auditlog.VKey("audit.example/i0", make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return vkey
}

func TestMistakesFailAtLoadWithTheirPlace(t *testing.T) {
	up := newUpstream(t, ok)
	r := &rig{t: t, dir: t.TempDir(), port: freePort(t), up: up}
	t.Setenv("XDG_DATA_HOME", r.dir)
	t.Setenv("XDG_CONFIG_HOME", r.dir)
	t.Cleanup(func() { _ = caddy.Stop() })
	for _, c := range []struct{ name, sub, log, want string }{
		{"unknown subdirective", "polcy {\n}", "", `unrecognized subdirective "polcy"`},
		{"unknown log option", "", "secrt x", `unrecognized subdirective "secrt"`},
		{"duplicate", "mode enforce\nmode observe", "", "given twice"},
		{"unknown mode", "mode lax", "", `unknown value "lax"`},
		{"rule twice", "policy {\nrule A allow\nrule A deny\n}", "", "A"},
		{"oversized body limit", "max_body 1GiB", "", "max_body"},
		{"short session", "session_ttl 10ms", "", "from 1s to 720h0m0s"},
		{"no time", "keepalive often", "", "from 1s to 1h0m0s"},
		{"cookie", "forward_headers Cookie", "", "Authorization"},
		{"missing environment", "", "secret {env.MCP_AUDIT_TEST_UNSET}", "MCP_AUDIT_TEST_UNSET"},
		{"missing file", "", "key ed25519 {file./no/such/file}", "/no/such/file"},
		{"weak secret", "", "secret short", "secret"},
		{"unknown log", "log other", "", `no log "other"`},
		{"anchor without kind", "", "anchor", "anchor takes file"},
		{"unknown anchor", "", "anchor tape x", `unknown anchor "tape"`},
		{"two paths", "", "anchor file a b", "exactly one path"},
		{"witness without key", "", "anchor witness https://w.example/", "its address and its key"},
		{"witness with a log's key", "", "anchor witness https://w.example/ " + logKey(t), "not a witness's"},
		{"witness with another scheme", "", "anchor witness ftp://w.example/ x", "not an address"},
		{"no program", "", "anchor command", "takes a program"},
		{"anchor twice", "", "anchor file /a\nanchor file /b\nanchor file /a", "the anchor file /a is given twice"},
		{"unknown anchor option", "", "anchor file /a {\nrequird\n}", `unrecognized subdirective "requird"`},
		{"required twice", "", "anchor file /a {\nrequired\nrequired\n}", "given twice"},
		{"timeout of a file", "", "anchor file /a {\ntimeout 1s\n}", `unrecognized subdirective "timeout"`},
		{"timeout", "", "anchor command x {\ntimeout soon\n}", "not a time"},
		{"missing anchor", "", "anchor file {env.MCP_AUDIT_TEST_UNSET}", "MCP_AUDIT_TEST_UNSET"},
	} {
		err := r.load(r.caddyfile(c.sub, c.log))
		if err == nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if !strings.Contains(err.Error(), "Caddyfile:") && c.name != "unknown log" && c.name != "cookie" {
			t.Errorf("%s: no file and line in: %v", c.name, err)
		}
	}
	if _, err := os.Stat(filepath.Dir(r.log())); !os.IsNotExist(err) {
		t.Errorf("a rejected load made the log folder: %v", err)
	}
}

func TestReloadReopensALogThatWasPutRight(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "")
	r.post(echoCall)
	r.await(2)
	aside := r.log() + ".aside"
	if err := os.Rename(r.log(), aside); err != nil {
		t.Fatal(err)
	}
	if _, answer := r.post(echoCall); !strings.Contains(answer, "-32028") {
		t.Errorf("a call without a log: %s", answer)
	}
	if err := r.load(r.caddyfile("explain", "")); err == nil || !strings.Contains(err.Error(), "mcp-audit recover") {
		t.Errorf("a reload without the log: %v", err)
	}
	if err := os.Rename(aside, r.log()); err != nil {
		t.Fatal(err)
	}
	if err := r.load(r.caddyfile("explain", "")); err != nil {
		t.Fatal(err)
	}
	if status, answer := r.post(echoCall); status != 200 || strings.Contains(answer, "error") {
		t.Errorf("after the log is back: %d %s", status, answer)
	}
	r.await(4)
	if got := len(up.received()); got != 2 {
		t.Errorf("the server received %d calls", got)
	}
	r.verify()
}

func TestMetricsAreServedWhileAFormerLogIsOpen(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sse(w)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	r := start(t, up, "", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream := r.send(ctx, http.MethodPost, echoCall)
	defer stream.Body.Close()
	moved := strings.Replace(r.caddyfile("", ""), r.log(), filepath.Join(r.dir, "moved", "audit.jsonl"), 1)
	if err := r.load(moved); err != nil {
		t.Fatal(err)
	}
	if up := r.metric("mcp_audit_sink_up"); up != 1 {
		t.Errorf("mcp_audit_sink_up is %v", up)
	}
	cancel()
	r.awaitClosed()
}
