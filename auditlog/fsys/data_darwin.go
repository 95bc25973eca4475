package fsys

import (
	"os"
	"syscall"
)

// Allocate implements File.
func (f *osFile) Allocate(size int64) error { return f.writeZeros(size) }

func network(name string) (string, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(name, &st); err != nil {
		return "", os.NewSyscallError("statfs", err)
	}
	text := make([]byte, 0, len(st.Fstypename))
	for _, c := range st.Fstypename {
		if c == 0 {
			break
		}
		text = append(text, byte(c))
	}
	switch kind := string(text); kind {
	case "nfs", "smbfs", "afpfs", "webdav":
		return kind, nil
	}
	return "", nil
}
