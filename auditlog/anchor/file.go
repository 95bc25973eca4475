package anchor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// File keeps checkpoints in the file system: on another disk, one that can be
// written once, or a mounted share. A path that is a folder gets one file for
// each checkpoint, never touched again, so that the folder may be append-only;
// any other path is one file, replaced by each newer checkpoint.
type File struct {
	path string
	fs   fsys.FS
}

// NewFile returns the anchor at a path. files may be nil for the operating
// system's.
func NewFile(path string, files fsys.FS) (*File, error) {
	if path == "" || strings.ContainsRune(path, 0) {
		return nil, fmt.Errorf("anchor file: %q is not a path", path)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("anchor file %s: %w", path, err)
	}
	if files == nil {
		files = fsys.OS()
	}
	return &File{abs, files}, nil
}

// Type implements Anchor.
func (f *File) Type() string { return "file" }

// Name implements Anchor: the path.
func (f *File) Name() string { return f.path }

// Submit implements Anchor. It never replaces what the log does not continue.
func (f *File) Submit(ctx context.Context, s *Submission) (Receipt, error) {
	info, err := f.fs.Lstat(f.path)
	if err == nil && info.IsDir() {
		return f.addTo(ctx, s)
	}
	if err == nil && !info.Mode().IsRegular() {
		return Receipt{}, fmt.Errorf("%s is neither a file nor a folder", f.path)
	}
	if err == nil {
		if err := f.mayReplace(ctx, s); err != nil {
			return Receipt{}, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Receipt{}, err
	}
	if err := f.write(f.path, s.Note); err != nil {
		return Receipt{}, err
	}
	return Receipt{Note: s.Note}, nil
}

// mayReplace checks what lies at the path. The last checkpoint of an earlier
// incarnation is kept under a name of its own.
func (f *File) mayReplace(ctx context.Context, s *Submission) error {
	held, err := f.read(f.path)
	if err != nil {
		return err
	}
	head, err := auditlog.ReadTreeHead(held)
	if err != nil {
		return fmt.Errorf("%s holds something that is no checkpoint, and is not replaced; move it away, or name another file", f.path)
	}
	if head.Origin != s.Head.Origin {
		name, number := incarnation(head.Origin)
		ours, now := incarnation(s.Head.Origin)
		if name != ours || number >= now {
			return fmt.Errorf("%s holds a checkpoint of %q, and is not replaced by one of %q; give each log a file of its own", f.path, head.Origin, s.Head.Origin)
		}
		return f.fs.Rename(f.path, f.path+".i"+strconv.Itoa(number))
	}
	return s.continuesSigned(ctx, f.path, held, head)
}

// addTo writes a file of its own for the checkpoint.
func (f *File) addTo(ctx context.Context, s *Submission) (Receipt, error) {
	_, number := incarnation(s.Head.Origin)
	prefix := fmt.Sprintf("i%d-", number)
	names, err := f.fs.ReadDir(f.path)
	if err != nil {
		return Receipt{}, err
	}
	for i := len(names) - 1; i >= 0; i-- {
		if !strings.HasPrefix(names[i], prefix) || !strings.HasSuffix(names[i], ".checkpoint") {
			continue
		}
		// The newest: sizes are written with equal length.
		at := filepath.Join(f.path, names[i])
		held, err := f.read(at)
		if err != nil {
			return Receipt{}, err
		}
		head, err := auditlog.ReadTreeHead(held)
		if err != nil || head.Origin != s.Head.Origin {
			return Receipt{}, fmt.Errorf("%s is no checkpoint of this log; keep it for the investigation, and move it away", at)
		}
		if err := s.continuesSigned(ctx, at, held, head); err != nil || head == s.Head {
			return Receipt{Note: s.Note}, err
		}
		break
	}
	at := filepath.Join(f.path, fmt.Sprintf("%s%020d.checkpoint", prefix, s.Head.Size))
	file, err := f.fs.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Receipt{}, err
	}
	if err := f.fill(file, s.Note); err != nil {
		return Receipt{}, err
	}
	return Receipt{Note: s.Note}, f.fs.SyncDir(f.path)
}

func (f *File) fill(file fsys.File, note []byte) error {
	_, err := file.WriteAt(note, 0)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// write replaces a file as a whole, durably.
func (f *File) write(path string, data []byte) error {
	if err := f.fs.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	tmp := path + ".tmp"
	file, err := f.fs.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := f.fill(file, data); err != nil {
		return err
	}
	if err := f.fs.Rename(tmp, path); err != nil {
		return err
	}
	return f.fs.SyncDir(filepath.Dir(path))
}

// maxHeld is more than any checkpoint has.
const maxHeld = 128 << 10

func (f *File) read(path string) (data []byte, err error) {
	file, err := f.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	data = make([]byte, maxHeld)
	n, err := file.ReadAt(data, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}

// incarnation takes an origin apart: NAME/iN.
func incarnation(origin string) (name string, number int) {
	at := strings.LastIndex(origin, "/i")
	if at < 0 {
		return origin, 0
	}
	n, err := strconv.Atoi(origin[at+2:])
	if err != nil || n < 0 {
		return origin, 0
	}
	return origin[:at], n
}
