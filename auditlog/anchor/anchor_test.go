package anchor_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/anchor"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/jsonl"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/witness"
)

// rig is a log with anchors.
type rig struct {
	t    *testing.T
	path string
	keys *auditlog.Keyring
	log  *auditlog.Log
	set  *anchor.Set
}

func newRig(t *testing.T) *rig {
	t.Helper()
	keys, err := auditlog.GenerateKeyring("k1", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "audit.jsonl"), keys: keys}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	store, err := jsonl.New(r.path, jsonl.Options{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.log, err = auditlog.Open(context.Background(), auditlog.Config{
		Store: store, Keys: r.keys, Name: "audit.example/anchored", CheckpointEvery: -1, CheckpointAfter: -1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = r.log.Close(context.Background()) })
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.log.Close(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) vkey() string { return r.log.Status().VKey }

// anchored gives the log its anchors.
func (r *rig) anchored(targets ...anchor.Target) {
	r.set = anchor.New(anchor.Options{
		Log: r.path, VKey: r.vkey, Sources: func() ([]auditlog.Source, error) { return jsonl.Sources(r.path) },
		Targets: targets, Gap: time.Millisecond, Retry: 5 * time.Millisecond, RetryMax: 20 * time.Millisecond,
	})
	if before := r.log.SetAnchors(r.set); before != nil {
		_ = before.Close(r.t.Context())
	}
}

func (r *rig) events(n int) {
	r.t.Helper()
	for i := range n {
		if err := r.event(i); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) event(i int) error {
	_, err := r.log.Event(r.t.Context(), auditlog.Event{
		Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: fmt.Sprintf("notifications/%d", i)},
	})
	return err
}

func (r *rig) checkpoint() ([]byte, auditlog.TreeHead) {
	r.t.Helper()
	note, err := r.log.Checkpoint(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	head, err := auditlog.ReadTreeHead(note)
	if err != nil {
		r.t.Fatal(err)
	}
	return note, head
}

// until waits for a condition.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for", what)
		}
	}
}

// taken waits until the first anchor has a checkpoint.
func (r *rig) taken(size uint64) {
	r.t.Helper()
	until(r.t, fmt.Sprintf("size %d: %+v", size, r.set.Status()), func() bool { return r.set.Status()[0].Size == size })
}

// failed waits until the first anchor fails with a text.
func (r *rig) failed(want string) auditlog.AnchorStatus {
	r.t.Helper()
	until(r.t, want+" in "+r.set.Status()[0].Err, func() bool { return strings.Contains(r.set.Status()[0].Err, want) })
	return r.set.Status()[0]
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func file(path string) anchor.Target {
	return anchor.Target{Anchor: must(anchor.NewFile(path, nil))}
}

func TestFileHoldsTheNewestCheckpoint(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "elsewhere", "audit.checkpoint")
	r.anchored(file(path))
	for range 3 {
		r.events(3)
		note, head := r.checkpoint()
		r.taken(head.Size)
		if got := must(os.ReadFile(path)); !bytes.Equal(got, note) {
			t.Errorf("%s", got)
		}
	}
	r.events(1)
	r.close()
	last := must(auditlog.OpenTreeHead(must(os.ReadFile(path)), r.vkey()))
	if last.Size < 14 {
		t.Errorf("the last checkpoint was not anchored: %+v", last)
	}
	r.open()
	r.anchored(file(path))
	r.events(1)
	_, head := r.checkpoint()
	r.taken(head.Size)
}

func TestFolderGetsAFileForEachCheckpoint(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	r.anchored(file(dir))
	want := map[string][]byte{}
	for range 3 {
		r.events(2)
		note, head := r.checkpoint()
		r.taken(head.Size)
		want[fmt.Sprintf("i0-%020d.checkpoint", head.Size)] = note
	}
	for name, note := range want {
		if got := must(os.ReadFile(filepath.Join(dir, name))); !bytes.Equal(got, note) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if names := must(os.ReadDir(dir)); len(names) != len(want) {
		t.Error(names)
	}
}

// copyDir copies a log's folder, to put it back later.
func copyDir(t *testing.T, from string) (to string) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// A log that was put back to an earlier state, and went on from there, is
// noticed by its anchors; what they hold is kept.
func TestRolledBackLogRaisesAnAlarm(t *testing.T) {
	for _, kind := range []string{"file", "folder", "witness"} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			r.events(5)
			r.close()
			before := copyDir(t, filepath.Dir(r.path))
			r.open()
			var target anchor.Target
			held := func() string { return "" }
			switch kind {
			case "witness":
				target = anchor.Target{Anchor: newWitness(t, r.vkey())}
			case "folder":
				dir := t.TempDir()
				target = file(dir)
				held = func() string { return fmt.Sprint(must(os.ReadDir(dir))) }
			default:
				path := filepath.Join(t.TempDir(), "held")
				target = file(path)
				held = func() string { return string(must(os.ReadFile(path))) }
			}
			r.anchored(target)
			r.events(20)
			_, head := r.checkpoint()
			r.taken(head.Size)
			r.close()
			kept := held()

			if err := os.RemoveAll(filepath.Dir(r.path)); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(filepath.Dir(r.path), os.DirFS(before)); err != nil {
				t.Fatal(err)
			}
			r.open()
			r.anchored(target)
			r.events(1)
			_, head = r.checkpoint()
			st := r.failed("anchor_ahead")
			if !st.Alarm || st.Waiting != head.Size {
				t.Errorf("%+v", st)
			}
			// Records are taken, but no checkpoint is signed.
			r.events(1)
			if _, err := r.log.Checkpoint(t.Context()); err == nil || !strings.Contains(err.Error(), "anchor_ahead") {
				t.Errorf("a checkpoint was signed: %v", err)
			}
			if held() != kept {
				t.Error("the evidence was overwritten")
			}
			// It grows beyond what the anchor holds.
			r.log.SetAnchors(nil)
			_ = r.set.Close(t.Context())
			r.events(40)
			r.checkpoint()
			r.anchored(target)
			if st := r.failed("anchor_mismatch"); !st.Alarm {
				t.Errorf("%+v", st)
			}
			if held() != kept {
				t.Error("the evidence was overwritten")
			}
			r.log.SetAnchors(nil)
			_ = r.set.Close(t.Context())
		})
	}
}

func TestFileIsNotReplacedByALogItIsNotOf(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	other := newRig(t)
	other.events(1)
	foreign, _ := other.checkpoint()
	stranger := must(auditlog.SignTreeHead(auditlog.TreeHead{Origin: "another.example/log/i0", Size: 4}, seeded(7)))
	for name, content := range map[string]string{
		"is no checkpoint":    "my diary\n",
		"anchor_sig_invalid":  string(foreign),
		"(anchor_sig_invalid": string(must(auditlog.SignTreeHead(auditlog.TreeHead{Origin: "audit.example/anchored/i0", Size: 1 << 30}, seeded(7)))),
		"a file of its own":   string(stranger),
		"nor a folder":        "",
		"i1\", and is not re": string(must(auditlog.SignTreeHead(auditlog.TreeHead{Origin: "audit.example/anchored/i1", Size: 4}, seeded(7)))),
	} {
		path := filepath.Join(dir, "held")
		if content == "" {
			_ = os.Remove(path)
			if err := os.Symlink("/dev/null", path); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r.anchored(file(path))
		r.events(1)
		r.checkpoint()
		if st := r.failed(name); st.Alarm {
			t.Errorf("%+v", st)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: replaced by %s", name, got)
		}
		_ = os.Remove(path)
	}
}

func TestEarlierIncarnationIsKept(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "held")
	r.anchored(file(path))
	r.events(3)
	r.close()
	old := must(os.ReadFile(path))
	data := must(os.ReadFile(r.path))
	if err := os.WriteFile(r.path, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	store := must(jsonl.New(r.path, jsonl.Options{}))
	if err := auditlog.Recover(t.Context(), auditlog.Config{Store: store, Keys: r.keys}, "test", "tester"); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.anchored(file(path))
	_, head := r.checkpoint()
	r.taken(head.Size)
	if got := must(os.ReadFile(path + ".i0")); !bytes.Equal(got, old) {
		t.Errorf("%s", got)
	}
	if now := must(auditlog.ReadTreeHead(must(os.ReadFile(path)))); now.Origin != "audit.example/anchored/i1" {
		t.Error(now)
	}
}

func seeded(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

const witnessName = "witness.example/w1"

// newWitness runs a witness for logs and returns the anchor of it.
func newWitness(t *testing.T, logs ...string) anchor.Anchor {
	t.Helper()
	w, err := witness.New(witness.Config{Name: witnessName, Key: seeded(9), Logs: logs, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/w", w))
	t.Cleanup(func() {
		server.Close()
		_ = w.Close()
	})
	return must(anchor.NewWitness(server.URL+"/w/", w.VKey(), nil))
}

func witnessKey() string {
	return must(auditlog.CosignerVKey(witnessName, seeded(9).Public().(ed25519.PublicKey)))
}

// receipt reads the note that an anchor of a kind left beside the log.
func (r *rig) receipt(pattern string) []byte {
	r.t.Helper()
	files := must(filepath.Glob(filepath.Join(r.path+".anchors", pattern)))
	if len(files) != 1 {
		return nil
	}
	return must(os.ReadFile(files[0]))
}

func TestWitnessCosignsEachCheckpoint(t *testing.T) {
	r := newRig(t)
	w := newWitness(t, r.vkey())
	r.anchored(anchor.Target{Anchor: w, Required: true})
	policy := must(auditlog.ParsePolicy([]byte("log " + r.vkey() + "\nwitness w " + witnessKey() + "\nquorum w\n")))
	for n := range 5 {
		r.events(1 + n*97)
		_, head := r.checkpoint()
		r.taken(head.Size)
		got, witnesses, err := policy.OpenCheckpoint(r.receipt("i0.witness-*.checkpoint"))
		if err != nil || got != head || len(witnesses) != 1 || time.Since(witnesses[0].Time) > time.Minute {
			t.Fatal(got, witnesses, err)
		}
	}
	r.close()

	// The receipt counts as an external anchor for whoever knows the witness.
	note := r.receipt("i0.witness-*.checkpoint")
	verify := func(note []byte, witnesses ...string) *auditlog.Report {
		t.Helper()
		return must(auditlog.Verify(t.Context(), []auditlog.Source{auditlog.FileSource(r.path)}, auditlog.VerifyOptions{
			Keys: r.keys, Beside: []auditlog.Anchor{{Name: "receipt", Note: note}}, Witnesses: witnesses,
		}))
	}
	if rep := verify(note); rep.Exit != 0 || rep.Watermarks.Anchored != 0 {
		t.Errorf("unknown witness: %+v", rep)
	}
	rep := verify(note, witnessKey())
	if rep.Exit != 0 || rep.Watermarks.Anchored == 0 || len(rep.Watermarks.AnchoredBy) != 1 || rep.Watermarks.AnchoredBy[0].Witnesses[0].Witness != witnessName {
		t.Errorf("%+v", rep)
	}
	forged := bytes.Clone(note)
	line := bytes.LastIndexByte(forged, ' ')
	forged[line+20] ^= 0x01
	if rep := verify(forged, witnessKey()); rep.Exit != auditlog.ExitDiverges && rep.Exit != auditlog.ExitTampered {
		t.Errorf("changed cosignature: %+v", rep)
	}

	// A restart goes on from the receipt; without it, the witness says.
	for _, lose := range []bool{false, true} {
		if lose {
			if err := os.RemoveAll(r.path + ".anchors"); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(strings.TrimSuffix(r.path, ".jsonl") + ".tiles"); err != nil {
				t.Fatal(err)
			}
		}
		r.open()
		r.anchored(anchor.Target{Anchor: w})
		r.events(3)
		_, head := r.checkpoint()
		r.taken(head.Size)
		r.close()
	}
}

// Row 51 of the tamper catalogue: what is not this witness's cosignature of
// this checkpoint, with a time, is not kept.
func TestWrongCosignaturesAreNotKept(t *testing.T) {
	r := newRig(t)
	r.events(2)
	_, head := r.checkpoint()
	earlier := auditlog.TreeHead{Origin: head.Origin, Size: head.Size - 1}
	cosign := func(text, name string, seed byte, at int64) string {
		return string(must(auditlog.Cosign([]byte(text), name, seeded(seed), time.Unix(at, 0))))
	}
	at := time.Now().Unix()
	public := seeded(9).Public().(ed25519.PublicKey)
	timeless := func(text string) string {
		line := cosign(text, witnessName, 9, at)
		raw := must(base64.StdEncoding.DecodeString(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])))
		sig := append(bytes.Clone(raw[:4]), make([]byte, 8)...)
		sig = append(sig, ed25519.Sign(seeded(9), []byte("cosignature/v1\ntime 0\n"+text))...)
		return "— " + witnessName + " " + base64.StdEncoding.EncodeToString(sig) + "\n"
	}
	plain := func(text string) string {
		hash := strings.Split(must(auditlog.CosignerVKey(witnessName, public)), "+")[1]
		var id uint32
		fmt.Sscanf(hash, "%08x", &id)
		sig := append(binary.BigEndian.AppendUint32(nil, id), ed25519.Sign(seeded(9), []byte(text))...)
		return "— " + witnessName + " " + base64.StdEncoding.EncodeToString(sig) + "\n"
	}
	for name, answer := range map[string]func(text string) (int, string){
		"another checkpoint":  func(string) (int, string) { return 200, cosign(earlier.Text(), witnessName, 9, at) },
		"time 0":              func(text string) (int, string) { return 200, timeless(text) },
		"no time":             func(text string) (int, string) { return 200, plain(text) },
		"another key":         func(text string) (int, string) { return 200, cosign(text, witnessName, 8, at) },
		"another name":        func(text string) (int, string) { return 200, cosign(text, "witness.example/w2", 9, at) },
		"nothing":             func(string) (int, string) { return 200, "" },
		"no line feed":        func(text string) (int, string) { return 200, strings.TrimSpace(cosign(text, witnessName, 9, at)) },
		"a page":              func(string) (int, string) { return 200, "<html>" },
		"too much":            func(string) (int, string) { return 200, strings.Repeat("— x AAAAAAAA\n", 10_000) },
		"409 without size":    func(string) (int, string) { return 409, "conflict" },
		"409 with a negative": func(string) (int, string) { return 409, "-1\n" },
		"409 with zeros":      func(string) (int, string) { return 409, "007\n" },
		"409 with old":        func(string) (int, string) { return 409, "0\n" },
		"500":                 func(string) (int, string) { return 500, "oops" },
		"redirect":            func(string) (int, string) { return 302, "" },
		"404":                 func(string) (int, string) { return 404, "" },
		"403":                 func(string) (int, string) { return 403, "" },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				var body bytes.Buffer
				_, _ = body.ReadFrom(req.Body)
				parts := strings.Split(body.String(), "\n\n")
				status, text := answer(parts[1] + "\n")
				w.Header().Set("Content-Type", "text/x.tlog.size")
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
				_, _ = w.Write([]byte(text))
			}))
			defer server.Close()
			r.anchored(anchor.Target{Anchor: must(anchor.NewWitness(server.URL, witnessKey(), nil)), Required: true})
			until(t, "a failure", func() bool { return r.set.Status()[0].Err != "" })
			if st := r.set.Status()[0]; st.Size != 0 || st.Alarm || r.receipt("*") != nil {
				t.Errorf("kept: %+v %s", st, r.receipt("*"))
			}
			if err := r.event(1); !errors.Is(err, auditlog.ErrUnavailable) || !strings.Contains(err.Error(), witnessName) {
				t.Errorf("a required anchor fails, but: %v", err)
			}
			if st := r.log.Status(); st.Healthy || len(st.Anchors) != 1 {
				t.Errorf("%+v", st)
			}
		})
	}
	r.log.SetAnchors(nil)
	_ = r.set.Close(t.Context())
	r.events(1)
}

// slow is an anchor that a test holds up.
type slow struct {
	mu    sync.Mutex
	sizes []uint64
	gate  chan struct{}
	fail  atomic.Bool
}

func (s *slow) Type() string { return "slow" }
func (s *slow) Name() string { return "slow" }

func (s *slow) Submit(ctx context.Context, sub *anchor.Submission) (anchor.Receipt, error) {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return anchor.Receipt{}, ctx.Err()
	}
	if s.fail.Load() {
		return anchor.Receipt{}, errors.New("out of order")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sizes = append(s.sizes, sub.Head.Size)
	return anchor.Receipt{Note: sub.Note}, nil
}

func TestSlowAnchorHoldsUpNothingAndGetsTheNewest(t *testing.T) {
	r := newRig(t)
	s := &slow{gate: make(chan struct{})}
	path := filepath.Join(t.TempDir(), "held")
	r.anchored(anchor.Target{Anchor: s, Required: true}, file(path))
	var sizes []uint64
	for range 10 {
		r.events(3)
		_, head := r.checkpoint()
		sizes = append(sizes, head.Size)
	}
	until(t, "the other anchor", func() bool { return r.set.Status()[1].Size == sizes[9] })
	if st := r.log.Status(); !st.Healthy || st.Anchors[0].Waiting != sizes[9] {
		t.Errorf("%+v", st)
	}
	close(s.gate)
	r.taken(sizes[9])
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sizes) > 2 || s.sizes[len(s.sizes)-1] != sizes[9] {
		t.Errorf("submitted %v of %v", s.sizes, sizes)
	}
}

func TestRequiredAnchorBlocksUntilItWorksAgain(t *testing.T) {
	r := newRig(t)
	s := &slow{gate: make(chan struct{})}
	close(s.gate)
	s.fail.Store(true)
	r.anchored(anchor.Target{Anchor: s, Required: true})
	op, err := r.log.Begin(t.Context(), auditlog.Intent{Message: auditlog.Message{Direction: auditlog.ClientToServer, Transport: "http", Method: "tools/call"}})
	if err != nil {
		t.Fatal(err)
	}
	r.checkpoint()
	r.failed("out of order")
	if err := r.event(0); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := r.log.Begin(t.Context(), auditlog.Intent{}); !errors.Is(err, auditlog.ErrUnavailable) {
		t.Error(err)
	}
	// What is open is closed nevertheless.
	if err := op.End(t.Context(), auditlog.Outcome{Result: auditlog.Success}); err != nil {
		t.Error(err)
	}
	s.fail.Store(false)
	until(t, "the anchor", func() bool { return r.event(0) == nil })
	// One that is not required never blocks.
	s.fail.Store(true)
	r.anchored(anchor.Target{Anchor: s})
	r.events(1)
	r.checkpoint()
	r.failed("out of order")
	r.events(1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := r.log.Close(ctx); err == nil || !strings.Contains(err.Error(), "has not taken the checkpoint") {
		t.Errorf("closing says nothing of the checkpoint that was not anchored: %v", err)
	}
}

func TestCommandGetsTheNoteAndItsOutputIsKept(t *testing.T) {
	r := newRig(t)
	t.Setenv("MCP_AUDIT_SIGNING_SECRET", "must not be seen by a command 1234")
	dir := t.TempDir()
	script := `cat > "$1/note"; echo "$MCP_AUDIT_ORIGIN $MCP_AUDIT_SIZE$MCP_AUDIT_SIGNING_SECRET"`
	r.anchored(anchor.Target{Anchor: must(anchor.NewCommand([]string{"/bin/sh", "-c", script, "sh", dir}, 0))})
	r.events(2)
	note, head := r.checkpoint()
	r.taken(head.Size)
	if got := must(os.ReadFile(filepath.Join(dir, "note"))); !bytes.Equal(got, note) {
		t.Errorf("%s", got)
	}
	if got := string(r.receipt("i0.command-*.receipt")); got != fmt.Sprintf("%s %d\n", head.Origin, head.Size) {
		t.Errorf("receipt %q", got)
	}
	if got := r.receipt("i0.command-*.checkpoint"); !bytes.Equal(got, note) {
		t.Errorf("%s", got)
	}
	for script, want := range map[string]string{
		"echo no >&2; exit 3":                  "exit status 3): no",
		"sleep 30 & sleep 30":                  "longer than",
		"exec head -c 100000 /dev/zero":        "64 KiB",
		"\x00":                                 "failed",
		"exec 0<&-; echo kept; exit 1":         "exit status 1",
		"head -c 1000000 /dev/zero >&2; false": "exit status 1",
	} {
		r.anchored(anchor.Target{Anchor: must(anchor.NewCommand([]string{"/bin/sh", "-c", script}, 300*time.Millisecond))})
		r.events(1)
		r.checkpoint()
		r.failed(want)
	}
	r.log.SetAnchors(nil)
	_ = r.set.Close(t.Context())
}

func TestAnchorsThatCannotBeAreRefused(t *testing.T) {
	for _, err := range []error{
		second(anchor.NewFile("", nil)),
		second(anchor.NewCommand(nil, 0)), second(anchor.NewCommand([]string{""}, 0)),
		second(anchor.NewWitness("witness.example", witnessKey(), nil)),
		second(anchor.NewWitness("ftp://witness.example/", witnessKey(), nil)),
		second(anchor.NewWitness("https://user@witness.example/", witnessKey(), nil)),
		second(anchor.NewWitness("https://witness.example/", "x+y+z", nil)),
		second(anchor.NewWitness("https://witness.example/", must(auditlog.VKey("a", seeded(9).Public().(ed25519.PublicKey))), nil)),
	} {
		if err == nil {
			t.Error("accepted")
		}
	}
}

func second[T any](_ T, err error) error { return err }
