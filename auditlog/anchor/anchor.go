// Package anchor takes the checkpoints of an audit log to where its writer
// cannot change them: to a file on another disk, to a witness (C2SP
// tlog-witness), or to a command of the operator. What was anchored cannot be
// rewritten or cut unseen, not even with all keys of the log.
//
// An anchor that holds more than the log, or other records than the log's, is
// never overwritten: it is the evidence, and raises an auditlog.AnchorAlarm.
package anchor

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Anchor is one place that checkpoints are taken to. A Set calls Submit from
// one goroutine; implementations need not be safe for concurrent use.
type Anchor interface {
	// Type is file, witness or command; Name tells it from others of its type.
	Type() string
	Name() string
	// Submit takes a checkpoint there and returns what the anchor gave back. It
	// returns soon after ctx ends. ErrNewer says that nothing is left to do.
	Submit(ctx context.Context, s *Submission) (Receipt, error)
}

// ErrNewer is returned by Submit if the anchor has a newer checkpoint of this
// log already, for example from another process that writes it.
var ErrNewer = errors.New("the anchor has a newer checkpoint of this log")

// Receipt is what an anchor gave back.
type Receipt struct {
	// Note is the checkpoint, with the anchor's own signatures if it made some.
	Note []byte
	// Extra is what a command printed. nil: nothing.
	Extra []byte
}

// Submission is a checkpoint on its way to an anchor.
type Submission struct {
	Note []byte // signed by the log
	Head auditlog.TreeHead
	VKey string // the log's public key
	// Last is the newest receipt of this anchor for this origin, or nil.
	Last []byte
	// Tree proves with the checkpoint's tree. It may read the log.
	Tree func(ctx context.Context) (Prover, error)
	// Has reports whether the log has a record of this seq by now.
	Has func(ctx context.Context, seq uint64) (bool, error)
}

// Prover proves what the tree of a checkpoint has. auditlog.Tree is one.
type Prover interface {
	Consistency(old uint64) ([]auditlog.Hash, error)
	RootAt(size uint64) (auditlog.Hash, error)
}

// alarm makes the error of an anchor that contradicts the log.
func alarm(finding, format string, args ...any) error {
	return &auditlog.AnchorAlarm{Finding: finding, Why: fmt.Sprintf(format, args...)}
}

// continues checks that the log continues what an anchor named by what holds:
// a checkpoint of the same origin that the log's key signed.
func (s *Submission) continues(ctx context.Context, what string, held auditlog.TreeHead) error {
	switch {
	case held == s.Head:
		return nil
	case held.Size == s.Head.Size:
		return alarm("anchor_equivocation", "%s holds a checkpoint of %d records that states other records than this log has", what, held.Size)
	case held.Size > s.Head.Size:
		return s.ahead(ctx, what, held.Size)
	}
	tree, err := s.Tree(ctx)
	if err != nil {
		return err
	}
	root, err := tree.RootAt(held.Size)
	if err != nil {
		return err
	}
	if root != held.Root {
		return alarm("anchor_mismatch", "%s holds a checkpoint of %d records, and the first %d records of this log are others", what, held.Size, held.Size)
	}
	return nil
}

// continuesSigned is continues for a note whose signature is not checked yet.
// One that the log's key of today did not sign is no alarm, which anybody who
// writes there could raise; it may be replaced if the log continues it, as it
// does after a change of the key.
func (s *Submission) continuesSigned(ctx context.Context, what string, held []byte, head auditlog.TreeHead) error {
	err := s.continues(ctx, what, head)
	if err == nil {
		return nil
	}
	if _, sigErr := auditlog.OpenTreeHead(held, s.VKey); sigErr != nil {
		return fmt.Errorf("%s holds a checkpoint that this log's key did not sign and that the log does not continue; it is not replaced (anchor_sig_invalid): keep it for the investigation, and move it away", what)
	}
	return err
}

// ahead is the error of an anchor that has more records than the checkpoint.
func (s *Submission) ahead(ctx context.Context, what string, size uint64) error {
	has, err := s.Has(ctx, size-1)
	if err != nil {
		return err
	}
	if has {
		return ErrNewer
	}
	return alarm("anchor_ahead", "%s holds a checkpoint of %d records, but this log has fewer: it was cut, or put back to an earlier state", what, size)
}

// sameText reports whether two notes have the same text.
func sameText(a, b []byte) bool {
	left, _, okA := bytes.Cut(a, []byte("\n\n"))
	right, _, okB := bytes.Cut(b, []byte("\n\n"))
	return okA && okB && bytes.Equal(left, right)
}
