package legacy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// CopierOptions says how entries are written.
type CopierOptions struct {
	// Path is the file that entries are appended to. It is made with mode 0600.
	Path string
	// Secret signs the entries, both signatures: the operator's own, not a key
	// derived from it. KeyID goes into `integrity`.
	Secret []byte
	KeyID  string
	// QueueBytes bounds the records that wait to be written, and again the
	// requests that wait for their outcome. 0: 32 MiB.
	QueueBytes int
	// Logger gets the first of several failures. nil: none.
	Logger *zap.Logger
}

const (
	defaultQueueBytes = 32 << 20
	// maxMarks bounds the queue in records where they have no bytes any more.
	maxMarks = 64 << 10
)

// Copier writes each finished operation and each event as one entry in
// Integrity v2 form, in the order of the log. It is a best effort: it never
// keeps the log waiting, and an entry for which there is no space in memory or
// on the disk is counted and left out. All methods are safe for concurrent use.
type Copier struct {
	opt  CopierOptions
	done chan struct{}

	mu     sync.Mutex
	wake   sync.Cond
	queue  []copied
	bytes  int
	closed bool
	status auditlog.CopyStatus

	// Only the goroutine that writes uses these.
	file   *os.File          // nil until there is something to write
	params map[uint64][]byte // of open intents
	held   int               // their bytes
	torn   bool              // the file may end within a line
}

type copied struct {
	kind   auditlog.CopiedKind
	intent uint64
	body   []byte
}

var _ auditlog.Copier = (*Copier)(nil)

// NewCopier starts the goroutine that writes. The file is opened for the first
// entry; that it cannot be is a failure like any other one. The error is that
// there is no secret.
func NewCopier(opt CopierOptions) (*Copier, error) {
	if len(opt.Secret) == 0 {
		return nil, errors.New("the copy in Integrity v2 form needs the signing secret; set MCP_AUDIT_SIGNING_SECRET")
	}
	if opt.QueueBytes <= 0 {
		opt.QueueBytes = defaultQueueBytes
	}
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	c := &Copier{opt: opt, done: make(chan struct{}), params: map[uint64][]byte{}}
	c.wake.L = &c.mu
	c.status.Path = opt.Path
	go c.run()
	return c, nil
}

// open opens the file. An unfinished last line, from a crash, will be ended,
// so that it spoils no other one.
func (c *Copier) open() error {
	file, err := os.OpenFile(c.opt.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if c.torn, err = endsInLine(file); err != nil {
		return errors.Join(err, file.Close())
	}
	c.file = file
	return nil
}

// endsInLine reports whether the last byte of a file is no line feed.
func endsInLine(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false, err
	}
	var last [1]byte
	_, err = file.ReadAt(last[:], info.Size()-1)
	return last[0] != '\n', err
}

// Copy implements auditlog.Copier.
func (c *Copier) Copy(r auditlog.Copied) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
	case c.bytes+len(r.Body) > c.opt.QueueBytes && len(c.queue) > 0:
		if r.Kind != auditlog.CopiedIntent {
			c.status.Dropped++
		}
		if r.Kind != auditlog.CopiedEvent && len(c.queue) < maxMarks {
			// The intent's params must be known as missing, or forgotten.
			c.queue = append(c.queue, copied{kind: r.Kind, intent: r.Intent})
		}
	default:
		c.queue = append(c.queue, copied{r.Kind, r.Intent, bytes.Clone(r.Body)})
		c.bytes += len(r.Body)
		c.wake.Signal()
	}
}

// Status implements auditlog.Copier.
func (c *Copier) Status() auditlog.CopyStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

// Close implements auditlog.Copier. It is idempotent. Entries that could not be
// written are not an error of Close: they are counted.
func (c *Copier) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	c.wake.Signal()
	c.mu.Unlock()
	<-c.done
	if !first || c.file == nil {
		return nil
	}
	if err := errors.Join(c.file.Sync(), c.file.Close()); err != nil {
		return fmt.Errorf("closing %s: %w", c.opt.Path, err)
	}
	return nil
}

// run writes what is queued until the Copier is closed and the queue empty.
func (c *Copier) run() {
	defer close(c.done)
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.wake.Wait()
		}
		batch := c.queue
		c.queue = nil
		closed := c.closed
		c.mu.Unlock()
		if len(batch) == 0 && closed {
			return
		}
		c.write(batch)
	}
}

// maxWrite is about how many bytes are written at once.
const maxWrite = 1 << 20

// write makes the entries of a batch and appends them.
func (c *Copier) write(batch []copied) {
	var lines []byte
	entries := uint64(0)
	flush := func() {
		if entries > 0 {
			c.append(lines, entries)
		}
		lines, entries = lines[:0], 0
	}
	for i, r := range batch {
		line, err := c.entry(r)
		batch[i].body = nil
		c.mu.Lock()
		c.bytes -= len(r.body)
		c.mu.Unlock()
		if err != nil {
			c.failed(1, err)
		}
		if line == nil {
			continue
		}
		lines = append(append(lines, line...), '\n')
		if entries++; len(lines) >= maxWrite {
			flush()
		}
	}
	flush()
}

// entry is the line of a record; nil if it makes none.
func (c *Copier) entry(r copied) ([]byte, error) {
	if r.kind == auditlog.CopiedIntent {
		params := auditlog.ObjectMember(r.body, "params")
		if params == nil && r.body != nil {
			return nil, nil
		}
		if r.body == nil || c.held+len(params) > c.opt.QueueBytes {
			c.params[r.intent] = nil
			return nil, nil
		}
		c.params[r.intent] = bytes.Clone(params)
		c.held += len(params)
		return nil, nil
	}
	params := auditlog.ObjectMember(r.body, "params")
	if r.kind == auditlog.CopiedOutcome {
		kept, known := c.params[r.intent]
		delete(c.params, r.intent)
		c.held -= len(kept)
		switch {
		case r.body == nil:
			return nil, nil // counted when it was queued
		case known && kept == nil:
			c.mu.Lock()
			c.status.Dropped++
			c.mu.Unlock()
			return nil, nil
		}
		params = kept
	}
	line, err := appendEntry(nil, r.body, params, c.opt.Secret, c.opt.KeyID)
	if err == nil && len(line) >= auditlog.MaxLine {
		return nil, errors.New("the entry is longer than the longest line that readers take")
	}
	return line, err
}

// append writes lines in one piece.
func (c *Copier) append(lines []byte, entries uint64) {
	if c.file == nil {
		if err := c.open(); err != nil {
			c.failed(entries, err)
			return
		}
	}
	if c.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := c.file.Write(lines)
	if err != nil {
		c.torn = n > 0 && lines[n-1] != '\n' || c.torn && n == 0
		c.failed(entries, err)
		return
	}
	c.torn = false
	c.mu.Lock()
	c.status.Written += entries
	c.status.Err = ""
	c.mu.Unlock()
}

// failed counts entries, and logs the first failure behind a success.
func (c *Copier) failed(entries uint64, err error) {
	c.mu.Lock()
	first := c.status.Err == ""
	c.status.Failed += entries
	c.status.Err = err.Error()
	c.mu.Unlock()
	if first {
		c.opt.Logger.Error("entries are missing in the copy of the audit log in Integrity v2 form; the log itself is not concerned",
			zap.String("copy", c.opt.Path), zap.Error(err))
	}
}
