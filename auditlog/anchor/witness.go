package anchor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Witness asks a witness (C2SP tlog-witness) to cosign each checkpoint. The
// witness signs only what continues all it has seen of the log, so a cosigned
// checkpoint shows everyone the same log.
type Witness struct {
	url  string // of add-checkpoint
	key  *auditlog.Cosigner
	http *http.Client
}

// witnessTimeout is how long one request may take.
const witnessTimeout = 10 * time.Second

// maxAnswer bounds a witness's answer: a few signature lines.
const maxAnswer = 64 << 10

// NewWitness returns the anchor of the witness at a URL (its submission
// prefix) with a verifier key. client may be nil; redirects are not followed.
func NewWitness(prefix, vkey string, client *http.Client) (*Witness, error) {
	u, err := url.Parse(prefix)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("anchor witness: %q is not an address such as https://witness.example/", prefix)
	}
	key, err := auditlog.ParseCosigner(vkey)
	if err != nil {
		return nil, fmt.Errorf("anchor witness %s: %w", prefix, err)
	}
	if client == nil {
		client = &http.Client{}
	}
	own := *client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Timeout = witnessTimeout
	return &Witness{u.JoinPath("add-checkpoint").String(), key, &own}, nil
}

// Type implements Anchor.
func (w *Witness) Type() string { return "witness" }

// Name implements Anchor: the witness's name.
func (w *Witness) Name() string { return w.key.Name() }

// Submit implements Anchor. What the witness answers is only returned if it is
// its valid cosignature of this very checkpoint.
func (w *Witness) Submit(ctx context.Context, s *Submission) (Receipt, error) {
	old, err := w.known(ctx, s)
	if err != nil {
		return Receipt{}, err
	}
	// The witness says by 409 what it has; that can change between two calls.
	for range 3 {
		status, kind, answer, err := w.send(ctx, s, old)
		if err != nil {
			return Receipt{}, err
		}
		switch status {
		case http.StatusOK:
			note, err := w.receipt(s, answer)
			return Receipt{Note: note}, err
		case http.StatusConflict:
			size, err := conflictSize(kind, answer)
			switch {
			case err != nil:
				return Receipt{}, fmt.Errorf("the witness %s answered 409: %w", w.Name(), err)
			case size == s.Head.Size && old == s.Head.Size:
				return Receipt{}, alarm("anchor_equivocation", "the witness %s has cosigned another checkpoint of %d records of this log", w.Name(), size)
			case size == old:
				return Receipt{}, fmt.Errorf("the witness %s answered 409 with the size that it was sent (%d)", w.Name(), size)
			case size > s.Head.Size:
				return Receipt{}, s.ahead(ctx, "the witness "+w.Name(), size)
			}
			old = size
		case http.StatusUnprocessableEntity:
			return Receipt{}, alarm("anchor_mismatch", "the witness %s has cosigned a checkpoint of %d records, which this log does not continue", w.Name(), old)
		case http.StatusNotFound:
			return Receipt{}, fmt.Errorf("the witness %s does not know the log %s, or its address is another one (404 at %s); give its operator the log's public key", w.Name(), s.Head.Origin, w.url)
		case http.StatusForbidden:
			return Receipt{}, fmt.Errorf("the witness %s does not accept this log's signature (403); give its operator the log's public key, %s", w.Name(), s.VKey)
		default:
			return Receipt{}, fmt.Errorf("the witness %s answered %d: %s", w.Name(), status, clip(answer))
		}
	}
	return Receipt{}, fmt.Errorf("the witness %s changes too fast: another process anchors this log, too", w.Name())
}

// known is the size that the witness has cosigned last, as far as its receipt
// says; 0 makes it tell.
func (w *Witness) known(ctx context.Context, s *Submission) (uint64, error) {
	if head, err := w.check(s.VKey, s.Last); err == nil && head.Origin == s.Head.Origin {
		return head.Size, s.continues(ctx, "the receipt of the witness "+w.Name(), head)
	}
	return 0, nil // no receipt of its own: nothing to go by
}

func (w *Witness) send(ctx context.Context, s *Submission, old uint64) (status int, kind string, answer []byte, err error) {
	proof := auditlog.ConsistencyProof{Old: old, Checkpoint: s.Note}
	if old > 0 && old < s.Head.Size {
		tree, err := s.Tree(ctx)
		if err != nil {
			return 0, "", nil, err
		}
		if proof.Path, err = tree.Consistency(old); err != nil {
			return 0, "", nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(proof.Text()))
	if err != nil {
		return 0, "", nil, err
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	res, err := w.http.Do(req)
	if err != nil {
		return 0, "", nil, fmt.Errorf("the witness %s cannot be reached: %w", w.Name(), err)
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, "", nil, fmt.Errorf("the witness %s did not answer in full: %w", w.Name(), err)
	case len(answer) > maxAnswer:
		return 0, "", nil, fmt.Errorf("the witness %s answered more than %d KiB", w.Name(), maxAnswer>>10)
	}
	return res.StatusCode, res.Header.Get("Content-Type"), answer, nil
}

// receipt makes the cosigned note of an answer. Lines of other keys are left
// out; without a valid one of this witness there is none.
func (w *Witness) receipt(s *Submission, answer []byte) ([]byte, error) {
	note := bytes.Clone(s.Note)
	for line := range bytes.Lines(answer) {
		if bytes.HasPrefix(line, []byte("— "+w.key.Name()+" ")) && bytes.HasSuffix(line, []byte("\n")) {
			// Of several lines, the one that holds counts.
			one := append(bytes.Clone(s.Note), line...)
			if _, err := w.check(s.VKey, one); err == nil {
				return one, nil
			}
			note = one
		}
	}
	_, err := w.check(s.VKey, note)
	return nil, fmt.Errorf("the answer of the witness %s is no valid cosignature of this checkpoint, and is not kept: %w", w.Name(), err)
}

// check checks that the log signed a note and that this witness cosigned it.
func (w *Witness) check(vkey string, note []byte) (auditlog.TreeHead, error) {
	policy, err := auditlog.ParsePolicy([]byte("log " + vkey + "\nwitness w " + w.key.VKey() + "\nquorum w\n"))
	if err != nil {
		return auditlog.TreeHead{}, err
	}
	head, _, err := policy.OpenCheckpoint(note)
	return head, err
}

// conflictSize reads the body of a 409: a size and a line feed.
func conflictSize(kind string, answer []byte) (uint64, error) {
	text, ok := strings.CutSuffix(string(answer), "\n")
	size, err := strconv.ParseUint(text, 10, 53)
	if media, _, _ := strings.Cut(kind, ";"); !ok || err != nil || strconv.FormatUint(size, 10) != text || strings.TrimSpace(media) != "text/x.tlog.size" {
		return 0, fmt.Errorf("without the size that it has cosigned: %s", clip(answer))
	}
	return size, nil
}

// clip makes a foreign text fit for a message.
func clip(text []byte) string {
	return fmt.Sprintf("%.200q", strings.ToValidUTF8(string(bytes.TrimSpace(text)), "?"))
}
