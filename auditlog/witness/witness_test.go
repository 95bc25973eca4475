package witness_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/witness"
)

const origin = "audit.example/gateway/i0"

func key(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func vkey(t testing.TB, name string, seed byte) string {
	t.Helper()
	text, err := auditlog.VKey(name, key(seed).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// grown is a log of leaves.
type grown struct {
	t      testing.TB
	origin string
	seed   byte
	leaves []auditlog.Hash
}

func newGrown(t testing.TB, origin string, seed byte, salt string, n int) *grown {
	t.Helper()
	g := &grown{t: t, origin: origin, seed: seed}
	for i := range n {
		g.leaves = append(g.leaves, auditlog.LeafHash(fmt.Appendf(nil, "%s %d", salt, i)))
	}
	return g
}

func (g *grown) head(size int) (auditlog.TreeHead, []byte) {
	g.t.Helper()
	var tree auditlog.Range
	for _, l := range g.leaves[:size] {
		tree.Append(l)
	}
	head := auditlog.TreeHead{Origin: g.origin, Size: tree.Size, Root: tree.Root()}
	signed, err := auditlog.SignTreeHead(head, key(g.seed))
	if err != nil {
		g.t.Fatal(err)
	}
	return head, signed
}

// request is the body of add-checkpoint from one size to another.
func (g *grown) request(old, size int) []byte {
	g.t.Helper()
	head, signed := g.head(size)
	p := auditlog.ConsistencyProof{Old: uint64(old), Checkpoint: signed}
	if old > 0 && old < size {
		tiles := auditlog.NewTiles(nil, g.t.TempDir())
		w := func(from, to uint64, each func(auditlog.Hash) error) error {
			for _, l := range g.leaves[from:to] {
				if err := each(l); err != nil {
					return err
				}
			}
			return nil
		}
		if err := tiles.Grow(g.t.Context(), signed, leaves(w)); err != nil {
			g.t.Fatal(err)
		}
		var err error
		if p.Path, err = tiles.Tree(head).Consistency(uint64(old)); err != nil {
			g.t.Fatal(err)
		}
	}
	return p.Text()
}

func config(t testing.TB) witness.Config {
	return witness.Config{
		Name: "witness.example/w1", Key: key(9), Dir: filepath.Join(t.TempDir(), "state"),
		Logs: []string{vkey(t, origin, 1), vkey(t, "audit.example/other/i0", 2)},
		Now:  func() time.Time { return time.Unix(1_700_000_000, 0) },
	}
}

func open(t testing.TB, cfg witness.Config) *witness.Witness {
	t.Helper()
	w, err := witness.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// post sends a request and returns what a client sees.
func post(t testing.TB, w http.Handler, body []byte) (status int, kind, answer string) {
	t.Helper()
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/add-checkpoint", bytes.NewReader(body)))
	return rec.Code, rec.Header().Get("Content-Type"), rec.Body.String()
}

func TestWitnessAnswersAsTheProtocolSays(t *testing.T) {
	cfg := config(t)
	w := open(t, cfg)
	g := newGrown(t, origin, 1, "a", 60)
	fork := newGrown(t, origin, 1, "b", 60)
	stranger := newGrown(t, origin, 3, "a", 60)
	unknown := newGrown(t, "audit.example/unknown/i0", 1, "a", 60)
	sigs := func(body []byte, with string) []byte {
		return append(bytes.Clone(body), with...)
	}
	swap := func(body []byte, old, with string) []byte {
		if !bytes.Contains(body, []byte(old)) {
			t.Fatalf("no %q in\n%s", old, body)
		}
		return bytes.Replace(body, []byte(old), []byte(with), 1)
	}
	foreignLine := "— stranger.example " + base64.StdEncoding.EncodeToString(make([]byte, 68)) + "\n"
	for _, c := range []struct {
		name   string
		body   []byte
		status int
		want   string
	}{
		{"no body", nil, 400, ""},
		{"not a request", []byte("hello\n\nworld\n"), 400, ""},
		{"leading zero", swap(g.request(0, 10), "old 0", "old 00"), 400, "decimal"},
		{"negative", swap(g.request(0, 10), "old 0", "old -1"), 400, "decimal"},
		{"two spaces", swap(g.request(0, 10), "old 0", "old  0"), 400, "decimal"},
		{"not base64", swap(g.request(0, 10), "old 0\n", "old 0\n###\n"), 400, "base64"},
		{"64 hashes", swap(g.request(0, 10), "old 0\n", "old 0\n"+strings.Repeat(base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n", 64)), 400, "63"},
		{"two lines", []byte("old 0\n\n" + origin + "\n10\n\n— a AAAAAAAA\n"), 400, "three lines"},
		{"no signature", []byte("old 0\n\n" + origin + "\n0\n47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"), 400, ""},
		{"unknown log", unknown.request(0, 10), 404, "not known"},
		{"signed with another key", stranger.request(0, 10), 403, "signature"},
		{"signature changed", func() []byte {
			b := g.request(0, 10)
			b[len(b)-10] ^= 1
			return b
		}(), 403, "signature"},
		{"text changed", swap(g.request(0, 10), "\n10\n", "\n11\n"), 403, "signature"},
		{"old above new", swap(g.request(0, 10), "old 0", "old 11"), 400, "larger"},
		{"unseen old", g.request(5, 10), 409, "0\n"},
		{"hashes from nothing", swap(g.request(0, 10), "old 0\n", "old 0\n"+base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 422, ""},
		{"first", sigs(g.request(0, 10), foreignLine), 200, "— witness.example/w1 "},
		{"first again", g.request(0, 10), 409, "10\n"},
		{"same size", g.request(10, 10), 200, "— witness.example/w1 "},
		{"same size, with a hash", swap(g.request(10, 10), "old 10\n", "old 10\n"+base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 422, ""},
		{"same size, another root", fork.request(10, 10), 409, "10\n"},
		{"fork", fork.request(10, 20), 422, "does not continue"},
		{"without proof", swap(g.request(0, 20), "old 0", "old 10"), 422, "does not continue"},
		{"next", g.request(10, 33), 200, "— witness.example/w1 "},
		{"back", g.request(10, 20), 409, "33\n"},
		{"smaller", g.request(20, 20), 409, "33\n"},
		{"next again", g.request(33, 60), 200, "— witness.example/w1 "},
	} {
		status, kind, answer := post(t, w, c.body)
		if status != c.status || !strings.Contains(answer, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.name, status, answer, c.status, c.want)
		}
		if status == 409 && (kind != "text/x.tlog.size" || !strings.HasSuffix(answer, "\n") || strings.TrimLeft(answer, "0123456789") != "\n") {
			t.Errorf("%s: %s %q", c.name, kind, answer)
		}
		if status == 200 {
			_, checkpoint, _ := bytes.Cut(c.body, []byte("\n\n"))
			checkOne(t, w.VKey(), append(bytes.Clone(checkpoint), answer...))
		}
	}
}

// checkOne checks a note as any client would: by the text of the cosignature.
func checkOne(t *testing.T, vkey string, cosigned []byte) {
	t.Helper()
	cosigner, err := auditlog.ParseCosigner(vkey)
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open(cosigned, note.VerifierList(cosigner))
	if err != nil || len(n.Sigs) != 1 {
		t.Fatalf("%v\n%s", err, cosigned)
	}
	raw, err := base64.StdEncoding.DecodeString(n.Sigs[0].Base64)
	if err != nil || len(raw) != 4+8+64 {
		t.Fatal(len(raw), err)
	}
	message := "cosignature/v1\ntime 1700000000\n" + n.Text
	if !bytes.Equal(raw[4:12], []byte{0, 0, 0, 0, 0x65, 0x53, 0xf1, 0x00}) || !ed25519.Verify(key(9).Public().(ed25519.PublicKey), []byte(message), raw[12:]) {
		t.Errorf("the cosignature is not over %q", message)
	}
}

func TestOtherRequestsAreRefused(t *testing.T) {
	w := open(t, config(t))
	for _, c := range []struct {
		method, path string
		body         io.Reader
		status       int
	}{
		{http.MethodGet, "/add-checkpoint", nil, 405},
		{http.MethodPut, "/add-checkpoint", strings.NewReader("old 0\n"), 405},
		{http.MethodPost, "/", strings.NewReader("old 0\n"), 404},
		{http.MethodPost, "/add-checkpoint/", strings.NewReader("old 0\n"), 404},
		{http.MethodPost, "/add-checkpoint", strings.NewReader(strings.Repeat("a", 100<<10)), 413},
		{http.MethodPost, "/add-checkpoint", io.MultiReader(strings.NewReader("old"), broken{}), 400},
	} {
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, httptest.NewRequest(c.method, c.path, c.body))
		if rec.Code != c.status {
			t.Errorf("%s %s: %d %s", c.method, c.path, rec.Code, rec.Body)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("gone") }

func TestWitnessRemembersOverARestart(t *testing.T) {
	cfg := config(t)
	w := open(t, cfg)
	g, fork := newGrown(t, origin, 1, "a", 40), newGrown(t, origin, 1, "b", 40)
	if status, _, answer := post(t, w, g.request(0, 20)); status != 200 {
		t.Fatal(status, answer)
	}
	if _, err := witness.New(cfg); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("two witnesses use one folder: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w = open(t, cfg)
	if status, _, answer := post(t, w, fork.request(0, 30)); status != 409 || answer != "20\n" {
		t.Error(status, answer)
	}
	if status, _, answer := post(t, w, fork.request(20, 30)); status != 422 {
		t.Error(status, answer)
	}
	if status, _, answer := post(t, w, g.request(20, 30)); status != 200 {
		t.Error(status, answer)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "*.checkpoint"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	good, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// A damaged state would let the log rewrite its past: the witness does not start.
	for i := 0; i < len(good); i += 7 {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if err := os.WriteFile(files[0], bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := witness.New(cfg); err == nil {
			t.Fatalf("byte %d: started", i)
		}
	}
	for n := range len(good) {
		if err := os.WriteFile(files[0], good[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := witness.New(cfg); err == nil {
			t.Fatalf("cut to %d bytes: started", n)
		}
	}
}

// Of concurrent requests from the same size, one is cosigned; no history ever
// has two.
func TestConcurrentRequestsCannotForkALog(t *testing.T) {
	w := open(t, config(t))
	g := newGrown(t, origin, 1, "a", 40)
	forks := make([][]byte, 16)
	for i := range forks {
		f := newGrown(t, origin, 1, "a", 40)
		f.leaves[30] = auditlog.LeafHash([]byte{byte(i)})
		forks[i] = f.request(10, 40)
	}
	if status, _, answer := post(t, w, g.request(0, 10)); status != 200 {
		t.Fatal(status, answer)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	signed := 0
	for _, body := range forks {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if status, _, _ := post(t, w, body); status == 200 {
				mu.Lock()
				signed++
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	if signed != 1 {
		t.Errorf("%d of %d forks were cosigned", signed, len(forks))
	}
}

func TestExtensionLinesAreCosigned(t *testing.T) {
	w := open(t, config(t))
	g := newGrown(t, origin, 1, "a", 10)
	head, _ := g.head(10)
	signer, err := auditlog.NoteSigner(origin, key(1))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Sign(&note.Note{Text: head.Text() + "more, from the log\n"}, signer)
	if err != nil {
		t.Fatal(err)
	}
	status, _, answer := post(t, w, append([]byte("old 0\n\n"), signed...))
	if status != 200 {
		t.Fatal(status, answer)
	}
	checkOne(t, w.VKey(), append(signed, answer...))
}

func TestConfigurationMistakesAreNamed(t *testing.T) {
	for want, change := range map[string]func(*witness.Config){
		"no log to serve":      func(c *witness.Config) { c.Logs = nil },
		"not a verifier key":   func(c *witness.Config) { c.Logs = []string{"x"} },
		"given twice":          func(c *witness.Config) { c.Logs = append(c.Logs, c.Logs[0]) },
		"no key is configured": func(c *witness.Config) { c.Key = nil },
		"cannot name":          func(c *witness.Config) { c.Name = "a b" },
		"key of its own":       func(c *witness.Config) { c.Key = key(1) },
		"no folder":            func(c *witness.Config) { c.Dir = "" },
	} {
		cfg := config(t)
		change(&cfg)
		if _, err := witness.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzAdd gives the witness any request: nothing panics, and only what
// continues the cosigned checkpoint is cosigned.
func FuzzAdd(f *testing.F) {
	g, fork := newGrown(f, origin, 1, "a", 40), newGrown(f, origin, 1, "b", 40)
	w := open(f, config(f))
	if _, err := w.Add(g.request(0, 20)); err != nil {
		f.Fatal(err)
	}
	next := g.request(20, 20)
	for _, seed := range [][]byte{next, fork.request(20, 40), g.request(0, 20), []byte("old 0\n\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		line, err := w.Add(body)
		if err != nil {
			return
		}
		p, parseErr := auditlog.ParseConsistencyProof(body)
		if parseErr != nil || len(line) == 0 || !bytes.HasPrefix(p.Checkpoint, []byte(origin+"\n20\n")) {
			t.Fatalf("cosigned %q", body)
		}
	})
}

// leaves adapts a reader of leaves.
func leaves(read func(from, to uint64, each func(auditlog.Hash) error) error) auditlog.Leaves {
	return func(_ context.Context, from, to uint64, each func(auditlog.Hash) error) error {
		return read(from, to, each)
	}
}
