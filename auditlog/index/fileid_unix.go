//go:build unix

package index

import (
	"io/fs"
	"os"
	"syscall"
)

// fileID is the file's inode.
func fileID(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Ino) //nolint:unconvert // its type differs between systems
	}
	return 0
}

// shareOwner gives a file that root made to the owner of the log, who could
// not read it otherwise.
func shareOwner(path string, like fs.FileInfo) error {
	s, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || s.Uid == 0 {
		return nil
	}
	return os.Lchown(path, int(s.Uid), int(s.Gid))
}
