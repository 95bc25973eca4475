package anchor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// Target is an anchor of a set.
type Target struct {
	Anchor
	// Required: while the anchor fails, the log takes no new record.
	Required bool
}

// Options is what a Set needs.
type Options struct {
	// Log is the path of the log, beside which receipts and tiles lie.
	Log string
	// VKey returns the log's public key of the moment.
	VKey func() string
	// Sources lists the log's files, oldest first.
	Sources func() ([]auditlog.Source, error)
	Targets []Target
	// Logger gets diagnostics. nil: none.
	Logger *zap.Logger
	// Gap is the time between two submissions to an anchor, Retry that after
	// the first failure; it doubles up to RetryMax. 0: 1 s, 1 s, 1 min.
	Gap, Retry, RetryMax time.Duration
	// Now is the clock. nil: time.Now.
	Now func() time.Time
}

// Set takes a log's checkpoints to its anchors, each at its own pace: an
// anchor that is slow or down holds up neither the log nor the others. Of the
// checkpoints that come meanwhile it gets the newest. It implements
// auditlog.AnchorSet.
type Set struct {
	o       Options
	workers []*worker
	ctx     context.Context
	cancel  context.CancelFunc
	quit    chan struct{}
	once    sync.Once
	done    sync.WaitGroup

	tilesMu sync.Mutex // one use of the tiles at a time
}

// submitTimeout bounds one submission, the making of its proof included.
const submitTimeout = 5 * time.Minute

// New starts a set. Close ends it.
func New(o Options) *Set {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{{&o.Gap, time.Second}, {&o.Retry, time.Second}, {&o.RetryMax, time.Minute}} {
		if *d.at <= 0 {
			*d.at = d.value
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Set{o: o, quit: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, t := range o.Targets {
		w := &worker{set: s, target: t, wake: make(chan struct{}, 1)}
		s.workers = append(s.workers, w)
		s.done.Add(1)
		go func() {
			defer s.done.Done()
			w.run()
		}()
	}
	return s
}

// Offer implements auditlog.AnchorSet.
func (s *Set) Offer(note []byte) {
	head, err := auditlog.ReadTreeHead(note)
	if err != nil {
		s.o.Logger.Error("a checkpoint that cannot be read is not anchored", zap.String("log", s.o.Log), zap.Error(err))
		return
	}
	for _, w := range s.workers {
		w.offer(bytes.Clone(note), head)
	}
}

// Blocked implements auditlog.AnchorSet.
func (s *Set) Blocked() error {
	for _, w := range s.workers {
		if err := w.blocked(); err != nil {
			return err
		}
	}
	return nil
}

// Alarm implements auditlog.AnchorSet.
func (s *Set) Alarm() error {
	for _, w := range s.workers {
		var a *auditlog.AnchorAlarm
		if errors.As(w.failure(), &a) {
			return a
		}
	}
	return nil
}

// Status implements auditlog.AnchorSet.
func (s *Set) Status() []auditlog.AnchorStatus {
	list := make([]auditlog.AnchorStatus, len(s.workers))
	for i, w := range s.workers {
		list[i] = w.status()
	}
	return list
}

// Close implements auditlog.AnchorSet. Each anchor is tried once more with
// what waits for it.
func (s *Set) Close(ctx context.Context) error {
	s.once.Do(func() { close(s.quit) })
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	s.done.Wait()
	s.cancel()
	var errs []error
	for _, w := range s.workers {
		if st := w.status(); st.Waiting > 0 {
			errs = append(errs, fmt.Errorf("the anchor %s %s has not taken the checkpoint of %d records: %s", st.Type, st.Name, st.Waiting, st.Err))
		}
	}
	return errors.Join(errs...)
}

// submission is a checkpoint on its way to one anchor.
func (s *Set) submission(w *worker, note []byte, head auditlog.TreeHead) *Submission {
	leaves := auditlog.LeavesOf(head.Origin, s.o.Sources)
	last, err := os.ReadFile(s.receiptPath(w, head.Origin, "checkpoint"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.o.Logger.Warn("the receipt of an anchor cannot be read", zap.String("log", s.o.Log), zap.Error(err))
	}
	return &Submission{
		Note: note, Head: head, VKey: s.o.VKey(), Last: last,
		Tree: func(ctx context.Context) (Prover, error) { return s.tree(ctx, note, head, leaves) },
		Has: func(ctx context.Context, seq uint64) (bool, error) {
			return has(ctx, leaves, seq)
		},
	}
}

// has reports whether there is a record of a seq.
func has(ctx context.Context, leaves auditlog.Leaves, seq uint64) (bool, error) {
	found := false
	err := leaves(ctx, seq, seq+1, func(auditlog.Hash) error {
		found = true
		return nil
	})
	if errors.Is(err, auditlog.ErrLeafMissing) {
		return false, nil
	}
	return found, err
}

// tree brings the tiles up to a checkpoint.
func (s *Set) tree(ctx context.Context, note []byte, head auditlog.TreeHead, leaves auditlog.Leaves) (Prover, error) {
	s.tilesMu.Lock()
	defer s.tilesMu.Unlock()
	tiles := auditlog.NewTiles(nil, auditlog.TilesDir(s.o.Log, head.Origin))
	if err := tiles.Grow(ctx, note, leaves); err != nil {
		return nil, fmt.Errorf("reading the log for its proof: %w", err)
	}
	return &sharedTree{set: s, tiles: tiles, note: note, head: head, leaves: leaves, ctx: ctx}, nil
}

// sharedTree is a Prover that has the tiles made anew if they are damaged.
type sharedTree struct {
	set    *Set
	tiles  *auditlog.Tiles
	note   []byte
	head   auditlog.TreeHead
	leaves auditlog.Leaves
	ctx    context.Context // of the submission that the tree was made for
}

func (t *sharedTree) Consistency(old uint64) (path []auditlog.Hash, err error) {
	err = t.use(func(tree auditlog.Tree) error {
		path, err = tree.Consistency(old)
		return err
	})
	return path, err
}

func (t *sharedTree) RootAt(size uint64) (root auditlog.Hash, err error) {
	err = t.use(func(tree auditlog.Tree) error {
		root, err = tree.RootAt(size)
		return err
	})
	return root, err
}

func (t *sharedTree) use(do func(auditlog.Tree) error) error {
	t.set.tilesMu.Lock()
	defer t.set.tilesMu.Unlock()
	err := do(t.tiles.Tree(t.head))
	if !errors.Is(err, auditlog.ErrTreeDiffers) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := t.tiles.Remake(t.ctx, t.note, t.leaves); err != nil {
		return fmt.Errorf("the tiles beside the log are damaged, and could not be made anew: %w", err)
	}
	return do(t.tiles.Tree(t.head))
}

// receiptPath is where an anchor's receipt lies: LOG.anchors/iN.TYPE-HASH.END.
func (s *Set) receiptPath(w *worker, origin, end string) string {
	_, number := incarnation(origin)
	sum := sha256.Sum256([]byte(w.target.Type() + "\n" + w.target.Name()))
	return filepath.Join(s.o.Log+".anchors", fmt.Sprintf("i%d.%s-%s.%s", number, w.target.Type(), hex.EncodeToString(sum[:4]), end))
}

// keep stores a receipt.
func (s *Set) keep(w *worker, origin string, r Receipt) error {
	files := []struct {
		end  string
		data []byte
	}{{"receipt", r.Extra}, {"checkpoint", r.Note}}
	for _, f := range files {
		if len(f.data) == 0 {
			continue
		}
		path := s.receiptPath(w, origin, f.end)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := writeFile(path, f.data); err != nil {
			return err
		}
	}
	return nil
}

// writeFile replaces a file as a whole, durably.
func writeFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func describe(t Target) string { return strings.TrimSpace(t.Type() + " " + t.Name()) }
