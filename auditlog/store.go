package auditlog

import (
	"errors"
	"time"
)

// Store keeps a log's bytes and what belongs to it. One Log uses it; other
// processes may use the same log through their own Store. auditlog/jsonl has
// the implementation for files, auditlog/sqlite the one for a database.
//
// Lock and Unlock bracket one commit across processes and goroutines; the
// methods of the second group are called only in between. Sync, Stage and
// SyncFolder are called by one goroutine at a time, with or without the lock.
type Store interface {
	// Path names the log in messages.
	Path() string
	// Open prepares the store for a run (an id that is unique to this Log).
	// It creates the folder, but not the log.
	Open(run string) error
	// Close gives up everything that Open acquired.
	Close() error

	// Lock takes the commit lock. An error that is ErrReplaced says that the
	// lock is no longer the one that other processes take.
	Lock() error
	Unlock() error

	// Stat says what is stored at the log's path now. ErrReplaced: not the
	// log that was opened.
	Stat() (StoreInfo, error)
	// Create makes an empty log; it fails if there is one.
	Create() error
	// ReadAt reads log bytes, as io.ReaderAt.
	ReadAt(p []byte, pos int64) (int, error)
	// Append writes a batch at pos, the end of the log. After an error any
	// part of it may have been written.
	Append(batch []byte, pos int64) error
	// Truncate cuts the log back to size.
	Truncate(size int64) error
	// Quarantine copies the log's bytes from pos on to a file of their own,
	// durably, and returns its name.
	Quarantine(pos int64, at time.Time) (name string, err error)
	// Replace moves the log aside, under a name that carries its segment
	// number and the time, and puts a new log with the given content in its
	// place, durably. It returns the name of the old one, or "" if there was none.
	Replace(segment uint64, at time.Time, content []byte) (old string, err error)
	// Publish puts a staged document in its place, atomically.
	Publish(d Document) error
	// Reserve sets aside disk space that Release frees when the disk is full.
	Reserve() error
	Release() error
	// Register makes this store's run known and holds it for life. Alive
	// reports whether the store of a run still does. Runs lists all that were
	// registered and not forgotten.
	Register() error
	Alive(run string) (bool, error)
	Runs() ([]string, error)
	Forget(run string) error

	// Sync makes all that was appended before the call durable.
	Sync() error
	// Reopen drops the descriptor after a failed Sync: the kernel reports such
	// a failure once and then takes the data for written.
	Reopen() error
	// Load returns a document; fs.ErrNotExist if there is none.
	Load(d Document) ([]byte, error)
	// Stage prepares a document, durably, without putting it in its place.
	Stage(d Document, data []byte) error
	// SyncFolder makes what was published durable.
	SyncFolder() error
}

// ExclusiveStore is a Store that can be held by one process for as long as it is
// open. Only then can a log's keys evolve.
type ExclusiveStore interface {
	Store
	// Exclusive reports whether it is held so.
	Exclusive() bool
}

// StoreInfo is what Store.Stat reports.
type StoreInfo struct {
	Exists bool
	Size   int64
	ID     uint64 // the inode, or 0
}

// Document is one of the small texts kept beside a log.
type Document int

// The documents.
const (
	// StateDocument says where the durable part of the log ends.
	StateDocument Document = iota
	// CheckpointDocument is the newest signed checkpoint.
	CheckpointDocument
	// ManifestDocument lists the closed segments of a SegmentStore.
	ManifestDocument
)

// ErrReplaced is returned by a Store when another file has taken the place of
// one that it holds open.
var ErrReplaced = errors.New("the file was replaced or removed")

// ErrNotRegular is returned by a Store for a link, a folder or a device where
// a file should be.
var ErrNotRegular = errors.New("not a regular file")

// DamagedError is returned by a Store for a log that it cannot read as one, or
// that is not made as its logs are: a database with a damaged page or another
// schema. Store.Stat returns it together with what is there.
type DamagedError struct {
	Finding string // the verifier's name for it, for example "schema_mismatch"
	Err     error  // a clause
}

// Error is the clause.
func (e *DamagedError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// storeReader reads a store's log as an io.ReaderAt.
type storeReader struct{ s Store }

func (r storeReader) gaps() bool {
	_, ok := r.s.(EraserStore)
	return ok
}

func (r storeReader) ReadAt(p []byte, pos int64) (int, error) { return r.s.ReadAt(p, pos) }
