package cli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-audit/mcp-audit/auditlog"
)

// cursorFiles are the files of --since, --cursor and --cursor-key.
type cursorFiles struct {
	since sincePoint
	file  string // read if it is there, and written
	key   string // "": the default
}

// cursorKeySize is the length of a cursor key in bytes.
const cursorKeySize = 32

// keyFile is where the key lies that cursors are made with. It is the
// verifier's own, and does not lie beside the log.
func (c *cursorFiles) keyFile() (string, error) {
	if c.key != "" {
		return c.key, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", usage("there is no folder for the key of cursors (%w); give a file with --cursor-key", err)
	}
	return filepath.Join(dir, "mcp-audit", "cursor.key"), nil
}

// loadKey reads the cursor key.
func (c *cursorFiles) loadKey() ([]byte, error) {
	path, err := c.keyFile()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the key of cursors: %w", err)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("others can read the key of cursors, so they can make one; run `chmod 600 %s`", path)
	}
	key, err := readNote(path)
	if err == nil && len(key) != cursorKeySize {
		err = fmt.Errorf("%s has not %d bytes; remove it to have another one made", path, cursorKeySize)
	}
	return key, err
}

// makeKey reads the cursor key, and makes it if there is none.
func (c *cursorFiles) makeKey() ([]byte, error) {
	key, err := c.loadKey()
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	path, err := c.keyFile()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	key = make([]byte, cursorKeySize)
	_, _ = rand.Read(key)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return c.loadKey() // another process was faster
	}
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Close())
}

// load gives the options the cursor to go on behind. Of --since it must be
// good; one of --cursor that is not is passed over, and the reason returned.
func (c *cursorFiles) load(opts *auditlog.VerifyOptions) (unused string, err error) {
	path := c.since.cursor
	if path == "" && !c.since.set {
		path = c.file
	}
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if c.since.cursor == "" && errors.Is(err, fs.ErrNotExist) {
		return "", nil // the first run
	}
	if err != nil {
		return "", usage("reading the cursor: %w", err)
	}
	key, err := c.loadKey()
	if err == nil {
		opts.Cursor, err = auditlog.ParseCursor(data, key)
	}
	opts.CursorName = path
	switch {
	case err == nil:
		return "", nil
	case c.since.cursor != "":
		return "", usage("%s: %w", path, err)
	}
	return fmt.Sprintf("%s: %v", path, err), nil
}

// save writes the new cursor. Where there is none, the old one stays.
func (c *cursorFiles) save(cmd *cobra.Command, r *auditlog.Report) error {
	if c.file == "" {
		return nil
	}
	cursor := r.Cursor()
	if cursor == nil {
		cmd.PrintErrf("mcp-audit: no cursor was written to %s: only a log that was read to its end without a fault has one\n", c.file)
		return nil
	}
	key, err := c.makeKey()
	if err != nil {
		return err
	}
	text, err := cursor.Encode(key)
	if err == nil {
		err = replaceFile(c.file, text)
	}
	if err != nil {
		return fmt.Errorf("writing the cursor: %w", err)
	}
	return nil
}

// replaceFile writes a file as a whole, readable by its owner alone.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// resumedText says what was not read again.
func resumedText(r *auditlog.Report) string {
	return fmt.Sprintf("behind record %d: up to there this verifier found the log intact on %s, and did not read it again",
		r.Resumed.Records-1, timeOf(r.Resumed.VerifiedAt))
}
