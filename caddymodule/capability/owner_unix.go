//go:build unix

package capability

import (
	"os"
	"syscall"
)

// private reports whether only the owner has any right.
func private(info os.FileInfo) bool { return info.Mode().Perm()&0o077 == 0 }

// trustedOwner reports whether a file belongs to this process's user. root may
// use the files of any one user: folder, if given, has the same owner.
func trustedOwner(info, folder os.FileInfo) bool {
	uid := owner(info)
	if uid == os.Geteuid() {
		return true
	}
	return os.Geteuid() == 0 && (folder == nil || uid == owner(folder))
}

func owner(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}
