package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`

// mints opens a session at initialize and answers 404 to any other.
func mints(ids ...string) http.HandlerFunc {
	var mu sync.Mutex
	known := make(map[string]bool)
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("Mcp-Session-Id")
		if id == "" {
			w.Header().Set("Mcp-Session-Id", ids[0])
			known[ids[0]] = true
			if len(ids) > 1 {
				ids = ids[1:]
			}
			answerJSON(w, r, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
			return
		}
		if !known[id] {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		if r.Method == http.MethodDelete {
			delete(known, id)
			return
		}
		ok(w, r)
	}
}

// byUser authenticates by a header, for tests alone.
const byUser = "identity {http.request.header.X-Test-User}"

func TestSessionBelongsToWhoOpenedIt(t *testing.T) {
	up := newUpstream(t, mints("s1"))
	r := start(t, up, byUser, "")
	if status, answer := r.post(initialize, "X-Test-User", "alice"); status != 200 {
		t.Fatal(status, answer)
	}
	before := len(up.received())
	for _, c := range []struct {
		name, user, method string
		headers            []string
		status             int
	}{
		{"another user", "mallory", http.MethodPost, nil, 404},
		{"nobody", "", http.MethodPost, nil, 404},
		{"another user's stream", "mallory", http.MethodGet, nil, 404},
		{"another user's end of it", "mallory", http.MethodDelete, nil, 404},
		{"another user in the stateless revision", "mallory", http.MethodPost,
			[]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo"}, 404},
	} {
		body := ""
		if c.method == http.MethodPost {
			body = echoCall
		}
		resp := r.send(context.Background(), c.method, body, append(c.headers, "X-Test-User", c.user, "Mcp-Session-Id", "s1")...)
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: status %d", c.name, resp.StatusCode)
		}
	}
	if got := up.received(); len(got) != before {
		t.Errorf("the server received %q", got[before:])
	}
	if status, _ := r.post(echoCall, "X-Test-User", "alice", "Mcp-Session-Id", "s1"); status != 200 {
		t.Errorf("the owner: status %d", status)
	}
	foreign := 0
	for _, rec := range r.await(9) {
		if strings.HasPrefix(rec.str("reason"), "foreign_session") && rec.str("outcome") == "denied" {
			foreign++
		}
		if text := show([]record{rec}); strings.Contains(text, `"s1"`) {
			t.Errorf("the session id stands in a record: %s", text)
		}
	}
	if foreign != 5 {
		t.Errorf("%d records of a foreign session", foreign)
	}
	r.verify()
}

func TestUnknownSessionIsBoundToItsCallerOnceTheServerTakesIt(t *testing.T) {
	var known atomic.Bool
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if !known.Load() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		ok(w, r)
	})
	r := start(t, up, byUser, "")
	status := func(user, id string) int {
		got, _ := r.post(echoCall, "X-Test-User", user, "Mcp-Session-Id", id)
		return got
	}
	known.Store(false)
	if got := status("mallory", "before-restart"); got != 404 {
		t.Errorf("an id that the server does not know: %d", got)
	}
	known.Store(true)
	if got := status("alice", "before-restart"); got != 200 {
		t.Errorf("the first that the server takes: %d", got)
	}
	if got := status("mallory", "before-restart"); got != 404 {
		t.Errorf("another one then: %d", got)
	}
	known.Store(false)
	if got := status("alice", "before-restart"); got != 404 {
		t.Errorf("its end: %d", got)
	}
	known.Store(true)
	if got := status("mallory", "before-restart"); got != 200 {
		t.Errorf("after its end: %d", got)
	}
	r.verify()
}

func TestIdleSessionIsForgotten(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Session-Id") == "" {
			w.Header().Set("Mcp-Session-Id", "s"+r.Header.Get("X-Test-User"))
		}
		answerJSON(w, r, `{"protocolVersion":"2025-11-25"}`)
	})
	r := start(t, up, byUser+"\nsession_ttl 1s", "")
	for i := range 200 {
		if status, _ := r.post(initialize, "X-Test-User", fmt.Sprint(i)); status != 200 {
			t.Fatal(status)
		}
	}
	if got := r.metric("mcp_audit_sessions"); got == 0 {
		t.Error("no session is counted")
	}
	deadline := time.Now().Add(10 * time.Second)
	for r.metric("mcp_audit_sessions") != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%v sessions are left", r.metric("mcp_audit_sessions"))
		}
		time.Sleep(50 * time.Millisecond) // the time to live is what is tested
	}
	r.verify()
}

func TestSessionsOfTwoServersAreTold(t *testing.T) {
	up := newUpstream(t, mints("1"))
	r := start(t, up, byUser, "")
	if status, _ := r.post(initialize, "X-Test-User", "alice"); status != 200 {
		t.Fatal(status)
	}
	if err := r.load(strings.Replace(r.caddyfile(byUser, ""), "server_id test", "server_id other", 1)); err != nil {
		t.Fatal(err)
	}
	if status, _ := r.post(echoCall, "X-Test-User", "bob", "Mcp-Session-Id", "1"); status != 200 {
		t.Errorf("a session of the same id at another server: %d", status)
	}
	r.verify()
}
