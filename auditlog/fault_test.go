package auditlog_test

import (
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// faulty is a file layer that can fail, shorten or count any call.
type faulty struct {
	fsys.FS
	mu     sync.Mutex
	calls  int
	plan   func(n int, op, name string) error // nil error: the call goes on
	synced map[string]int64                   // size of each file at its last Sync
	onOp   func(op, name string)
}

// errShort makes a write land half and then fail as if the disk were full.
var errShort = errors.New("short write")

// errLate makes a write land whole and then fail.
var errLate = errors.New("late failure")

func newFaulty(plan func(n int, op, name string) error) *faulty {
	return &faulty{FS: fsys.OS(), plan: plan, synced: map[string]int64{}}
}

// set changes the plan.
func (f *faulty) set(plan func(n int, op, name string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *faulty) check(op, name string) error {
	f.mu.Lock()
	n, plan, onOp := f.calls, f.plan, f.onOp
	f.calls++
	f.mu.Unlock()
	if onOp != nil {
		onOp(op, name)
	}
	if plan == nil {
		return nil
	}
	return plan(n, op, name)
}

func (f *faulty) OpenFile(name string, flag int, perm fs.FileMode) (fsys.File, error) {
	if err := f.check("open", name); err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f, name}, nil
}

func (f *faulty) Lstat(name string) (fs.FileInfo, error) {
	if err := f.check("lstat", name); err != nil {
		return nil, &os.PathError{Op: "lstat", Path: name, Err: err}
	}
	return f.FS.Lstat(name)
}

func (f *faulty) Rename(from, to string) error {
	if err := f.check("rename", to); err != nil {
		return &os.PathError{Op: "rename", Path: to, Err: err}
	}
	return f.FS.Rename(from, to)
}

func (f *faulty) Remove(name string) error {
	if err := f.check("remove", name); err != nil {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return f.FS.Remove(name)
}

func (f *faulty) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.check("mkdir", name); err != nil {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return f.FS.MkdirAll(name, perm)
}

func (f *faulty) ReadDir(name string) ([]string, error) {
	if err := f.check("readdir", name); err != nil {
		return nil, &os.PathError{Op: "readdir", Path: name, Err: err}
	}
	return f.FS.ReadDir(name)
}

func (f *faulty) SyncDir(name string) error {
	if err := f.check("syncdir", name); err != nil {
		return &os.PathError{Op: "syncdir", Path: name, Err: err}
	}
	return f.FS.SyncDir(name)
}

type faultyFile struct {
	fsys.File
	f    *faulty
	name string
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.f.check("read", f.name); err != nil {
		return 0, &os.PathError{Op: "read", Path: f.name, Err: err}
	}
	return f.File.ReadAt(p, off)
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	err := f.f.check("write", f.name)
	if errors.Is(err, errShort) {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, &os.PathError{Op: "write", Path: f.name, Err: syscall.ENOSPC}
	}
	if errors.Is(err, errLate) {
		_, _ = f.File.WriteAt(p, off)
		err = syscall.EIO
	}
	if err != nil {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: err}
	}
	return f.File.WriteAt(p, off)
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.f.check("truncate", f.name); err != nil {
		return &os.PathError{Op: "truncate", Path: f.name, Err: err}
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Sync() error {
	if err := f.f.check("sync", f.name); err != nil {
		return &os.PathError{Op: "sync", Path: f.name, Err: err}
	}
	info, err := f.File.Stat()
	if err != nil {
		return err
	}
	if err := f.File.Sync(); err != nil {
		return err
	}
	f.f.mu.Lock()
	defer f.f.mu.Unlock()
	f.f.synced[f.name] = info.Size()
	return nil
}

func (f *faultyFile) Stat() (fs.FileInfo, error) {
	if err := f.f.check("stat", f.name); err != nil {
		return nil, &os.PathError{Op: "stat", Path: f.name, Err: err}
	}
	return f.File.Stat()
}

func (f *faultyFile) Allocate(size int64) error {
	if err := f.f.check("allocate", f.name); err != nil {
		return &os.PathError{Op: "allocate", Path: f.name, Err: err}
	}
	return f.File.Allocate(size)
}

func (f *faultyFile) Lock() error {
	if err := f.f.check("lock", f.name); err != nil {
		return &os.PathError{Op: "lock", Path: f.name, Err: err}
	}
	return f.File.Lock()
}

func (f *faultyFile) TryLock() error {
	if err := f.f.check("trylock", f.name); err != nil {
		return &os.PathError{Op: "lock", Path: f.name, Err: err}
	}
	return f.File.TryLock()
}

func (f *faultyFile) Unlock() error {
	if err := f.f.check("unlock", f.name); err != nil {
		return &os.PathError{Op: "unlock", Path: f.name, Err: err}
	}
	return f.File.Unlock()
}

func (f *faultyFile) Close() error {
	if err := f.f.check("close", f.name); err != nil {
		_ = f.File.Close()
		return &os.PathError{Op: "close", Path: f.name, Err: err}
	}
	return f.File.Close()
}
