package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Suffix is what the name of an index has behind that of its log.
const Suffix = ".index"

// Index is an open index. It is safe for concurrent use, also by several
// processes.
type Index struct {
	path, like string
	notes      []string

	mu   sync.RWMutex // for the two below
	w, r *sql.DB

	seenMu sync.Mutex
	seen   map[string]part // files that were indexed to their end
}

// Open opens an index, or makes an empty one; like is a file whose owner gets
// it if root makes it, usually the log. What is damaged, or of another version,
// is made anew, which Notes says. A new index has mode 0600.
func Open(ctx context.Context, path, like string) (*Index, error) {
	x, err := open(ctx, path, like)
	if err == nil || !isDamaged(err) && !errors.Is(err, errSchema) {
		return x, err
	}
	if removed := Remove(path); removed != nil {
		return nil, errors.Join(fmt.Errorf("the index %s is damaged (%w)", path, err), removed)
	}
	why := err
	x, err = open(ctx, path, like)
	if err != nil {
		return nil, err
	}
	x.notes = append(x.notes, fmt.Sprintf("the index %s is made anew: %v", path, why))
	return x, nil
}

func open(ctx context.Context, path, like string) (*Index, error) {
	x := &Index{path: path, like: like}
	var err error
	const options = "mode=rw&_journal_mode=WAL&_synchronous=NORMAL&_busy_timeout=60000"
	if x.w, err = openSQLite(path, options+"&_txlock=immediate"); err != nil {
		return nil, fmt.Errorf("opening the index %s: %w", path, err)
	}
	x.w.SetMaxOpenConns(1)
	// Nothing is opened before it is used, so that the file is made here.
	if err := create(path, like); err != nil {
		return nil, errors.Join(err, x.w.Close())
	}
	if err = prepare(ctx, x.w); err == nil {
		x.r, err = openSQLite(path, options+"&_query_only=1")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the index %s: %w", path, err), x.w.Close())
	}
	x.r.SetMaxOpenConns(4)
	return x, nil
}

// create makes the file if it is not there, for its owner alone, and refuses
// to follow a link or to use what is no regular file.
func create(path, like string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("the index %s is no regular file; remove it, or name another place with --index", path)
	case err == nil:
		if info.Mode().Perm()&0o077 != 0 {
			return os.Chmod(path, 0o600)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("opening the index: %w; name another place with --index", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making the index: %w; name another place with --index", err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if owner, err := os.Stat(like); err == nil {
		return shareOwner(path, owner)
	}
	return nil
}

// Remove deletes an index, if it is there.
func Remove(path string) error {
	var errs []error
	for _, name := range []string{path, path + "-wal", path + "-shm", path + "-journal"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("removing the index: %w", err))
		}
	}
	return errors.Join(errs...)
}

// renew removes a damaged index and makes an empty one in its place.
func (x *Index) renew(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	// What fails on a damaged database says nothing.
	_, _ = x.r.Close(), x.w.Close()
	if err := Remove(x.path); err != nil {
		return err
	}
	fresh, err := open(ctx, x.path, x.like)
	if err != nil {
		return err
	}
	x.w, x.r = fresh.w, fresh.r
	x.remember(nil)
	return nil
}

// uncancelled is a context for statements. With one that can be cancelled, the
// driver starts a goroutine for each row, which takes longer than the row;
// so it is asked between rows and batches.
func uncancelled(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// Path is where the index lies.
func (x *Index) Path() string { return x.path }

// Notes are sentences about what Open had to mend.
func (x *Index) Notes() []string { return x.notes }

// Close closes the index.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return errors.Join(x.r.Close(), x.w.Close())
}
