package auditlog

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
)

// TreeHead is what a checkpoint states: the log's origin, the number of
// records and the Merkle root over their leaves.
type TreeHead struct {
	Origin string
	Size   uint64
	Root   Hash
}

// Text is the C2SP checkpoint text: exactly three lines.
func (t TreeHead) Text() string {
	return t.Origin + "\n" + strconv.FormatUint(t.Size, 10) + "\n" + base64.StdEncoding.EncodeToString(t.Root[:]) + "\n"
}

// ParseTreeHead reads a checkpoint text. Anything but three lines in the one
// spelling of Text is an error.
func ParseTreeHead(text string) (TreeHead, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return TreeHead{}, errors.New("a checkpoint has exactly three lines: origin, size and root")
	}
	size, err := strconv.ParseUint(lines[1], 10, 53)
	if err != nil || strconv.FormatUint(size, 10) != lines[1] {
		return TreeHead{}, fmt.Errorf("the checkpoint's size %q is not a decimal number", lines[1])
	}
	root, err := base64.StdEncoding.Strict().DecodeString(lines[2])
	if err != nil || len(root) != HashSize {
		return TreeHead{}, errors.New("the checkpoint's root is not a base64 SHA-256 value")
	}
	return TreeHead{Origin: lines[0], Size: size, Root: Hash(root)}, nil
}

// The bounds of a signed note, so that a hostile one costs little.
const (
	maxNoteBytes      = 64 << 10
	maxNoteSignatures = 16
)

// ErrNoteMalformed is returned for a note whose shape is wrong, before any
// signature is looked at.
var ErrNoteMalformed = errors.New("not a signed note")

// ErrNoteUnsigned is returned for a well-formed note without a valid
// signature of the expected key.
var ErrNoteUnsigned = errors.New("no valid signature of the expected key")

// SignTreeHead makes the signed note of a tree head. The key name is the origin.
func SignTreeHead(t TreeHead, key ed25519.PrivateKey) ([]byte, error) {
	signer, err := NoteSigner(t.Origin, key)
	if err != nil {
		return nil, err
	}
	return note.Sign(&note.Note{Text: t.Text()}, signer)
}

// OpenTreeHead checks a signed note against a verifier key (vkey text) and
// returns what it states. Further signatures are ignored, up to 16.
func OpenTreeHead(signed []byte, vkey string) (TreeHead, error) {
	verifier, err := note.NewVerifier(vkey)
	if err != nil {
		return TreeHead{}, fmt.Errorf("verifier key: %w", err)
	}
	text, err := openNote(signed, verifier)
	if err != nil {
		return TreeHead{}, err
	}
	t, err := ParseTreeHead(text)
	if err != nil {
		return TreeHead{}, fmt.Errorf("%w: %w", ErrNoteUnsigned, err)
	}
	if t.Origin != verifier.Name() {
		return TreeHead{}, fmt.Errorf("%w: the checkpoint's origin %q is not the key name %q", ErrNoteUnsigned, t.Origin, verifier.Name())
	}
	return t, nil
}

// ReadTreeHead reads what a signed note states without checking a signature.
func ReadTreeHead(signed []byte) (TreeHead, error) {
	if err := checkNoteShape(signed); err != nil {
		return TreeHead{}, err
	}
	text, _, _ := strings.Cut(string(signed), "\n\n")
	return ParseTreeHead(text + "\n")
}

func openNote(signed []byte, verifiers ...note.Verifier) (string, error) {
	if err := checkNoteShape(signed); err != nil {
		return "", err
	}
	n, err := note.Open(signed, note.VerifierList(verifiers...))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNoteUnsigned, err)
	}
	if len(n.Sigs) != len(verifiers) {
		return "", ErrNoteUnsigned
	}
	return n.Text, nil
}

func checkNoteShape(signed []byte) error {
	switch {
	case len(signed) > maxNoteBytes:
		return fmt.Errorf("%w: larger than 64 KiB", ErrNoteMalformed)
	case !utf8.Valid(signed):
		return fmt.Errorf("%w: not UTF-8", ErrNoteMalformed)
	case strings.ContainsRune(string(signed), '\r'):
		return fmt.Errorf("%w: carriage return", ErrNoteMalformed)
	}
	_, sigs, ok := strings.Cut(string(signed), "\n\n")
	if !ok || !strings.HasSuffix(sigs, "\n") {
		return fmt.Errorf("%w: no signature block", ErrNoteMalformed)
	}
	if n := strings.Count(sigs, "\n"); n > maxNoteSignatures {
		return fmt.Errorf("%w: more than %d signatures", ErrNoteMalformed, maxNoteSignatures)
	}
	return nil
}

// NoteSigner makes a signer of notes with the given key name.
func NoteSigner(name string, key ed25519.PrivateKey) (note.Signer, error) {
	vkey, err := VKey(name, key.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	hash := strings.SplitN(strings.TrimPrefix(vkey, name+"+"), "+", 2)[0]
	return note.NewSigner("PRIVATE+KEY+" + name + "+" + hash + "+" +
		base64.StdEncoding.EncodeToString(append([]byte{1}, key.Seed()...)))
}

// VKey is the verifier key text (golang.org/x/mod/sumdb/note) of a public key.
func VKey(name string, key ed25519.PublicKey) (string, error) {
	return note.NewEd25519VerifierKey(name, key)
}
