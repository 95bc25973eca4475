package ship

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog/fsys"
)

// File is a cursor file, which one delivery at a time may use.
type File struct {
	path string
	lock fsys.File
}

// cursorText is a cursor file's content.
type cursorText struct {
	Version int       `json:"version"`
	Origin  string    `json:"origin"`
	Seq     uint64    `json:"seq"`
	Leaf    string    `json:"leaf"`
	To      string    `json:"to"`
	At      time.Time `json:"acknowledged_at"`
}

// OpenFile takes the lock of a cursor file, beside it, and reads the cursor;
// nil if there is none yet.
func OpenFile(path string) (f *File, c *Cursor, err error) {
	lock, err := fsys.OS().OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := lock.TryLock(); err != nil {
		if errors.Is(err, fsys.ErrLocked) {
			err = fmt.Errorf("another delivery uses the cursor %s; give each its own with --cursor", path)
		}
		return nil, nil, errors.Join(err, lock.Close())
	}
	f = &File{path: path, lock: lock}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil, nil
	}
	if err == nil {
		if c, err = parseCursor(data); err != nil {
			err = fmt.Errorf("%s is no cursor of a delivery: %w; remove it to deliver all from the beginning", path, err)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, c, nil
}

func parseCursor(data []byte) (*Cursor, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var text cursorText
	if err := d.Decode(&text); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is text behind it")
	}
	if text.Version != 1 {
		return nil, fmt.Errorf("version %d", text.Version)
	}
	c := &Cursor{Origin: text.Origin, Seq: text.Seq}
	if leaf, err := base64.RawURLEncoding.Strict().DecodeString(text.Leaf); err != nil || copy(c.Leaf[:], leaf) != len(leaf) || len(leaf) != len(c.Leaf) {
		return nil, fmt.Errorf("%q is no hash", text.Leaf)
	}
	return c, nil
}

// Save replaces the cursor, durably. to names the receiver.
func (f *File) Save(c Cursor, to string, at time.Time) (err error) {
	data, err := json.Marshal(cursorText{1, c.Origin, c.Seq, c.Leaf.String(), to, at.UTC()})
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+".*")
	if err != nil {
		return fmt.Errorf("keeping the cursor: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), f.path)
	}
	if err == nil {
		return fsys.OS().SyncDir(filepath.Dir(f.path))
	}
	return fmt.Errorf("keeping the cursor: %w", errors.Join(err, os.Remove(tmp.Name())))
}

// Close gives the lock back.
func (f *File) Close() error { return errors.Join(f.lock.Unlock(), f.lock.Close()) }
