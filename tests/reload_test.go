package tests

import (
	"io/fs"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/tests/harness"
	"github.com/caddy-mcp-audit/mcp-audit/tests/upstream"
)

// A stream that is open while the configuration changes ends with its result,
// and the log has its outcome.
func TestReloadWhileAStreamIsOpen(t *testing.T) {
	cases := []struct {
		name    string
		changes []func(*harness.Site)
	}{
		{"same configuration", []func(*harness.Site){func(*harness.Site) {}}},
		{"other policy", []func(*harness.Site){func(s *harness.Site) { s.Handler = denyDelete }}},
		{"handler and log removed", []func(*harness.Site){func(s *harness.Site) { s.Unaudited = true }}},
		{"removed and back", []func(*harness.Site){
			func(s *harness.Site) { s.Unaudited = true },
			func(s *harness.Site) { s.Unaudited = false },
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			u := upstream.Start(t)
			caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
			stream := open(t, caddy.NewRequest(t, call("7", "hold", `{"key":"reload","sse":true}`)))
			event(t, stream)
			harness.Within(t, harness.Patience, "the call reaches the server", u.Entered("reload"))
			for _, change := range c.changes {
				if refusal := caddy.Reload(t, change); refusal != "" {
					t.Fatalf("reload: %s", refusal)
				}
				caddy.Post(t, call("8", "echo", `{"m":"between"}`))
			}
			u.Release("reload")
			if got := event(t, stream); !strings.Contains(got, `"id":7`) {
				t.Errorf("the open stream ended with %s", got)
			}
			o := caddy.Operation(t, "the call that was open", func(r harness.Record) bool { return r.Tool == "hold" })
			if o.Outcome.Outcome != "success" {
				t.Errorf("outcome %q, want success: %s", o.Outcome.Outcome, o.Outcome.Line)
			}
			if o.Outcome.Policy["digest"] != o.Intent.Policy["digest"] {
				t.Error("the operation was judged by two policies")
			}
			caddy.Stop(t)
			records := caddy.Records(t)
			harness.CheckChain(t, records)
			harness.Operations(t, records)
			harness.VerifyClean(t, caddy.Log)
		})
	}
}

func TestRejectedReloadLeavesTheRunningConfiguration(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, Handler: denyDelete})
	stream := open(t, caddy.NewRequest(t, call("7", "hold", `{"key":"rejected","sse":true}`)))
	event(t, stream)

	for name, change := range map[string]func(*harness.Site){
		"typo":                func(s *harness.Site) { s.Handler = "polcy {\n}" },
		"missing environment": func(s *harness.Site) { s.LogOptions = "secret {env.MCP_AUDIT_TEST_UNSET}" },
		"missing file":        func(s *harness.Site) { s.LogOptions = "key ed25519 {file./no/such/key}" },
		"other key of a log":  func(s *harness.Site) { s.LogOptions = "secret another-secret-of-this-log" },
		"other module fails":  func(s *harness.Site) { s.Routes = "tls /no/such.crt /no/such.key" },
	} {
		if refusal := caddy.Reload(t, change); refusal == "" {
			t.Errorf("%s: the reload was accepted", name)
		}
		if answer := caddy.Post(t, call("8", "echo", `{"m":"still here"}`)); !strings.Contains(answer.Body, "still here") {
			t.Errorf("%s: the running configuration answers %+v", name, answer)
		}
		wantRPCError(t, caddy.Post(t, call("9", "delete_file", `{}`)), "9", -32030)
	}
	u.Release("rejected")
	if got := event(t, stream); !strings.Contains(got, `"id":7`) {
		t.Errorf("the open stream ended with %s", got)
	}
	caddy.Stop(t)
	records := caddy.Records(t)
	harness.CheckChain(t, records)
	harness.Operations(t, records)
	harness.VerifyClean(t, caddy.Log)
}

func TestValidateBesideARunningServerTouchesNothing(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address, LogOptions: "checkpoint off"})
	caddy.Post(t, call("1", "echo", `{"m":"x"}`))
	folder := filepath.Dir(caddy.Log)
	var before map[string]string
	// The log's state follows within a second.
	harness.Eventually(t, "the folder of the log is at rest", func() bool {
		last := before
		before = listing(t, folder)
		time.Sleep(1100 * time.Millisecond)
		return maps.Equal(last, before)
	})
	if out, code := caddy.Validate(t); code != 0 {
		t.Fatalf("caddy validate: %s", out)
	}
	if after := listing(t, folder); !maps.Equal(before, after) {
		t.Errorf("caddy validate changed the log's folder from %v to %v", before, after)
	}

	fresh := harness.Prepare(t, harness.Site{Upstream: u.Address})
	if out, code := fresh.Validate(t); code != 0 {
		t.Fatalf("caddy validate: %s", out)
	}
	if files := listing(t, fresh.Dir); len(files) > 0 {
		for name := range files {
			if strings.Contains(name, "audit") {
				t.Errorf("caddy validate made %s", name)
			}
		}
	}
	if answer := caddy.Post(t, call("2", "echo", `{"m":"y"}`)); answer.Status != http.StatusOK {
		t.Errorf("the running server answers %+v", answer)
	}
	caddy.Stop(t)
	harness.VerifyClean(t, caddy.Log)
}

// listing maps the files of a folder to their size and time.
func listing(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files[path] = info.ModTime().String() + " " + info.Mode().String()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// An orderly end with a stream still open closes its operation.
func TestShutdownClosesOpenCalls(t *testing.T) {
	u := upstream.Start(t)
	caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
	event(t, open(t, caddy.NewRequest(t, call("7", "hold", `{"key":"stop","sse":true}`))))
	start := time.Now()
	caddy.Stop(t)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the end took %s although grace_period is 2s", took)
	}
	operations := harness.Operations(t, caddy.Records(t))
	if len(operations) != 1 || operations[0].Outcome.Outcome != "internal_error" || operations[0].Outcome.Reason != "shutdown" {
		t.Errorf("operations %+v", operations)
	}
	harness.VerifyClean(t, caddy.Log)
}

// A call that was answered before the end is a success, however soon the end
// comes, and nothing is missing.
func TestAnsweredCallIsRecordedHoweverSoonTheServerEnds(t *testing.T) {
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			u := upstream.Start(t)
			for range 4 {
				caddy := harness.StartCaddy(t, harness.Site{Upstream: u.Address})
				caddy.Post(t, call("1", "echo", `{"m":"x"}`))
				caddy.Stop(t)
				records := caddy.Records(t)
				operations := harness.Operations(t, records)
				if len(operations) != 1 || operations[0].Outcome.Outcome != "success" {
					t.Errorf("the answered call is recorded as %s", operations[0].Outcome.Line)
				}
				for _, r := range records {
					if r.Kind == "gap" {
						t.Errorf("a gap is recorded: %s", r.Line)
					}
				}
			}
		})
	}
}
