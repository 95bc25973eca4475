package auditlog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
)

// evolving is a log whose keys evolve, and what an operator kept of its keys.
type evolving struct {
	t     *testing.T
	path  string
	clock *clock
	fs    fsys.FS
	kept  map[string]json.RawMessage // by type and kid
	log   *auditlog.Log
}

func newEvolving(t *testing.T) *evolving {
	e := &evolving{t: t, path: quickPath(t), clock: newClock(time.Date(2026, 5, 25, 8, 0, 0, 0, time.UTC)), kept: map[string]json.RawMessage{}}
	keys, err := auditlog.GenerateKeyring("k1", "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Save(e.keyFile()); err != nil {
		t.Fatal(err)
	}
	e.keep()
	return e
}

func (e *evolving) keyFile() string { return filepath.Join(filepath.Dir(e.path), "keys.json") }

// keep copies the keys that are in the key file now.
func (e *evolving) keep() {
	e.t.Helper()
	var set struct{ Keys []json.RawMessage }
	if err := json.Unmarshal(read(e.t, e.keyFile()), &set); err != nil {
		e.t.Fatal(err)
	}
	for _, raw := range set.Keys {
		var key struct{ Kty, Kid string }
		if err := json.Unmarshal(raw, &key); err != nil {
			e.t.Fatal(err)
		}
		e.kept[key.Kty+key.Kid] = raw
	}
}

func (e *evolving) keptKeys() *auditlog.Keyring {
	e.t.Helper()
	set := map[string][]json.RawMessage{}
	for _, raw := range e.kept {
		set["keys"] = append(set["keys"], raw)
	}
	data, err := json.Marshal(set)
	if err != nil {
		e.t.Fatal(err)
	}
	file := filepath.Join(e.t.TempDir(), "kept.json")
	write(e.t, file, data)
	keys, err := auditlog.LoadKeyring(file)
	if err != nil {
		e.t.Fatal(err)
	}
	return keys
}

func (e *evolving) config() auditlog.Config {
	e.t.Helper()
	keys, err := auditlog.LoadKeyring(e.keyFile())
	if err != nil {
		e.t.Fatal(err)
	}
	store, err := jsonl.New(e.path, jsonl.Options{FS: e.fs, Exclusive: true})
	if err != nil {
		e.t.Fatal(err)
	}
	return auditlog.Config{
		Store: store, Name: "audit.example/test", Keys: keys, KeyMode: auditlog.Evolving, Now: e.clock.now,
		CheckpointAfter: -1, Rotation: auditlog.Rotation{Every: auditlog.Hourly},
	}
}

func (e *evolving) open() {
	e.t.Helper()
	var err error
	if e.log, err = auditlog.Open(context.Background(), e.config()); err != nil {
		e.t.Fatal(err)
	}
}

func (e *evolving) verify(allowed ...string) *auditlog.Report {
	e.t.Helper()
	var sources []auditlog.Source
	for _, name := range files(e.t, e.path) {
		data := plain(e.t, name)
		sources = append(sources, auditlog.Source{Name: name, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }})
	}
	r, err := auditlog.Verify(context.Background(), sources, auditlog.VerifyOptions{Strict: true, Keys: e.keptKeys(), Now: e.clock.now})
	if err != nil {
		e.t.Fatal(err)
	}
	for _, f := range r.Findings {
		if !slices.Contains(allowed, f.Kind) {
			e.t.Errorf("verify: %+v\n%s", f, allKinds(e.t, e.path))
		}
	}
	return r
}

func TestKeysEvolveAndTheFirstIsErased(t *testing.T) {
	e := newEvolving(t)
	first := keyOf(t, e.keyFile())
	e.open()
	if keyOf(t, e.keyFile()) != "" {
		t.Error("the first key is still in the key file")
	}
	call(t, e.log)
	e.clock.advance(16 * time.Minute)
	call(t, e.log)
	e.clock.advance(time.Hour)
	call(t, e.log)
	closeLog(t, e.log)
	e.open()
	call(t, e.log)
	closeLog(t, e.log)
	r := e.verify()
	if r.MAC != auditlog.MACChecked || r.Kinds["epoch_end"] < 3 {
		t.Errorf("report %+v: %s", r, allKinds(t, e.path))
	}
	// Nothing in the folder has a key that an epoch before was sealed with.
	stateKey := stateMember(t, e.path, "key")
	if stateKey == "" || stateKey == first || stateMember(t, e.path, "blind") == "" {
		t.Errorf("the state has the key %q", stateKey)
	}
	for _, name := range []string{e.path + ".state", e.keyFile(), e.path} {
		if bytes.Contains(read(t, name), []byte(first)) {
			t.Errorf("%s has the first key", name)
		}
	}
	if k := kinds(t, e.path); k[0] != "segment_start" {
		t.Errorf("kinds %v", k)
	}
}

// keyOf is the MAC key in a key file.
func keyOf(t *testing.T, file string) string {
	t.Helper()
	var set struct{ Keys []struct{ Kty, K string } }
	if err := json.Unmarshal(read(t, file), &set); err != nil {
		t.Fatal(err)
	}
	for _, key := range set.Keys {
		if key.Kty == "oct" {
			return key.K
		}
	}
	return ""
}

func stateMember(t *testing.T, path, name string) string {
	t.Helper()
	line, _, _ := bytes.Cut(read(t, path+".state"), []byte("\n"))
	var members map[string]any
	if err := json.Unmarshal(line, &members); err != nil {
		t.Fatal(err)
	}
	text, _ := members[name].(string)
	return text
}

func TestTheStateHasAnEpochsKeyBeforeItsFirstRecord(t *testing.T) {
	e := newEvolving(t)
	layer := newFaulty(nil)
	e.fs = layer
	layer.onOp = func(op, name string) {
		if op != "write" || name != e.path {
			return
		}
		// At each append the state is of the epoch of the records before it,
		// unless an epoch_end is the last of them.
		data, err := os.ReadFile(e.path)
		if err != nil || len(data) == 0 {
			return
		}
		last := data[bytes.LastIndexByte(data[:len(data)-1], '\n')+1 : len(data)-1]
		line, fault := auditlog.SplitLine(last)
		if fault != auditlog.LineOK {
			t.Errorf("the log ends in %.60q", last)
			return
		}
		epoch := line.Seal.Epoch
		if bytes.Contains(last, []byte(`"kind":"epoch_end"`)) {
			epoch++
		}
		state, err := os.ReadFile(e.path + ".state")
		if err != nil || !bytes.Contains(state, []byte(`"epoch":`+string('0'+byte(epoch))+`,`)) {
			t.Errorf("a record of epoch %d is written with the state %.300s", epoch, state)
		}
	}
	e.open()
	for range 3 {
		call(t, e.log)
		e.clock.advance(16 * time.Minute)
	}
	e.clock.advance(time.Hour)
	call(t, e.log)
	closeLog(t, e.log)
	e.verify()
}

func TestALogOfEvolvingKeysGoesOnInEveryOrder(t *testing.T) {
	length := 3
	if testing.Short() {
		length = 2
	}
	var all func(events []string)
	all = func(events []string) {
		if len(events) > 0 {
			t.Run(strings.Join(events, "-"), func(t *testing.T) {
				e := newEvolving(t)
				e.open()
				for _, event := range append(events, "write") {
					e.do(event)
				}
				closeLog(t, e.log)
				e.verify("outcome_unknown", "chain_break")
			})
		}
		if len(events) < length {
			for _, event := range []string{"write", "rotate", "epoch", "restart", "crash", "break"} {
				all(append(slices.Clone(events), event))
			}
		}
	}
	all(nil)
}

func (e *evolving) do(event string) {
	e.t.Helper()
	switch event {
	case "write":
		call(e.t, e.log)
	case "rotate":
		e.clock.advance(time.Hour)
		call(e.t, e.log)
	case "epoch":
		e.clock.advance(16 * time.Minute)
		call(e.t, e.log)
	case "restart":
		closeLog(e.t, e.log)
		e.open()
	case "crash":
		if _, err := e.log.Begin(context.Background(), anIntent()); err != nil {
			e.t.Fatal(err)
		}
		to := copyLog(e.t, e.path)
		closeLog(e.t, e.log)
		e.path = to
		e.open()
	case "break":
		closeLog(e.t, e.log)
		data := read(e.t, e.path)
		write(e.t, e.path, data[:bytes.LastIndexByte(data[:len(data)-1], '\n')+1])
		if err := auditlog.Recover(context.Background(), e.config(), "a test cut it", "tester"); err != nil {
			e.t.Fatal(err)
		}
		e.keep()
		e.open()
	}
}

func TestEveryCallOfAnEvolvingLogMayFail(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 11
	}
	for _, lasting := range []bool{false, true} {
		for n, more := 0, true; more && !t.Failed(); n += step {
			e := newEvolving(t)
			layer := newFaulty(func(i int, op, _ string) error {
				if i == n || lasting && i > n {
					if op == "write" && lasting {
						return errShort
					}
					return syscall.EIO
				}
				return nil
			})
			e.fs = layer
			if l, err := auditlog.Open(context.Background(), e.config()); err == nil {
				for _, d := range []time.Duration{16 * time.Minute, time.Hour, 16 * time.Minute} {
					if op, err := l.Begin(context.Background(), anIntent()); err == nil {
						_ = op.End(context.Background(), anOutcome())
					}
					e.clock.advance(d)
				}
				_ = l.Close(context.Background())
			}
			layer.mu.Lock()
			more = layer.calls > n
			layer.mu.Unlock()
			e.fs = nil
			e.open()
			call(t, e.log)
			closeLog(t, e.log)
			e.verify("outcome_unknown", "gap")
		}
	}
}

func TestEvolvingKeysNeedALogOfTheirOwn(t *testing.T) {
	e := newEvolving(t)
	for name, change := range map[string]func(*auditlog.Config){
		"exclusively": func(c *auditlog.Config) { c.Store, _ = jsonl.New(e.path, jsonl.Options{}) },
		"key file":    func(c *auditlog.Config) { c.Secret = []byte(testSecret) },
		"keygen":      func(c *auditlog.Config) { c.KeyID = "k9" },
	} {
		cfg := e.config()
		change(&cfg)
		if _, err := auditlog.Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e.open()
	if _, err := e.log.RotateKey(context.Background(), auditlog.KeyRotation{}); err == nil || !strings.Contains(err.Error(), "evolve") {
		t.Errorf("RotateKey: %v", err)
	}
	if _, err := auditlog.Open(context.Background(), e.config()); err == nil || !strings.Contains(err.Error(), "one writer") {
		t.Errorf("a second writer: %v", err)
	}
	static := setup{}.config(t, e.path)
	if _, err := auditlog.Open(context.Background(), static); err == nil || !strings.Contains(err.Error(), "held exclusively") {
		t.Errorf("a writer beside it: %v", err)
	}
	closeLog(t, e.log)
	static = setup{}.config(t, e.path)
	if _, err := auditlog.Open(context.Background(), static); err == nil || !strings.Contains(err.Error(), "key_mode is not static") {
		t.Errorf("a writer of the other mode: %v", err)
	}
	e.open()
	closeLog(t, e.log)
	e.verify()
}

func TestAnIdleLogOfEvolvingKeysEndsItsEpochs(t *testing.T) {
	e := newEvolving(t)
	e.open()
	for n := 1; n <= 3; n++ {
		e.clock.advance(15 * time.Minute)
		eventually(t, "the epoch ends", func() bool {
			e.log.SetOptions(auditlog.Written, 0, -1) // wakes the committer: its clock is not the test's
			return bytes.Count(read(t, e.path), []byte(`"kind":"epoch_end"`)) == n
		})
	}
	closeLog(t, e.log)
	if got := strings.Join(kinds(t, e.path), " "); !strings.Contains(got, "epoch_end heartbeat epoch_end heartbeat epoch_end") {
		t.Errorf("kinds %s", got)
	}
	e.verify()
}
