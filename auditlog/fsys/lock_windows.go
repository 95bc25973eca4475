package fsys

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/windows"
)

func (f *osFile) Lock() error { return f.lockEx(windows.LOCKFILE_EXCLUSIVE_LOCK) }

func (f *osFile) TryLock() error {
	err := f.lockEx(windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return ErrLocked
	}
	return err
}

func (f *osFile) lockEx(flags uint32) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, new(windows.Overlapped))
}

func (f *osFile) Unlock() error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, new(windows.Overlapped))
}

// SyncDir implements FS. NTFS journals names itself.
func (osFS) SyncDir(string) error { return nil }

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) ||
		errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}

func fileID(fs.FileInfo) uint64 { return 0 }
