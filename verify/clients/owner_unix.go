//go:build unix

package clients

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives a file the owner of the one that it replaces, if root does.
func keepOwner(path string, like fs.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}
