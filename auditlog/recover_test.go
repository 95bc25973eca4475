package auditlog_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

func TestRecoverBeginsANewIncarnation(t *testing.T) {
	dir := filepath.Dir(quickPath(t))
	path := filepath.Join(dir, logName())
	keyFile := filepath.Join(dir, "keys.json")
	keys, err := auditlog.LoadOrCreateKeyring(keyFile, "k1", "")
	if err != nil {
		t.Fatal(err)
	}
	s := setup{change: func(c *auditlog.Config) { c.Secret, c.Keys = nil, keys }}
	l := s.open(t, path)
	for range 5 {
		call(t, l)
	}
	closeLog(t, l)
	whole := records(t, path)
	if err := auditlog.Recover(context.Background(), s.config(t, path), "just so", "me"); err == nil {
		t.Fatal("a sound log was given up")
	}
	if err := auditlog.Recover(context.Background(), s.config(t, path), "  ", "me"); err == nil {
		t.Fatal("a break without a reason was accepted")
	}

	cut := lines(read(t, path))[:8]
	write(t, path, []byte(strings.Join([]string{string(cut[0]), string(cut[1]), string(cut[2]), string(cut[3])}, "")))
	_, err = auditlog.Open(context.Background(), s.config(t, path))
	refusedAs(t, err, "tail_truncated")
	if err := auditlog.Recover(context.Background(), s.config(t, path), "disk restored from backup", "alice"); err != nil {
		t.Fatal(err)
	}
	old, _ := filepath.Glob(path + ".000000.*Z")
	if len(old) != 1 || len(records(t, old[0])) != 4 {
		t.Fatalf("the old log was not kept: %v", old)
	}

	reloaded, err := auditlog.LoadKeyring(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s.change = func(c *auditlog.Config) { c.Secret, c.Keys = nil, reloaded }
	l = s.open(t, path)
	call(t, l)
	closeLog(t, l)
	list := check(t, path)
	b := list[0].body
	last := whole[len(whole)-1]
	if list[0].kind != "chain_break" || b["origin"] != "audit.example/test/i1" || b["key_id"] != "k1-i1" || b["prev_origin"] != "audit.example/test/i0" ||
		b["reason"] != "disk restored from backup" || b["operator"] != "alice" || b["segment"] != 1.0 ||
		b["prev_size"] != float64(len(whole)) || b["prev_chain"] != last.seal.Chain.String() || b["prev_root"] == nil ||
		b["found_chain"] != whole[3].seal.Chain.String() {
		t.Errorf("chain_break %v", b)
	}
	if lost, _ := b["lost"].(map[string]any); lost["from"] != 4.0 || lost["to"] != float64(len(whole)-1) {
		t.Errorf("lost %v", b["lost"])
	}
	if list[len(list)-1].seal.KeyID != "k1-i1" {
		t.Errorf("key id %s", list[len(list)-1].seal.KeyID)
	}
	a, _ := reloaded.MACKey("k1")
	c, ok := reloaded.MACKey("k1-i1")
	if !ok || string(a) == string(c) {
		t.Error("the new incarnation has no MAC key of its own")
	}

	// And once more.
	if err := os.Remove(path + ".state"); err != nil {
		t.Fatal(err)
	}
	if err := auditlog.Recover(context.Background(), s.config(t, path), "again", ""); err != nil {
		t.Fatal(err)
	}
	l = s.open(t, path)
	if st := l.Status(); st.Origin != "audit.example/test/i2" || st.KeyID != "k1-i2" {
		t.Errorf("status %+v", st)
	}
	closeLog(t, l)
	check(t, path)
}

// Whatever was refused can be recovered, and the origin is never used again.
func TestRecoverAfterEachKindOfLoss(t *testing.T) {
	path := quickPath(t)
	data := crashed(t, path)
	checkpoint := read(t, path+".checkpoint")
	cases := map[string]func(t *testing.T, to string){
		"log removed":    func(t *testing.T, to string) { remove(t, to) },
		"log emptied":    func(t *testing.T, to string) { write(t, to, nil) },
		"log rubbish":    func(t *testing.T, to string) { write(t, to, make([]byte, 100_000)) },
		"state removed":  func(t *testing.T, to string) { remove(t, to+".state") },
		"state rubbish":  func(t *testing.T, to string) { write(t, to+".state", []byte("x\ny\n")) },
		"record edited":  func(t *testing.T, to string) { data := read(t, to); data[len(data)-500] ^= 1; write(t, to, data) },
		"genesis edited": func(t *testing.T, to string) { data := read(t, to); data[20] ^= 1; write(t, to, data) },
		"only a checkpoint left": func(t *testing.T, to string) {
			remove(t, to)
			remove(t, to+".state")
			write(t, to+".checkpoint", checkpoint)
		},
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			to := snapshot(t, path, data)
			do(t, to)
			if _, err := auditlog.Open(context.Background(), setup{}.config(t, to)); err == nil {
				t.Fatal("not refused")
			}
			if err := auditlog.Recover(context.Background(), setup{}.config(t, to), "test", "test"); err != nil {
				t.Fatal(err)
			}
			l := setup{}.open(t, to)
			call(t, l)
			closeLog(t, l)
			list := check(t, to)
			if list[0].kind != "chain_break" || list[0].body["origin"] != "audit.example/test/i1" || list[0].body["prev_origin"] != "audit.example/test/i0" {
				t.Errorf("first record %v", list[0].body)
			}
		})
	}
}

func TestRecordsRemovedBeforeABreakAreFound(t *testing.T) {
	dir := filepath.Dir(quickPath(t))
	path := filepath.Join(dir, logName())
	keys, err := auditlog.LoadOrCreateKeyring(filepath.Join(dir, "keys.json"), "k1", "")
	if err != nil {
		t.Fatal(err)
	}
	s := setup{change: func(c *auditlog.Config) { c.Secret, c.Keys = nil, keys }}
	l := s.open(t, path)
	call(t, l)
	call(t, l)
	closeLog(t, l)
	whole := lines(read(t, path))
	write(t, path, []byte(strings.Join(asStrings(whole[:len(whole)-1]), ""))) // shortened: the start refuses it
	if err := auditlog.Recover(context.Background(), s.config(t, path), "test", "me"); err != nil {
		t.Fatal(err)
	}
	old, _ := filepath.Glob(path + ".000000.*Z")
	if len(old) != 1 {
		t.Fatal(old)
	}
	verify := func() *auditlog.Report {
		report, err := auditlog.Verify(context.Background(),
			[]auditlog.Source{sourceOf(t, old[0]), sourceOf(t, path)}, auditlog.VerifyOptions{Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if report := verify(); report.Exit != 0 {
		t.Fatalf("before: %+v", report.Findings)
	}
	write(t, old[0], []byte(strings.Join(asStrings(whole[:len(whole)-3]), "")))
	for _, f := range verify().Findings {
		if f.Kind == "segment_boundary" {
			return
		}
	}
	t.Error("two records less in front of the break were not found")
}

func asStrings[T ~[]byte | ~string](list []T) (out []string) {
	for _, item := range list {
		out = append(out, string(item))
	}
	return out
}
