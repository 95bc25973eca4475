// Package witness is a witness of transparency logs (C2SP tlog-witness): it
// cosigns a checkpoint of a log it knows if that continues all checkpoints of
// the log that it has cosigned before. So whoever has its cosignature knows
// that the log shows everyone the same records.
package witness

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/mod/sumdb/note"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Config is what a witness needs.
type Config struct {
	// Name names the witness in its cosignatures; a schema-less URL is usual.
	Name string
	// Key signs. It must not be the key of a log.
	Key ed25519.PrivateKey
	// Logs are the verifier keys of the logs that it serves. A log is known by
	// the name of its key, which is its origin.
	Logs []string
	// Dir is the folder that keeps the newest cosigned checkpoint of each log.
	// Whoever loses it has a witness that would sign another history.
	Dir string
	// Logger gets diagnostics. nil: none.
	Logger *zap.Logger
	// Now is the clock. nil: time.Now.
	Now func() time.Time
}

// Witness serves add-checkpoint. It is an http.Handler and safe for concurrent
// use.
type Witness struct {
	cfg   Config
	vkey  string
	store *store
	logs  map[string]*watched
}

// watched is a log that the witness knows.
type watched struct {
	keys note.Verifiers

	mu   sync.Mutex // held from the check to the storing: compare and swap
	size uint64     // of the newest cosigned checkpoint, 0 if there is none
	root auditlog.Hash
}

// maxRequest bounds a request: 63 hashes, and a checkpoint of up to 64 KiB.
const maxRequest = 80 << 10

// New opens a witness and takes its folder, which no other process may use
// meanwhile, until Close.
func New(cfg Config) (*Witness, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if len(cfg.Key) != ed25519.PrivateKeySize {
		return nil, errors.New("witness: no key is configured")
	}
	public := cfg.Key.Public().(ed25519.PublicKey)
	vkey, err := auditlog.CosignerVKey(cfg.Name, public)
	if err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	w := &Witness{cfg: cfg, vkey: vkey, logs: map[string]*watched{}}
	keys := map[string][]note.Verifier{}
	for _, text := range cfg.Logs {
		origin, key, err := auditlog.ParseVKey(text)
		if err != nil {
			return nil, fmt.Errorf("witness: %w", err)
		}
		if key.Equal(public) {
			return nil, fmt.Errorf("witness: its key is also that of the log %s; give the witness a key of its own", origin)
		}
		verifier, err := note.NewVerifier(text)
		if err != nil {
			return nil, fmt.Errorf("witness: the key of %s: %w", origin, err)
		}
		for _, other := range keys[origin] {
			if other.KeyHash() == verifier.KeyHash() {
				return nil, fmt.Errorf("witness: the log %s is given twice; keep one", origin)
			}
		}
		keys[origin] = append(keys[origin], verifier)
	}
	if len(keys) == 0 {
		return nil, errors.New("witness: there is no log to serve; give the public key of at least one")
	}
	if w.store, err = openStore(cfg.Dir); err != nil {
		return nil, fmt.Errorf("witness: %w", err)
	}
	for origin, verifiers := range keys {
		l := &watched{keys: note.VerifierList(verifiers...)}
		if err := w.restore(origin, l); err != nil {
			return nil, errors.Join(fmt.Errorf("witness: %w", err), w.store.close())
		}
		w.logs[origin] = l
	}
	return w, nil
}

// restore reads what was cosigned of a log. What cannot be read is an error:
// going on from nothing would let the log rewrite its past.
func (w *Witness) restore(origin string, l *watched) error {
	signed, err := w.store.load(origin)
	if err != nil || signed == nil {
		return err
	}
	c, err := parseCheckpoint(signed)
	if err == nil && c.Origin != origin {
		err = fmt.Errorf("it is of %q", c.Origin)
	}
	if err == nil {
		_, err = note.Open(signed, l.keys)
	}
	if err != nil {
		return fmt.Errorf("the checkpoint that was cosigned last of %s, %s, is damaged or not signed with a key that was given: %w", origin, w.store.path(origin), err)
	}
	l.size, l.root = c.Size, c.Root
	return nil
}

// Close gives the folder back.
func (w *Witness) Close() error { return w.store.close() }

// VKey is the witness's verifier key, for policies and for anchors.
func (w *Witness) VKey() string { return w.vkey }

// refusal is an answer other than a cosignature.
type refusal struct {
	status int
	why    string
	size   uint64 // with 409
}

func (r *refusal) Error() string { return r.why }

func refuse(status int, format string, args ...any) error {
	return &refusal{status: status, why: fmt.Sprintf(format, args...)}
}

// ServeHTTP answers POST /add-checkpoint.
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	line, err := w.answer(rw, r)
	if err == nil {
		rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = rw.Write(line)
		return
	}
	var no *refusal
	if !errors.As(err, &no) {
		w.cfg.Logger.Error("a checkpoint could not be cosigned", zap.Error(err))
		no = &refusal{status: http.StatusInternalServerError, why: "the witness cannot keep its state"}
	}
	rw.Header().Set("X-Content-Type-Options", "nosniff")
	if no.status == http.StatusConflict {
		rw.Header().Set("Content-Type", "text/x.tlog.size")
		rw.WriteHeader(no.status)
		_, _ = io.WriteString(rw, strconv.FormatUint(no.size, 10)+"\n")
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.WriteHeader(no.status)
	_, _ = io.WriteString(rw, no.why+"\n")
}

func (w *Witness) answer(rw http.ResponseWriter, r *http.Request) ([]byte, error) {
	switch {
	case r.URL.Path != "/add-checkpoint":
		return nil, refuse(http.StatusNotFound, "there is POST /add-checkpoint only")
	case r.Method != http.MethodPost:
		rw.Header().Set("Allow", http.MethodPost)
		return nil, refuse(http.StatusMethodNotAllowed, "add-checkpoint takes POST")
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxRequest))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, refuse(http.StatusRequestEntityTooLarge, "the request is larger than %d KiB", maxRequest>>10)
		}
		return nil, refuse(http.StatusBadRequest, "the request ended early")
	}
	return w.Add(body)
}

// Add judges the body of an add-checkpoint request and returns the witness's
// signature line, with its LF. It returns after the checkpoint is on the disk.
func (w *Witness) Add(body []byte) ([]byte, error) {
	p, err := auditlog.ParseConsistencyProof(body)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	c, err := parseCheckpoint(p.Checkpoint)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%v", err)
	}
	l := w.logs[c.Origin]
	if l == nil {
		return nil, refuse(http.StatusNotFound, "the log %.200q is not known here", c.Origin)
	}
	if _, err := note.Open(p.Checkpoint, l.keys); err != nil {
		return nil, refuse(http.StatusForbidden, "the checkpoint has no valid signature of the log's key")
	}
	if p.Old > c.Size {
		return nil, refuse(http.StatusBadRequest, "the old size %d is larger than the checkpoint's, %d", p.Old, c.Size)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.follows(p, c.TreeHead); err != nil {
		w.cfg.Logger.Info("a checkpoint was not cosigned", zap.String("origin", c.Origin), zap.Uint64("size", c.Size), zap.Error(err))
		return nil, err
	}
	if c.Size > l.size {
		if err := w.store.save(c.Origin, p.Checkpoint); err != nil {
			return nil, err
		}
		l.size, l.root = c.Size, c.Root
	}
	return auditlog.Cosign([]byte(c.text), w.cfg.Name, w.cfg.Key, w.cfg.Now())
}

// follows checks that a checkpoint continues what was cosigned of the log.
func (l *watched) follows(p *auditlog.ConsistencyProof, head auditlog.TreeHead) error {
	var empty auditlog.Range
	root := l.root
	if l.size == 0 {
		root = empty.Root()
	}
	switch {
	case p.Old != l.size:
		return &refusal{http.StatusConflict, fmt.Sprintf("the checkpoint cosigned last has %d records", l.size), l.size}
	case p.Old == head.Size && head.Root != root:
		return &refusal{http.StatusConflict, fmt.Sprintf("another checkpoint of %d records was cosigned", l.size), l.size}
	case p.Old == head.Size && len(p.Path) > 0:
		return refuse(http.StatusUnprocessableEntity, "a proof between equal sizes has no hashes")
	case p.Old < head.Size:
		if err := p.CheckPath(root, head); err != nil {
			return refuse(http.StatusUnprocessableEntity, "%v", err)
		}
	}
	return nil
}

// checkpoint is a tree head and the text that is cosigned, which may have
// extension lines.
type checkpoint struct {
	auditlog.TreeHead
	text string
}

// parseCheckpoint reads a checkpoint (C2SP tlog-checkpoint) without looking at
// signatures.
func parseCheckpoint(signed []byte) (c checkpoint, err error) {
	text, _, ok := strings.Cut(string(signed), "\n\n")
	lines := strings.Split(text, "\n")
	if !ok || len(lines) < 3 || lines[0] == "" {
		return c, errors.New("the checkpoint has fewer than three lines: origin, size and root")
	}
	c.Origin, c.text = lines[0], text+"\n"
	if c.Size, err = strconv.ParseUint(lines[1], 10, 63); err != nil || strconv.FormatUint(c.Size, 10) != lines[1] {
		return c, errors.New("the checkpoint's size is not a decimal number")
	}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != auditlog.HashSize {
		return c, errors.New("the checkpoint's root is not a SHA-256 value in base64")
	}
	c.Root = auditlog.Hash(root)
	// The whole must be a note: signed with no key at all it is an error of its
	// own kind.
	var unverified *note.UnverifiedNoteError
	if _, err := note.Open(signed, note.VerifierList()); !errors.As(err, &unverified) || unverified.Note.Text != c.text {
		return c, errors.New("the checkpoint is not a signed note")
	}
	return c, nil
}
