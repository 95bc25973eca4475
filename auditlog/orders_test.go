package auditlog_test

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// life is a log that lives through a sequence of things.
type life struct {
	t     testing.TB
	path  string
	clock *clock
	keys  *auditlog.Keyring
	log   *auditlog.Log
	did   []string
}

var lifeEvents = []string{"write", "rotate", "rekey", "epoch", "restart", "crash", "break"}

func newLife(t testing.TB) *life {
	keys, err := auditlog.GenerateKeyring("k1", "test")
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, path: quickPath(t), clock: newClock(time.Date(2026, 5, 25, 8, 0, 0, 0, time.UTC)), keys: keys}
	l.open()
	return l
}

func (l *life) config() auditlog.Config {
	return setup{change: func(c *auditlog.Config) {
		c.Secret, c.Keys, c.Now = nil, l.keys, l.clock.now
		c.Rotation.Every, c.EpochAfter = auditlog.Hourly, 5*time.Minute
	}}.config(l.t, l.path)
}

func (l *life) open() {
	l.t.Helper()
	var err error
	if l.log, err = auditlog.Open(context.Background(), l.config()); err != nil {
		l.t.Fatalf("after %s: Open: %v", strings.Join(l.did, " "), err)
	}
}

func (l *life) close() {
	l.t.Helper()
	if err := l.log.Close(context.Background()); err != nil {
		l.t.Fatalf("after %s: Close: %v", strings.Join(l.did, " "), err)
	}
}

func (l *life) do(what string) {
	l.t.Helper()
	l.did = append(l.did, what)
	switch what {
	case "write":
		call(l.t, l.log)
	case "rotate":
		// An operation is open over the end of the file.
		op, err := l.log.Begin(context.Background(), anIntent())
		if err != nil {
			l.t.Fatal(err)
		}
		l.clock.advance(time.Hour)
		if err := op.End(context.Background(), anOutcome()); err != nil {
			l.t.Fatal(err)
		}
	case "rekey":
		if _, err := l.log.RotateKey(context.Background(), auditlog.KeyRotation{}); err != nil {
			l.t.Fatalf("after %s: %v", strings.Join(l.did, " "), err)
		}
	case "epoch":
		l.clock.advance(5 * time.Minute)
		call(l.t, l.log)
	case "restart":
		l.close()
		l.open()
	case "crash":
		if _, err := l.log.Begin(context.Background(), anIntent()); err != nil {
			l.t.Fatal(err)
		}
		to := copyLog(l.t, l.path)
		l.close()
		l.path = to
		l.open()
	case "break":
		l.close()
		data := read(l.t, l.path)
		cut := bytes.LastIndexByte(data[:len(data)-1], '\n') + 1
		write(l.t, l.path, data[:cut])
		if err := auditlog.Recover(context.Background(), l.config(), "a test cut it", "tester"); err != nil {
			l.t.Fatalf("after %s: Recover: %v", strings.Join(l.did, " "), err)
		}
		l.open()
	}
}

// verify verifies all files with all keys.
func (l *life) verify() *auditlog.Report {
	l.t.Helper()
	var sources []auditlog.Source
	for _, name := range files(l.t, l.path) {
		data := plain(l.t, name)
		sources = append(sources, auditlog.Source{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }})
	}
	opts := auditlog.VerifyOptions{Strict: true, Keys: l.keys, Now: l.clock.now, Jobs: 1}
	if slices.Contains(l.did, "rotate") {
		opts.Manifest = read(l.t, filepath.Join(filepath.Dir(l.path), "manifest.json"))
	}
	report, err := auditlog.Verify(context.Background(), sources, opts)
	if err != nil {
		l.t.Fatal(err)
	}
	allowed := []string{"chain_break", "outcome_unknown"}
	for _, f := range report.Findings {
		if !slices.Contains(allowed, f.Kind) {
			l.t.Errorf("after %s: verify: %+v\n%s", strings.Join(l.did, " "), f, allKinds(l.t, l.path))
		}
	}
	return report
}

func TestEveryOrderOfEventsLeavesALogThatGoesOnAndVerifies(t *testing.T) {
	length := 5
	if testing.Short() {
		length = 2
	}
	work := make(chan []string)
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for events := range work {
				t.Run(strings.Join(events, "-"), func(t *testing.T) {
					l := newLife(t)
					for _, e := range events {
						l.do(e)
					}
					l.do("write")
					l.close()
					l.verify()
				})
			}
		})
	}
	var all func(events []string)
	all = func(events []string) {
		if len(events) > 0 {
			work <- slices.Clone(events)
		}
		if len(events) == length || t.Failed() {
			return
		}
		for _, e := range lifeEvents {
			all(append(events, e))
		}
	}
	all(nil)
	close(work)
	group.Wait()
}

func TestKeysAreRotatedWithoutARestart(t *testing.T) {
	l := newLife(t)
	before := l.log.Status()
	op, err := l.log.Begin(context.Background(), anIntent())
	if err != nil {
		t.Fatal(err)
	}
	vkey, err := l.log.RotateKey(context.Background(), auditlog.KeyRotation{})
	if err != nil {
		t.Fatal(err)
	}
	if err := op.End(context.Background(), anOutcome()); err != nil {
		t.Fatal(err)
	}
	st := l.log.Status()
	if st.KeyID != "k2" || st.VKey != vkey || st.VKey == before.VKey {
		t.Errorf("status %+v", st)
	}
	if _, err := l.log.RotateKey(context.Background(), auditlog.KeyRotation{KeyID: "k2"}); err == nil {
		t.Error("a rotation to the same key was accepted")
	}
	if _, err := l.log.RotateKey(context.Background(), auditlog.KeyRotation{KeyID: "k1"}); err == nil {
		t.Error("a rotation back to an old key was accepted")
	}
	if _, err := l.log.RotateKey(context.Background(), auditlog.KeyRotation{KeyID: "spring-2027"}); err != nil {
		t.Error(err)
	}
	l.close()
	if got, want := allKinds(t, l.path), "genesis start intent key_rotation outcome key_rotation stop checkpoint"; got != want {
		t.Errorf("kinds %s, want %s", got, want)
	}
	r := l.verify()
	if r.VKey == vkey || r.Watermarks.Checkpointed == 0 {
		t.Errorf("report %+v", r)
	}
	// Who knows the first public key alone follows both rotations.
	r, err = auditlog.Verify(context.Background(), []auditlog.Source{auditlog.FileSource(l.path)}, auditlog.VerifyOptions{PublicKey: before.VKey, Now: l.clock.now})
	if err != nil || r.Exit != 0 || r.Watermarks.Checkpointed == 0 {
		t.Errorf("with the first public key: %+v %v", r, err)
	}
}

func TestAnotherWriterFollowsAKeyRotation(t *testing.T) {
	dir := filepath.Dir(quickPath(t))
	path, file := filepath.Join(dir, "audit.jsonl"), filepath.Join(dir, "keys.json")
	open := func() *auditlog.Log {
		keys, err := auditlog.LoadOrCreateKeyring(file, "k1", "")
		if err != nil {
			t.Fatal(err)
		}
		return setup{change: func(c *auditlog.Config) { c.Secret, c.Keys = nil, keys }}.open(t, path)
	}
	first, second := open(), open()
	call(t, first)
	if _, err := second.RotateKey(context.Background(), auditlog.KeyRotation{}); err != nil {
		t.Fatal(err)
	}
	call(t, first)
	if _, err := first.Checkpoint(context.Background()); err != nil {
		t.Fatal(err)
	}
	if st := first.Status(); st.KeyID != "k2" || st.VKey != second.Status().VKey {
		t.Errorf("status %+v", st)
	}
	closeLog(t, first)
	closeLog(t, second)
	third := open()
	call(t, third)
	closeLog(t, third)
	keys, err := auditlog.LoadKeyring(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := auditlog.Verify(context.Background(), []auditlog.Source{auditlog.FileSource(path)}, auditlog.VerifyOptions{Keys: keys, Strict: true})
	if err != nil || r.Exit != 0 || r.Kinds["key_rotation"] != 1 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestAGivenSigningKeyIsRotatedToAGivenOne(t *testing.T) {
	path := quickPath(t)
	old, _ := testKeys.SigningKey("k1")
	fresh, err := auditlog.GenerateKeyring("x", "")
	if err != nil {
		t.Fatal(err)
	}
	next, _ := fresh.SigningKey("x")
	with := func(c *auditlog.Config) { c.SigningKey, c.Keys = old, nil }
	l := setup{change: with}.open(t, path)
	if _, err := l.RotateKey(context.Background(), auditlog.KeyRotation{}); err == nil || !strings.Contains(err.Error(), "must be given") {
		t.Errorf("without a key: %v", err)
	}
	if _, err := l.RotateKey(context.Background(), auditlog.KeyRotation{SigningKey: next}); err != nil {
		t.Fatal(err)
	}
	call(t, l)
	closeLog(t, l)
	verifyAll(t, path)
	_, err = auditlog.Open(context.Background(), setup{change: with}.config(t, path))
	refusedAs(t, err, "checkpoint_sig_invalid")
	l = setup{change: func(c *auditlog.Config) { c.SigningKey, c.Keys = next, nil }}.open(t, path)
	call(t, l)
	closeLog(t, l)
	verifyAll(t, path)
}

func TestEpochsEndByCountAndSilenceIsBroken(t *testing.T) {
	path := quickPath(t)
	c := newClock(time.Now())
	l := setup{change: func(cfg *auditlog.Config) { cfg.EpochEvery, cfg.Heartbeat, cfg.Now = 10, time.Minute, c.now }}.open(t, path)
	for range 20 {
		call(t, l)
	}
	c.advance(time.Minute)
	eventually(t, "a heartbeat is written", func() bool {
		l.SetOptions(auditlog.Written, 0, -1) // wakes the committer: its clock is not the test's
		return strings.Contains(string(read(t, path)), `"kind":"heartbeat"`)
	})
	closeLog(t, l)
	list := checkAll(t, path)
	if n := count(list, "epoch_end"); n < 3 || list[len(list)-1].seal.Epoch != uint64(n) {
		t.Errorf("%d epochs ended: %s", n, allKinds(t, path))
	}
	closeLog(t, setup{change: func(cfg *auditlog.Config) { cfg.Now = c.now }}.open(t, path))
	checkAll(t, path)
}

func TestNextKeyID(t *testing.T) {
	for from, want := range map[string]string{"k1": "k2", "k9": "k10", "k1-i3": "k2-i3", "gateway": "gateway-2", "gateway-2": "gateway-3", "a-i1": "a-2-i1"} {
		if got := auditlog.NextKeyID(from); got != want {
			t.Errorf("NextKeyID(%s) = %s, want %s", from, got, want)
		}
	}
}
