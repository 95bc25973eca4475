package legacy

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// leafOf is the Merkle leaf of a line without its LF.
func leafOf(text []byte) auditlog.Hash {
	h := sha256.New()
	h.Write([]byte{0x00})
	h.Write(text)
	return auditlog.Hash(h.Sum(nil))
}

// Sum is what an import states of a log.
type Sum struct {
	SHA256 auditlog.Hash // of all bytes of its files, one after the other
	Tree   auditlog.Range
}

// SumLines hashes the files of a log, oldest first, and the tree over their
// lines (leaf: SHA256(0x00 ‖ line without LF)). An unfinished or over-long
// line is an error: it has no place in a tree that others are to rebuild.
func SumLines(ctx context.Context, sources []auditlog.Source, maxLine int) (s Sum, err error) {
	all := sha256.New()
	for _, source := range sources {
		hashed := auditlog.Source{Name: source.Name, Open: func() (io.ReadCloser, error) {
			f, err := source.Open()
			if err != nil {
				return nil, err
			}
			return readCloser{io.TeeReader(f, all), f}, nil
		}}
		var fault error
		err := scan(ctx, hashed, maxLine, func(text []byte, err error) {
			if err != nil && fault == nil {
				fault = err
			}
			s.Tree.Append(leafOf(text))
		}, func() { fault = errors.New("the file does not end with a line feed") })
		if err == nil {
			err = fault
		}
		if err != nil {
			return Sum{}, fmt.Errorf("reading %s: %w", source.Name, err)
		}
	}
	s.SHA256 = auditlog.Hash(all.Sum(nil))
	return s, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// Sign makes a signed note over the lines of a log of another system, to be
// kept elsewhere and given to Verify as an anchor.
func Sign(tree auditlog.Range, origin string, key ed25519.PrivateKey) ([]byte, error) {
	return auditlog.SignTreeHead(auditlog.TreeHead{Origin: origin, Size: tree.Size, Root: tree.Root()}, key)
}

// anchors compares held notes with the lines as they are read.
type anchors struct {
	tree    auditlog.Range
	broken  bool // a line could not be read, so that roots cannot be compared
	waiting []heldAnchor
	faults  []fault
	held    int
}

type heldAnchor struct {
	name string
	head auditlog.TreeHead
	root auditlog.Hash // of the lines, once there are as many
	met  bool
}

type fault struct{ kind, detail string }

func newAnchors(opts *Options) *anchors {
	a := &anchors{held: len(opts.Anchors)}
	for _, anchor := range opts.Anchors {
		head, err := openAnchor(anchor.Note, opts)
		if err != nil {
			kind := "anchor_sig_invalid"
			if errors.Is(err, auditlog.ErrNoteMalformed) {
				kind = "anchor_invalid"
			}
			a.faults = append(a.faults, fault{kind, fmt.Sprintf("%s: %v", anchor.Name, err)})
			continue
		}
		a.waiting = append(a.waiting, heldAnchor{name: anchor.Name, head: head})
	}
	return a
}

// openAnchor checks a note with any of the keys that are given.
func openAnchor(signed []byte, opts *Options) (auditlog.TreeHead, error) {
	stated, err := auditlog.ReadTreeHead(signed)
	if err != nil {
		return stated, err
	}
	vkeys := slices.Clone(opts.VKeys)
	if opts.Keys.Ring != nil {
		for _, key := range opts.Keys.Ring.PublicKeys() {
			if vkey, err := auditlog.VKey(stated.Origin, key.Key); err == nil {
				vkeys = append(vkeys, vkey)
			}
		}
	}
	err = errors.New("no key to check its signature with is given; use --pub or --keys")
	for _, vkey := range vkeys {
		var head auditlog.TreeHead
		if head, err = auditlog.OpenTreeHead(signed, vkey); err == nil {
			return head, nil
		}
	}
	return stated, err
}

func (a *anchors) leaf(text []byte, err error) {
	if a.held == 0 {
		return
	}
	a.broken = a.broken || err != nil
	a.tree.Append(leafOf(text))
	for i := range a.waiting {
		if w := &a.waiting[i]; w.head.Size == a.tree.Size {
			w.root, w.met = a.tree.Root(), true
		}
	}
}

func (a *anchors) finish(j *judge) {
	r := &j.report
	r.Watermarks.Records = uint64(r.Total)
	for _, f := range a.faults {
		j.findAll(f.kind, "%s", f.detail)
	}
	for _, w := range a.waiting {
		switch {
		case w.head.Size > a.tree.Size:
			j.findAll("tail_truncated", "%s covers %d lines, the log has %d", w.name, w.head.Size, a.tree.Size)
		case w.head.Size > 0 && (!w.met || a.broken || w.root != w.head.Root):
			j.findAll("anchor_mismatch", "the first %d lines are not those that %s was made over", w.head.Size, w.name)
		default:
			r.Watermarks.Anchored = max(r.Watermarks.Anchored, w.head.Size)
			r.Watermarks.AnchoredBy = append(r.Watermarks.AnchoredBy, auditlog.AnchoredBy{Name: w.name, Origin: w.head.Origin, Size: w.head.Size})
		}
	}
	r.NotCovered = [2]uint64{r.Watermarks.Anchored + 1, r.Watermarks.Records}
}
