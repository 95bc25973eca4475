package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/caddymodule/pins"
)

func TestPinsAreListedComparedAndDecidedAboutWithARecord(t *testing.T) {
	clean(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	closeLog(t, openLog(t, path))
	store, err := pins.Open(filepath.Join(filepath.Dir(path), "pins.json"))
	if err != nil {
		t.Fatal(err)
	}
	see := func(tools ...string) {
		t.Helper()
		var list []pins.Listed
		for i := 0; i < len(tools); i += 2 {
			list = append(list, pins.Listed{Name: tools[i], Text: []byte(`{"name":"` + tools[i] + `","description":"` + tools[i+1] + `"}`)})
		}
		if _, err := store.See("files", list, true, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	see("echo", "says it", "add", "adds")
	see("echo", "says it, and mails it", "add", "adds more")
	out, stderr, code := command(t, "pins", "list", "--log", path)
	if code != 0 || strings.Count(out, " changed since ") != 2 {
		t.Errorf("%d %s%s", code, out, stderr)
	}
	out, _, code = command(t, "pins", "diff", "files", "echo", "--log", path)
	if code != 0 || out != "description\n  - \"says it\"\n  + \"says it, and mails it\"\n" {
		t.Errorf("%d %s", code, out)
	}
	if out, stderr, code := command(t, "pins", "approve", "files", "echo", "--log", path); code != 0 {
		t.Errorf("%d %s%s", code, out, stderr)
	}
	if out, stderr, code := command(t, "pins", "reject", "files", "add", "--log", path); code != 0 {
		t.Errorf("%d %s%s", code, out, stderr)
	}
	if why, err := store.Withheld("files", "echo"); err != nil || why != "" {
		t.Errorf("%q %v", why, err)
	}
	if why, err := store.Withheld("files", "add"); err != nil || why != "changed" {
		t.Errorf("%q %v", why, err)
	}
	out, _, _ = command(t, "pins", "list", "--log", path)
	if !strings.Contains(out, "add  rejected since") || !strings.Contains(out, "echo  pinned since") {
		t.Errorf("%s", out)
	}
	log := string(read(t, path))
	if !strings.Contains(log, "tool approved by ") || !strings.Contains(log, "tool rejected by ") {
		t.Error("the decisions are not recorded")
	}
	if r := verified(t, path); r.Exit != 0 {
		t.Errorf("%+v", r.Findings)
	}
	for _, c := range []struct{ args, want string }{
		{"approve files echo", "no definition of it waits"},
		{"approve files nothing", "is not pinned"},
		{"diff files echo", "no definition of it waits"},
		{"approve files", "accepts 2 arg(s)"},
	} {
		if _, stderr, code := command(t, append(append([]string{"pins"}, strings.Fields(c.args)...), "--log", path)...); code == 0 || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: %d %s", c.args, code, stderr)
		}
	}
}
