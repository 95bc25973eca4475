package caddymodule_test

import (
	"bytes"
	"crypto/ed25519"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/witness"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for ", what)
		}
	}
}

func TestCheckpointsOfARunningCaddyReachTheirAnchors(t *testing.T) {
	up := newUpstream(t, ok)
	held := filepath.Join(t.TempDir(), "held.checkpoint")
	ran := filepath.Join(t.TempDir(), "ran")
	r := start(t, up, "", "checkpoint every 1 records\nanchor file "+held+" {\nrequired\n}\nanchor command /bin/cp /dev/stdin "+ran)
	r.post(echoCall)
	for _, path := range []string{held, ran} {
		eventually(t, path, func() bool {
			note, err := os.ReadFile(path)
			if err != nil {
				return false
			}
			head, err := auditlog.ReadTreeHead(note)
			return err == nil && head.Size >= 4
		})
	}

	// The witness gets to know the log, and takes over by a reload.
	first, err := os.ReadFile(held)
	if err != nil {
		t.Fatal(err)
	}
	head, err := auditlog.ReadTreeHead(first)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := auditlog.LoadKeyring(filepath.Join(filepath.Dir(r.log()), "keys.json"))
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := auditlog.VKey(head.Origin, keys.PublicKeys()[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	w, err := witness.New(witness.Config{
		Name: "witness.example/w1", Key: ed25519.NewKeyFromSeed(bytes.Repeat([]byte{9}, 32)), Logs: []string{vkey}, Dir: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	if err := r.load(r.caddyfile("", "checkpoint every 1 records\nanchor witness "+server.URL+" "+w.VKey())); err != nil {
		t.Fatal(err)
	}
	r.post(echoCall)
	eventually(t, "a receipt", func() bool {
		files, _ := filepath.Glob(r.log() + ".anchors/i0.witness-*.checkpoint")
		return len(files) == 1
	})
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(r.log() + ".anchors/i0.witness-*.checkpoint")
	note, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	report, err := auditlog.Verify(t.Context(), []auditlog.Source{auditlog.FileSource(r.log())}, auditlog.VerifyOptions{
		Keys: keys, Anchors: []auditlog.Anchor{{Name: "file", Note: first}, {Name: "receipt", Note: note}}, Witnesses: []string{w.VKey()},
	})
	if err != nil || report.Exit != 0 || len(report.Watermarks.AnchoredBy) != 2 {
		t.Errorf("%+v %v", report, err)
	}
	// At the end the last checkpoint, over all records but itself, is cosigned.
	if report.Watermarks.Anchored+1 != report.Watermarks.Records {
		t.Errorf("%d of %d records are anchored", report.Watermarks.Anchored, report.Watermarks.Records)
	}
}

func TestCallsAreRefusedWhileARequiredAnchorFails(t *testing.T) {
	up := newUpstream(t, ok)
	r := start(t, up, "", "checkpoint every 1 records\nanchor command /bin/false {\nrequired\n}")
	eventually(t, "a refusal", func() bool {
		_, answer := r.post(echoCall)
		return strings.Contains(answer, "-32028")
	})
	n := len(up.received())
	if _, answer := r.post(echoCall); !strings.Contains(answer, "-32028") || len(up.received()) != n {
		t.Errorf("%s", answer)
	}
}
