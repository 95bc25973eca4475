// Package fsys is the one small interface through which the audit log touches
// files. The real file system is [OS]; tests put a layer in front of it that
// fails, shortens or stops any call.
package fsys

import (
	"errors"
	"io/fs"
	"os"
)

// FS is a file system. Implementations are safe for concurrent use.
type FS interface {
	// OpenFile opens a file; flag and perm are those of os.OpenFile.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Lstat describes the file at a path without following a link.
	Lstat(name string) (fs.FileInfo, error)
	// Rename replaces newname by oldname, atomically where the system can.
	Rename(oldname, newname string) error
	// Remove deletes a file.
	Remove(name string) error
	// MkdirAll makes a folder and its parents.
	MkdirAll(name string, perm fs.FileMode) error
	// ReadDir lists the names in a folder, sorted.
	ReadDir(name string) ([]string, error)
	// SyncDir makes renames and new names in a folder durable. Windows needs
	// and has no such call; there it does nothing.
	SyncDir(name string) error
	// Network names the network file system that a folder lies on, or returns
	// the empty string: locks and flushes of those cannot be relied upon.
	Network(name string) (string, error)
}

// File is an open file.
type File interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	Truncate(size int64) error
	// Sync makes the file's data and size durable (fdatasync where there is one).
	Sync() error
	Stat() (fs.FileInfo, error)
	// Allocate gives the file size bytes of real disk space. Its length
	// afterwards is size.
	Allocate(size int64) error
	// Lock takes an exclusive advisory lock on the whole file and waits for
	// it. The lock belongs to this open file, not to the process.
	Lock() error
	// TryLock is Lock without waiting; ErrLocked says that another holds it.
	TryLock() error
	Unlock() error
	Close() error
}

// ErrLocked is returned by TryLock when another open file holds the lock.
var ErrLocked = errors.New("the file is locked by another process")

// OS returns the operating system's files.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{f}, nil
}

func (osFS) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (osFS) Rename(oldname, newname string) error         { return os.Rename(oldname, newname) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) Network(name string) (string, error)          { return network(name) }

func (osFS) ReadDir(name string) ([]string, error) {
	list, err := os.ReadDir(name)
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

type osFile struct{ *os.File }

// writeZeros is Allocate for systems or file systems without a call for it.
func (f *osFile) writeZeros(size int64) error {
	var zeros [64 << 10]byte
	for off := int64(0); off < size; {
		n := min(int64(len(zeros)), size-off)
		if _, err := f.WriteAt(zeros[:n], off); err != nil {
			return err
		}
		off += n
	}
	return f.File.Truncate(size)
}

// ErrNoSpace says that a disk or a quota is full, where the system's own error
// is not at hand.
var ErrNoSpace = errors.New("no space left on the disk")

// IsNoSpace reports whether an error says that the disk or a quota is full.
func IsNoSpace(err error) bool { return errors.Is(err, ErrNoSpace) || isNoSpace(err) }

// ID is a number that tells a file from others on the same disk (the inode),
// or 0 where the system does not give one cheaply.
func ID(info fs.FileInfo) uint64 { return fileID(info) }
